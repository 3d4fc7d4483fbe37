"""What identifies a compiled kernel: everything its code depends on, and nothing of m, n, k."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib.metadata import version

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.families import FAMILIES, family_of


@dataclass(frozen=True)
class KernelSpec:
    """One kernel to compile: a config for given operands on one architecture."""

    config: KernelConfig
    """Tile, cluster, pipeline and schedule."""
    operands: GemmOperands
    """Dtypes and majors."""
    batched: bool = False
    """Whether operands carry a leading batch extent."""
    any_rows: bool = False
    """Whether rows of out may begin anywhere, not only at multiples of 16 bytes."""

    @staticmethod
    def for_problem(
        config: KernelConfig, problem: GemmProblem, any_rows: bool = False
    ) -> KernelSpec:
        """The kernel that runs ``config`` on ``problem``: one object, as its key takes time."""
        return _spec(config, problem.operands, problem.batch > 1, any_rows)

    @property
    def arch(self) -> str:
        """Target of the compiler."""
        return family_of(self.config).arch

    @cached_property
    def key(self) -> str:
        """Digest of the facts, 32 hexadecimal digits."""
        return key_of(self.facts())

    @property
    def symbol(self) -> str:
        """What its object exports; unique, so that many objects load into one process."""
        return f"tilecast_{self.key}"

    def facts(self) -> dict[str, object]:
        """The spec and what else its code depends on, as plain data."""
        return {
            "config": self.config.name,
            "operands": self.operands.text,
            "batched": self.batched,
            "any_rows": self.any_rows,
            "extras": [str(extra) for extra in self.operands.extras],
            "arch": self.arch,
            # Objects are loaded by the host: they are its code, too.
            "host": platform.machine(),
            **family_facts(self.config.family),
        }

    def __str__(self) -> str:
        """Config and operands."""
        return f"{self.config} for {self.operands}"


@lru_cache(maxsize=1 << 16)
def _spec(
    config: KernelConfig, operands: GemmOperands, batched: bool, any_rows: bool
) -> KernelSpec:
    return KernelSpec(config, operands, batched, any_rows)


def key_of(facts: Mapping[str, object]) -> str:
    """The key of the kernel that some facts describe: their digest, 32 hexadecimal digits."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_current(facts: Mapping[str, object]) -> bool:
    """Whether a kernel of these facts was compiled as it would be here and now."""
    family = str(facts.get("family"))
    return family in FAMILIES and (
        {"host": platform.machine(), **family_facts(family)}.items() <= facts.items()
    )


@cache
def family_facts(family: str) -> dict[str, object]:
    """What all kernels of a family depend on: versions of the compiler, and our own source."""
    digest = hashlib.sha256()
    for path in FAMILIES[family].sources:
        digest.update(path.read_bytes())
    packages = FAMILIES[family].packages
    return {
        "family": family,
        "versions": {name: version(name) for name in packages},
        "sources": digest.hexdigest(),
    }


@cache
def toolchain() -> str:
    """What all kernels depend on, those of every family: a digest."""
    facts = [family_facts(name) for name in FAMILIES]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
