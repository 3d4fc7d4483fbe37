"""Which configs are worth measuring, ranking or compiling for a problem: those of all families."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tilecast.heuristics.config import (
    Candidates,
    ConfigColumns,
    ConfigTable,
    Geometry,
    KernelConfig,
)
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import KINDS_REMEMBERED, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.families import FAMILIES, family_of
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.rules import Rule, architecture
from tilecast.kernels.spec import KernelSpec

SPACE_VERSION = 3
"""Raised when a problem would be given other candidates of a family that models know. A model says
which these are, and ranks no others, so that a new family changes nothing for those that exist."""


def broken_rules(
    config: KernelConfig,
    operands: GemmOperands,
    hardware: Hardware,
    problem: GemmProblem | None = None,
) -> Iterator[Rule[Any]]:
    """Every rule that a config breaks, in order; those about a problem if one is given.

    Where the GPU is of another architecture, or a value on no axis of the space, nothing else is
    asked: the other rules are written for values that are.
    """
    family = family_of(config)
    if hardware.arch not in family.runs_on:
        yield architecture
        return
    geometry = family.geometry([config])
    for rule in family.config_rules:
        if rule.broken(geometry, operands, hardware).all():
            yield rule
            if rule.name == "axes":
                return
    if problem is not None:
        for rule in family.problem_rules:
            if rule.broken(geometry, problem, hardware).all():
                yield rule


def families_on(hardware: Hardware) -> list[KernelFamily]:
    """The families whose kernels run on a GPU."""
    return [family for family in FAMILIES.values() if hardware.arch in family.runs_on]


def _by_family(configs: Sequence[KernelConfig]) -> Iterator[tuple[KernelFamily, list[int]]]:
    """Each family of some configs, and where its own stand."""
    names = np.array([config.family for config in configs])
    for name in dict.fromkeys(names.tolist()):
        yield FAMILIES[name], np.flatnonzero(names == name).tolist()


def mma_efficiency(table: ConfigTable, operands: GemmOperands) -> np.ndarray:
    """`KernelFamily.mma_efficiency` of all configs of a table."""
    shares = np.empty(len(table.configs))
    for family, rows in _by_family(table.configs):
        columns = ConfigColumns(*table.values[:, rows])
        shares[rows] = family.mma_efficiency(columns, operands)
    return shares


def split_apart(table: ConfigTable) -> np.ndarray:
    """Which configs of a table split k as `KernelFamily.splits_apart` says; bool [configs]."""
    found = table.columns.split_k > 1
    for family, rows in _by_family(table.configs):
        found[rows] &= family.splits_apart
    return found


@lru_cache(maxsize=KINDS_REMEMBERED)
def families_in(table: ConfigTable) -> frozenset[str]:
    """The names of the families of a table's configs."""
    return frozenset(config.family for config in table.configs)


def config_table(configs: Iterable[KernelConfig], operands: GemmOperands) -> ConfigTable:
    """The columns of some configs, whatever their families and whether or not they are valid."""
    listed = tuple(configs)
    values = np.empty((len(ConfigColumns.__dataclass_fields__), len(listed)))
    for family, rows in _by_family(listed):
        values[:, rows] = _values(family, family.geometry([listed[r] for r in rows]), operands)
    return ConfigTable(listed, values)


def _values(family: KernelFamily, geometry: Geometry, operands: GemmOperands) -> np.ndarray:
    columns = (*vars(geometry).values(), *family.resources(geometry, operands))
    return np.array(columns, np.float64)


@lru_cache(maxsize=KINDS_REMEMBERED)
def family_space(family: KernelFamily, operands: GemmOperands, hardware: Hardware) -> ConfigTable:
    """What a family's rules leave of the points of its axes; nothing where it is for other GPUs."""
    geometry = family.points(operands, hardware)
    for rule in family.config_rules:
        broken = rule.broken(geometry, operands, hardware)
        geometry = geometry.at(~broken) if broken.any() else geometry
    configs = tuple(family.configs(geometry))
    return ConfigTable(configs, _values(family, geometry, operands))


def rules_applied(
    family: KernelFamily, operands: GemmOperands, hardware: Hardware, problem: GemmProblem | None
) -> tuple[int, list[tuple[Rule[Any], int]]]:
    """How many configs there are, and how many of them each rule in turn leaves.

    For a problem these are the configs of the space and the rules about problems; for none the
    points of the axes and the other rules.
    """
    subject: Any = operands if problem is None else problem
    rules: Sequence[Rule[Any]] = family.config_rules if problem is None else family.problem_rules
    configs = (
        family.points(operands, hardware)
        if problem is None
        else family_space(family, operands, hardware).columns
    )
    count, kept = len(configs), []
    for rule in rules:
        configs = configs.at(~rule.broken(configs, subject, hardware))
        kept.append((rule, len(configs)))
    return count, kept


def stock_candidates(
    operands: GemmOperands, hardware: Hardware, candidates: Collection[KernelConfig]
) -> list[KernelConfig]:
    """The candidates that stand for the kernels of ``cutlass.operators``, in its order."""
    stock = (config for f in families_on(hardware) for config in f.stock(operands, hardware))
    return [config for config in stock if config in candidates]


def space(
    operands: GemmOperands, hardware: Hardware, families: Iterable[str] | None = None
) -> ConfigTable:
    """Every config that compiles and runs for operands on a GPU and that no pilot excluded.

    Args:
        operands: what is multiplied.
        hardware: the GPU.
        families: the names of those that are asked for; others than those of the GPU have no
            configs. All where left out.

    Raises:
        TilecastError: no family multiplies these operands on this GPU.
    """
    return _space(operands, hardware, _with_configs(operands, hardware, families))


def _with_configs(
    operands: GemmOperands, hardware: Hardware, families: Iterable[str] | None
) -> tuple[KernelFamily, ...]:
    """The families that multiply operands on a GPU, of all or of some."""
    wanted = FAMILIES if families is None else frozenset(families)
    named = tuple(family for family in FAMILIES.values() if family.name in wanted)
    return _multiplying(operands, hardware, named)


@lru_cache(maxsize=KINDS_REMEMBERED)
def _multiplying(
    operands: GemmOperands, hardware: Hardware, families: tuple[KernelFamily, ...]
) -> tuple[KernelFamily, ...]:
    found = tuple(
        family
        for family in families
        if hardware.arch in family.runs_on and family_space(family, operands, hardware).configs
    )
    if not found:
        raise TilecastError(
            f"no kernel multiplies {operands} on {hardware.name}; allowed: operands that "
            "`tilecast space --operands` counts configs for, such as bf16:rcr"
        )
    return found


@lru_cache(maxsize=KINDS_REMEMBERED)
def _space(
    operands: GemmOperands, hardware: Hardware, families: tuple[KernelFamily, ...]
) -> ConfigTable:
    tables = [family_space(family, operands, hardware) for family in families]
    return ConfigTable(
        tuple(config for table in tables for config in table.configs),
        np.concatenate([table.values for table in tables], axis=1),
    )


def candidates(
    problem: GemmProblem,
    hardware: Hardware,
    *,
    invariant: bool = False,
    families: Iterable[str] | None = None,
) -> Candidates:
    """The configs of the space that can pay for a problem, in the order of the space.

    Args:
        problem: what is multiplied.
        hardware: the GPU.
        invariant: whether to leave only those whose kernels give a row the same bits in every
            batch, and all of them the same.
        families: as of `space`.

    Raises:
        TilecastError: no family multiplies its operands on this GPU.
    """
    asked = _with_configs(problem.operands, hardware, families)
    return remembered(problem, hardware, invariant, asked)


@lru_cache(maxsize=4096)
def remembered(
    problem: GemmProblem, hardware: Hardware, invariant: bool, families: tuple[KernelFamily, ...]
) -> Candidates:
    """The `candidates` of some families that multiply the problem's operands on the GPU."""
    broken = []
    for family in families:
        columns = family_space(family, problem.operands, hardware).columns
        excluded = np.zeros(len(columns), bool)
        for rule in family.problem_rules:
            excluded |= rule.breaks(columns, problem, hardware)
            if excluded.all():  # Most problems have none of a family for few tiles.
                break
        for rule in family.invariant_rules if invariant else ():
            excluded |= rule.breaks(columns, problem.operands, hardware)
        broken.append(excluded)
    table = _space(problem.operands, hardware, families)
    return Candidates(table, np.flatnonzero(~np.concatenate(broken)))


def spec_for(config: KernelConfig, problem: GemmProblem, any_rows: bool = False) -> KernelSpec:
    """The kernel that runs a config on a problem."""
    return KernelSpec(config, problem.operands, problem.batched, any_rows)
