"""What identifies a compiled kernel: everything its code depends on, and nothing of m, n, k."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmOperands, GemmProblem
from tilecast.kernels.cutlass_sm90 import resources

_SOURCES = (
    Path(__file__).with_name("cutlass_sm90") / "kernel.py",
    Path(__file__).with_name("compiler.py"),
    Path(str(resources.__file__)),
)
"""Files whose text decides what code a config compiles to; the inherited device code is pinned by
version."""


@dataclass(frozen=True)
class KernelSpec:
    """One kernel to compile: a config for given dtypes and majors on one architecture."""

    config: KernelConfig
    """Tile, cluster, pipeline and schedule."""
    operands: GemmOperands
    """Dtypes and majors."""
    batched: bool = False
    """Whether operands carry a leading batch extent."""
    arch: str = "sm_90a"
    """Target of the compiler."""

    @classmethod
    def for_problem(cls, config: KernelConfig, problem: GemmProblem) -> KernelSpec:
        """The kernel that runs ``config`` on ``problem``."""
        return cls(config, problem.operands, batched=problem.batch > 1)

    @property
    def key(self) -> str:
        """Digest of the facts and of our sources, 32 hexadecimal digits."""
        text = json.dumps(self.facts() | {"sources": _source_digest()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def facts(self) -> dict[str, object]:
        """The spec and the compiler's versions as plain data."""
        return {
            "config": self.config.name,
            "operands": asdict(self.operands),
            "batched": self.batched,
            "arch": self.arch,
            "versions": _compiler_versions(),
        }


def build_facts() -> dict[str, str]:
    """What every kernel's code depends on beside its spec: our sources and the compiler."""
    return {"kernel sources": _source_digest()[:16], **_compiler_versions()}


@cache
def _compiler_versions() -> dict[str, str]:
    return {name: version(name) for name in ("nvidia-cutlass-dsl", "nvidia-cutlass-operators")}


@cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in _SOURCES:
        digest.update(path.read_bytes())
    return digest.hexdigest()
