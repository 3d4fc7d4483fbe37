"""Kernel keys: they change with what the compiled code depends on, and with nothing else."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
import textwrap
from itertools import combinations
from pathlib import Path

import pytest

from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels import families
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

CONFIG = QuackConfig(128, 128, 64)
PACKAGE = Path(families.__file__).resolve().parents[1]


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
    assert all(one.key != other.key for one, other in combinations(specs, 2))


def test_a_batch_makes_another_kernel_but_its_size_does_not() -> None:
    single, two, three = (
        KernelSpec.for_problem(CONFIG, GemmProblem(8, 8, 8, batch)) for batch in (1, 2, 3)
    )
    assert two == three != single


def _key_after(change: str) -> str:
    """The key of one kernel in a fresh interpreter, after some code has run."""
    code = f"""
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels import spec
from tilecast.kernels.families import parse_config
{change}
print(spec.KernelSpec(parse_config("{CONFIG}"), LINEAR_BF16).key)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.mark.parametrize(
    "change",
    [
        "spec.version = lambda name: 'another' if name == 'nvidia-cutlass-dsl' else 'same'",
        "spec.version = lambda name: 'another' if name == 'apache-tvm-ffi' else 'same'",
        "spec.platform.machine = lambda: 'aarch64'",
        "import pathlib; spec.FAMILIES['quack_sm90'].__class__.sources = "
        "(pathlib.Path(spec.__file__),)",
    ],
    ids=["dsl", "tvm-ffi", "host", "sources"],
)
def test_key_changes_with_all_that_the_code_depends_on(linear: GemmOperands, change: str) -> None:
    assert _key_after("") == KernelSpec(CONFIG, linear).key
    assert _key_after(change) != KernelSpec(CONFIG, linear).key


def _imported(code: str) -> set[Path]:
    """The modules of `tilecast.kernels` that some code imports."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilecast.kernels"):
            home = PACKAGE.joinpath(*(node.module or "").split(".")[1:])
            named = [home / f"{alias.name}.py" for alias in node.names]
            found |= {path for path in (home.with_suffix(".py"), *named) if path.is_file()}
    return found


@pytest.mark.parametrize("family", families.FAMILIES.values(), ids=lambda family: family.name)
def test_all_modules_that_compile_a_kernel_are_its_sources(family: KernelFamily) -> None:
    """Those reached from ``compile``, but for the config and the spec: the key has their values."""
    code = textwrap.dedent(inspect.getsource(type(family).compile))
    described = {Path(inspect.getfile(cls)).resolve() for cls in (KernelSpec, QuackConfig)}
    reached: set[Path] = set()
    while new := _imported(code) - described - reached:
        reached |= new
        code = "\n".join(path.read_text() for path in new)
    assert reached == {path.resolve() for path in family.sources}
