"""Whatever fails in the hook, the compile goes on: one warning, and the stock choices are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hook_graph import choices_of, linear, lowered, main_of, names_of, node, warnings_told
from stand_in_models import trained_anew
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.kernel import mm

from tilecast.heuristics.hardware import hardware
from tilecast.inductor_hook import install, telemetry
from tilecast.inductor_hook.offer import offer as hook_choices
from tilecast.inductor_hook.offer.template import Choice
from tilecast.inductor_hook.select import selection
from tilecast.kernels.build.builder import ObjectBuilder, object_builder
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime.learned import LearnedHeuristic, Prediction

aten = torch.ops.aten
REALLY_START, REALLY_WAIT = ObjectBuilder.start, ObjectBuilder.wait
BAD = QuackConfig(100, 100, 64)
"""No tile that WGMMA has an instruction for; the space never proposes it."""


def _stock_is_left(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Several products get their stock choices, or ATen's where none are; one warning says why."""
    for _ in range(3):
        assert [choice.name for choice in choices_of(linear(), "mm", [mm.aten_mm])] == ["mm"]
    with config.patch(max_autotune_gemm_backends="TILECAST"):
        assert names_of(lowered(aten.mm, *linear().nodes())) == ["mm"]
        bias = node("c", [4096])
        # PyTorch 2.11 has an addmm for biases that are vectors, too, and calls both ATen's.
        names = names_of(lowered(aten.addmm, bias, *linear().nodes()))
        assert set(names) - {"bias_addmm"} == {"addmm"}
    (warning,) = warnings_told(caplog)
    assert reason in warning
    assert "\n" not in warning


@pytest.mark.parametrize("count", [1, 3, "auto"])
@pytest.mark.parametrize("damage", ["cut", "removed", "manifest edited"])
def test_a_model_damaged_after_the_installation(
    graph: Any, caplog: pytest.LogCaptureFixture, another_model: Path, damage: str, count: Any
) -> None:
    install(k=count, model=another_model)
    manifest = another_model / "manifest.json"
    if damage == "manifest edited":
        manifest.write_text(manifest.read_text().replace("another", "a third"))
    for path in another_model.glob("*.gz"):
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:100])
        elif damage == "removed":
            path.unlink()
    _stock_is_left(caplog, f"model {another_model} is refused")


@pytest.mark.parametrize("count", [1, 3])
def test_a_model_trained_anew_after_the_installation(
    graph: Any, caplog: pytest.LogCaptureFixture, another_model: Path, count: int
) -> None:
    """Caches know the old one's digest; its successor takes another installation."""
    install(k=count, model=another_model)
    trained_anew(another_model)
    _stock_is_left(caplog, f"model {another_model} has changed since it was installed")
    install(k=count, model=another_model)
    assert len(choices_of(linear(), "mm", [])) == count


@pytest.mark.parametrize(
    ("home", "name", "failures"),
    [(LearnedHeuristic, "", 5), (ObjectBuilder, "start", 5), (Choice, "variables", 0)],
    ids=["a prediction", "a compiler", "generated source"],
)
@pytest.mark.parametrize("count", [1, 3])
def test_what_fails_on_the_way_to_a_choice(
    graph: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    home: type,
    name: str,
    failures: int,
) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise ZeroDivisionError("float division\nby zero")

    monkeypatch.setattr(home, name or ("first" if count == 1 else "predict"), fails)
    install(k=count)
    _stock_is_left(caplog, "ZeroDivisionError: float division by zero")
    assert counters["tilecast"]["failed: choosing kernels"] == failures


@pytest.mark.parametrize("count", [1, 3])
def test_a_gpu_that_is_not_known_is_said_once(
    graph: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(
        selection, "hardware_of", lambda device, settings: hardware("NVIDIA A100-SXM4-40GB")
    )
    install(k=count)
    _stock_is_left(caplog, "gpu 'NVIDIA A100-SXM4-40GB' is not known; allowed: H200")
    assert counters["tilecast"]["not covered: mm"] == 4


def test_a_product_that_is_not_covered_is_no_reason_to_warn(
    graph: Any, caplog: pytest.LogCaptureFixture
) -> None:
    install(k=3)
    assert [choice.name for choice in choices_of(linear(k=1001), "mm", [mm.aten_mm])] == ["mm"]
    assert warnings_told(caplog) == []


def test_a_kernel_that_does_not_compile(
    graph: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It gets into no graph that nobody benchmarks; where it did, torch multiplies."""
    monkeypatch.setattr(ObjectBuilder, "start", REALLY_START)
    monkeypatch.setattr(ObjectBuilder, "wait", REALLY_WAIT)
    monkeypatch.setattr(hook_choices, "shortlist", lambda *problem: (Prediction(BAD, 10.0, 1.0),))
    product = linear(m=16, n=64, k=128)
    install(k=1)
    with config.patch(max_autotune_gemm_backends="ATEN,TRITON,TILECAST"):
        assert names_of(choices_of(product, "mm", [mm.aten_mm, mm.mm_template])) == ["mm"]
    (warning,) = warnings_told(caplog)
    assert f"compiling failed (TilecastError: kernel {BAD}" in warning
    install(k=2)
    _, choice = choices_of(product, "mm", [mm.aten_mm])
    assert object_builder().objects.resources(choice.choice.specs[0]) is None

    main = main_of(choice, tmp_path / "generated.py")
    a, b = torch.randn(16, 128).bfloat16(), torch.randn(64, 128).bfloat16()
    out = torch.empty(16, 64, dtype=torch.bfloat16)
    for _ in range(2):
        main(a, b.T, out, stream=0)
        assert torch.equal(out, a @ b.T)
    assert len(warnings_told(caplog)) == 2
    assert f"running {BAD} failed" in warnings_told(caplog)[1]


def test_warnings_are_given_once_and_counted_always(
    hook: list[KernelSpec], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        telemetry.warn_once("loading", RuntimeError("a\n  b"))
        telemetry.warn_once("ranking", ValueError("no reason"), then="ours runs")
        telemetry.say_once("eager", "goes to torch")
    assert warnings_told(caplog) == [
        "tilecast: loading failed (RuntimeError: a b); PyTorch's own kernels are used",
        "tilecast: ranking failed (ValueError: no reason); ours runs",
        "tilecast: goes to torch",
    ]
    assert counters["tilecast"] == {"failed: loading": 3, "failed: ranking": 3, "said: eager": 3}
    telemetry._told.clear()
    telemetry.warn_once("loading", RuntimeError("again"))
    assert len(warnings_told(caplog)) == 4


def test_a_reason_is_its_message_without_numbers(
    hook: list[KernelSpec], caplog: pytest.LogCaptureFixture
) -> None:
    for message in ("m=7 of 7x8x64: bfloat16", "m=9 of 9x8x64: bfloat16", "m=9: float16"):
        telemetry.say_once("no model", message)
    telemetry.say_once("eager", "m=9: float16")
    assert warnings_told(caplog) == [
        "tilecast: m=7 of 7x8x64: bfloat16",
        "tilecast: m=9: float16",
        "tilecast: m=9: float16",
    ]
