"""What is compiled for the GPU tests, and from which sources kernels are compiled."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from joblib import cpu_count
from processes import python

from tilecast.heuristics.config import Geometry, KernelConfig
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.families import FAMILIES, family_of
from tilecast.kernels.launch import Launch, load_kernel
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.objects.keys import source_files
from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True)
class Kernels:
    """What was compiled for these tests."""

    configs: tuple[KernelConfig, ...]
    """A plain one, then the spread; each for bf16 as ``torch.nn.Linear`` stores it."""
    offered: tuple[KernelConfig, ...]
    """Those that a model chooses for layers of all sizes; for the same operands."""
    others: tuple[KernelSpec, ...]
    """The plain one, or one as deep, for other operands."""
    batched: tuple[KernelSpec, ...]
    """Kernels with a batch in front."""
    any_rows: tuple[KernelSpec, ...]
    """Kernels of an out whose rows begin anywhere: half of the spread, and all others."""
    objects: ObjectCache
    """Where they lie."""

    def geometry(self) -> Geometry:
        """What the configs look like."""
        return family_of(self.configs[0]).geometry(self.configs)

    def load(self, spec: KernelSpec) -> Launch:
        """One of them, loaded once in this process."""
        return _load(spec, self.objects)

    def config(self, position: int) -> Launch:
        """The kernel of one of `configs`."""
        return self.load(KernelSpec(self.configs[position], LINEAR_BF16))


_load = cache(load_kernel)


def compiled(specs: Iterable[KernelSpec]) -> ObjectCache:
    """The user's cache with some kernels; it is kept, as compiling takes longer than the tests."""
    objects, wanted = ObjectCache(default_root()), list(set(specs))
    random.shuffle(wanted)  # processes that test side by side begin with different ones
    assert {result.error for result in compile_all(wanted, objects, cpu_count())} == {None}
    return objects


def check_sources(compiler: str, loaded: str) -> None:
    """That what a process has loaded for a compiler alone is what keys of its kernels depend on.

    Args:
        compiler: the module.
        loaded: names of modules; PyTorch loads those of the hook by itself.
    """
    found = source_files(compiler).keys()
    ours = {name for name in loaded.split() if name.startswith("tilecast.")}
    folders = {name.rpartition(".")[0] for name in found}
    assert {name for name in ours if "inductor_hook" not in name} == found | folders


_COMPILE = """
import importlib, json, sys
from pathlib import Path
family, laid_out, folder, specs = sys.argv[1:]
kernel = importlib.import_module(f"tilecast.kernels.{family}.kernel")
print(*sys.modules, flush=True)
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.families import FAMILIES, parse_config
from tilecast.kernels.spec import KernelSpec

whole = kernel.compile_gemm
def measured(kernels, *target, **options):
    content = whole(kernels, *target, **options)
    gemm = getattr(kernels, "product", kernels)
    print(json.dumps(eval(laid_out, {"gemm": gemm})), flush=True)
    return content
kernel.compile_gemm = measured
for i, (config, operands, *kind) in enumerate(json.loads(specs)):
    spec = KernelSpec(parse_config(config), GemmOperands.parse(operands), *kind)
    Path(folder, str(i)).write_bytes(FAMILIES[family].compile(spec, "kernel"))
"""


def compiled_alone(
    family: str, specs: Sequence[KernelSpec], laid_out: str, folder: Path
) -> list[Any]:
    """Compile kernels of a family in a process that loads its compiler alone (`check_sources`).

    Args:
        family: its name.
        specs: what is compiled.
        laid_out: an expression of what is wanted of each ``gemm`` once it is compiled, in JSON.
        folder: where the objects are written, the first as ``0``.

    Returns:
        What was wanted of each.
    """
    named = [(s.config.name, s.operands.text, s.batched, s.any_rows) for s in specs]
    given = family, laid_out, folder, json.dumps(named)
    loaded, *lines = python(_COMPILE, *given, **FAMILIES[family].environment).stdout.splitlines()
    check_sources(FAMILIES[family].compiler, loaded)
    return [json.loads(line) for line in lines]
