"""Kernel keys: they change with what the compiled code depends on, and with nothing else."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import pytest
from processes import python

from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.families import FAMILIES
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.objects.keys import kernel_key, source_files
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

CONFIG = QuackConfig(128, 128, 64)


def test_key_is_stable_and_fit_for_a_file_name(linear: GemmOperands) -> None:
    key = kernel_key(KernelSpec(CONFIG, linear))
    assert key == kernel_key(KernelSpec(CONFIG, linear))
    assert len(key) == 32
    assert set(key) <= set("0123456789abcdef")


def test_key_tells_every_field_apart(linear: GemmOperands) -> None:
    configs = [
        CONFIG,
        *(
            dataclasses.replace(CONFIG, **{name: value})
            for name, value in {
                "tile_m": 64, "tile_n": 64, "tile_k": 128, "cluster_m": 2, "cluster_n": 2,
                "split_k": 2, "stages": 3, "schedule": "pong", "ctas_per_sm": 2, "raster": "n",
                "swizzle": 2, "swap_ab": True,
            }.items()
        ),
    ]  # fmt: skip
    assert len(configs) == 1 + len(dataclasses.fields(QuackConfig))
    texts = ("fp16:rcr", "bf16:rcr>fp32", "bf16:ccr", "bf16:rrr", "bf16:rcc", "bf16:rcr:bias")
    operands = [GemmOperands.parse(text) for text in texts]
    specs = [KernelSpec(config, linear) for config in configs]
    specs += [KernelSpec(CONFIG, one) for one in operands]
    specs += [KernelSpec(CONFIG, linear, **{name: True}) for name in ("batched", "any_rows")]
    assert all(kernel_key(one) != kernel_key(other) for one, other in combinations(specs, 2))


CHANGES = {
    "nothing": "",
    "dsl": "keys.version = lambda name: 'no' if name == 'nvidia-cutlass-dsl' else whole(name)",
    "tvm-ffi": "keys.version = lambda name: 'no' if name == 'apache-tvm-ffi' else whole(name)",
    "host": "keys.platform.machine = lambda: 'aarch64'",
    "sources": "keys.FAMILIES[name] = replace(keys.FAMILIES[name], compiler=keys.__name__)",
}
"""What the code of a kernel depends on, and how that changes."""


def test_key_changes_with_all_that_the_code_depends_on(linear: GemmOperands) -> None:
    """In processes that have named no kernel before, forked from one."""
    code = f"""
import os
from dataclasses import replace
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.objects import keys
from tilecast.kernels.spec import KernelSpec
from tilecast.kernels.families import parse_config
name, whole = "quack_sm90", keys.version
for change in {[*CHANGES.values()]}:
    if not os.fork():
        exec(change)
        print(keys.kernel_key(KernelSpec(parse_config("{CONFIG}"), LINEAR_BF16)), flush=True)
        os._exit(0)
    os.wait()
"""
    same, *others = python(code).stdout.split()
    assert same == kernel_key(KernelSpec(CONFIG, linear))
    assert len({same, *others}) == len(CHANGES)


def test_imports_inside_functions_and_of_the_own_package_are_sources() -> None:
    assert source_files("toy_family.kernel").keys() == {"toy_family.kernel"}
    assert {"toy_family.family", "tilecast.kernels.rules", "tilecast.heuristics.config"} <= (
        source_files("toy_family.family").keys()
    )
    shipped = source_files("tilecast.kernels.objects.shipped").keys()
    assert "tilecast.kernels.objects.archive" in shipped  # imported in a function


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_what_chooses_kernels_is_no_source_of_theirs(family: KernelFamily) -> None:
    """So that a rule or a feature changes without every kernel being compiled again."""
    sources = source_files(family.compiler).keys()
    assert {family.compiler, "tilecast.kernels.spec", "tilecast.heuristics.operands"} <= sources
    for chooses in ("kernels.rules", "kernels.candidates", "kernels.family", "heuristics.problem"):
        assert f"tilecast.{chooses}" not in sources
