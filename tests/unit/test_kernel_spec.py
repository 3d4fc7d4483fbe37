"""Kernel keys: they change with what the compiled code depends on, and with nothing else."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import pytest

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmOperands, GemmProblem
from tilecast.kernels import spec as spec_module
from tilecast.kernels.spec import KernelSpec

CONFIG = KernelConfig(128, 128, 64)


def test_key_is_stable_and_fit_for_a_file_name(linear: GemmOperands) -> None:
    key = KernelSpec(CONFIG, linear).key
    assert key == KernelSpec(CONFIG, linear).key
    assert len(key) == 32
    assert set(key) <= set("0123456789abcdef")


def test_key_ignores_extents() -> None:
    keys = {
        KernelSpec.for_problem(CONFIG, GemmProblem(m, n, k)).key
        for m, n, k in [(1, 8, 8), (4096, 4096, 4096), (77, 1000, 520)]
    }
    assert len(keys) == 1


def test_key_tells_every_field_apart(linear: GemmOperands) -> None:
    configs = [
        CONFIG,
        *(
            dataclasses.replace(CONFIG, **{name: value})
            for name, value in {
                "tile_m": 64, "tile_n": 64, "tile_k": 128, "cluster_m": 2, "cluster_n": 2,
                "stages": 3, "warp_groups": 2, "ctas_per_sm": 2, "raster": "n", "swizzle": 2,
                "split_k": 2, "swap_ab": True,
            }.items()
        ),
    ]  # fmt: skip
    assert len(configs) == 1 + len(dataclasses.fields(KernelConfig))
    operands = [
        GemmOperands("float16"),
        GemmOperands(out_dtype="float32"),
        GemmOperands(a_major="col"),
        GemmOperands(b_major="row"),
        GemmOperands(out_major="col"),
    ]
    specs = [KernelSpec(config, linear) for config in configs]
    specs += [KernelSpec(CONFIG, one) for one in operands]
    specs += [KernelSpec(CONFIG, linear, batched=True), KernelSpec(CONFIG, linear, arch="sm_90")]
    assert all(one.key != other.key for one, other in combinations(specs, 2))


def test_a_batch_makes_another_kernel_but_its_size_does_not() -> None:
    single, two, three = (
        KernelSpec.for_problem(CONFIG, GemmProblem(8, 8, 8, batch)) for batch in (1, 2, 3)
    )
    assert two == three != single


@pytest.mark.parametrize("changed", ["_compiler_versions", "_source_digest"])
def test_key_changes_with_compiler_and_sources(
    linear: GemmOperands, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    before = KernelSpec(CONFIG, linear).key
    monkeypatch.setattr(spec_module, changed, lambda: "another")
    assert KernelSpec(CONFIG, linear).key != before


def test_sources_are_the_files_that_decide_the_code() -> None:
    assert [path.name for path in spec_module._SOURCES] == [
        "sm90_gemm.py",
        "compiler.py",
        "resources.py",
    ]
    assert all(path.is_file() for path in spec_module._SOURCES)
