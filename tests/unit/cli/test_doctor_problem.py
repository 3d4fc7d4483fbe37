"""What ``tilecast doctor`` says of the hook and of single multiplications."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilecast.cli.diagnosis.machine import Finding
from tilecast.cli.diagnosis.problem import check_hook, explain
from tilecast.cli.options.mnk import parse_mnk
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.inductor_hook.names import VARIABLE
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

H200 = hardware("H200")
TORCH = "2.15.0.dev20261101+cu130"
FINE = {VARIABLE: "ATEN,TRITON,TILECAST"}


def explained(
    folder: Path, typed: str = "512x4096x4096", operands: str = "bf16:rcr", k: int = 3, **more: Any
) -> list[Finding]:
    problem = parse_mnk(typed, GemmOperands.parse(operands))
    return list(explain(problem, H200, Settings(k, **more), ObjectCache(folder)))


def test_a_named_backend_that_is_loaded_is_fine() -> None:
    assert [finding.works for finding in check_hook(TORCH, FINE)] == [True, True, True]


@pytest.mark.parametrize("value", ["", "ATEN,TRITON", "TILECASTS"])
def test_a_backend_list_without_tilecast_is_told_how_to_name_it(value: str) -> None:
    _, named, _ = check_hook(TORCH, {VARIABLE: value})
    assert not named.works
    assert f"{VARIABLE}=ATEN,TRITON,TILECAST" in named.advice


def test_autoloading_that_is_switched_off_is_told() -> None:
    *_, loaded = check_hook(TORCH, FINE | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert not loaded.works
    assert loaded.advice == "unset TORCH_DEVICE_BACKEND_AUTOLOAD"


def test_a_problem_that_is_covered_shows_its_choices_and_what_is_not_compiled(
    tmp_path: Path,
) -> None:
    problem, choices, compiled = explained(tmp_path)
    assert problem.works
    assert choices.works
    assert choices.found.startswith("3: ")
    assert not compiled.works
    assert compiled.found == f"0 of 3 in {tmp_path}"
    assert "tilecast compile -k 3 512x4096x4096" in compiled.advice


def test_a_first_choice_that_is_timed_beside_cublas_is_told(
    tmp_path: Path, leaving_model: Path
) -> None:
    single, several = (explained(tmp_path, k=k, model=str(leaving_model)) for k in (1, 5))
    assert single[1].works
    assert ", timed beside torch.mm, which may take no more than " in single[1].found
    assert "torch.mm" not in several[1].found


def test_a_layout_no_model_has_seen_is_ranked_but_not_decided(tmp_path: Path) -> None:
    assert explained(tmp_path, operands="bf16:ccr", k=5)[1].works
    _, model = explained(tmp_path, operands="bf16:ccr", k=1)
    assert not model.works
    assert "no model has seen operands such as bf16:ccr" in model.advice


def test_a_result_that_no_model_is_for_is_told(tmp_path: Path) -> None:
    _, model = explained(tmp_path, operands="bf16:rcr>fp32")
    assert not model.works
    assert "no model is for bf16:rcr>fp32" in model.advice


def test_batched_problems_are_asked_for_batched_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[KernelSpec] = []
    monkeypatch.setattr(ObjectCache, "resources", lambda self, spec: asked.append(spec))
    explained(tmp_path, "8x64x512x512")
    assert [spec.batched for spec in asked] == [True] * 3


@pytest.mark.parametrize(("typed", "vector"), [("1x4096x4096", "m = 1"), ("4096x1x4096", "n = 1")])
def test_one_row_or_column_of_16_bits_is_no_gemm_in_inductor(
    tmp_path: Path, typed: str, vector: str
) -> None:
    *_, last = explained(tmp_path, typed)
    assert not last.works
    assert vector in last.found
    assert explained(tmp_path, "1x4096x4096", "e4m3:rcr>bf16:row-scales")[1].works


@pytest.mark.parametrize("k", [1, 5])
def test_rows_of_any_length_are_ranked_as_the_hook_does(tmp_path: Path, k: int) -> None:
    found = explained(tmp_path, "16x50257x4096", k=k)
    assert found[0].found == "16x50257x4096 bf16:rcr, ranked as 16x50264x4096"
    assert found[1].found.startswith(f"{k}: ")
    assert f"`tilecast compile -k {k} 16x50257x4096 --operands 'bf16:rcr'`" in found[2].advice
    *_, invariant = explained(tmp_path, "16x4096x4096", k=k, invariant=True)
    assert "16x4096x4096 --operands 'bf16:rcr' --invariant`" in invariant.advice


def test_one_row_of_groups_is_a_product(tmp_path: Path) -> None:
    found = explained(tmp_path, "8x1x4096x4096", "bf16:rcr:row-groups")
    assert found[1].found.startswith("3: ")


@pytest.mark.parametrize(
    ("typed", "operands"),
    [
        ("8x64x2047x4096", "bf16:rcr:row-groups"),
        ("64x2047x4096", "bf16:rcr:silu-mul"),
        ("64x2047x4096", "int8:rcr>int32"),
    ],
)
def test_rows_that_no_thread_stores_are_refused(typed: str, operands: str) -> None:
    """As the hook offers no kernel for them."""
    with pytest.raises(TilecastError, match="n=2047 breaks the 16-byte rule"):
        parse_mnk(typed, GemmOperands.parse(operands))


def test_rows_that_another_major_needs_are_refused() -> None:
    with pytest.raises(TilecastError, match="n=50257 breaks the 16-byte rule of B"):
        parse_mnk("16x50257x4096", GemmOperands.parse("bf16:rrr"))
