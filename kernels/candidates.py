"""Which configs are worth measuring, ranking or compiling for a problem: those of all families."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.config_table import Candidates, ConfigTable
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import KINDS_REMEMBERED, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.families import FAMILIES, family_of
from tilecast.kernels.family import KernelFamily

SPACE_VERSION = 3
"""Raised when a problem would be given other candidates."""


def config_table(configs: Iterable[KernelConfig], operands: GemmOperands) -> ConfigTable:
    """The columns of some configs, whatever their families and whether or not they are valid."""
    families = ((config, family_of(config)) for config in configs)
    return ConfigTable.of(
        (config, family.geometry(config), family.resources(config, operands))
        for config, family in families
    )


@lru_cache(maxsize=KINDS_REMEMBERED)
def _spaces(
    operands: GemmOperands, hardware: Hardware
) -> tuple[tuple[KernelFamily, ConfigTable], ...]:
    """Each family that multiplies operands on a GPU, with its space."""
    fit = (family for family in FAMILIES.values() if family.arch == hardware.arch)
    tables = ((f, config_table(f.configs(operands, hardware), operands)) for f in fit)
    return tuple((family, table) for family, table in tables if table.configs)


def multiplies(operands: GemmOperands, hardware: Hardware) -> bool:
    """Whether any family multiplies operands on a GPU, with all that they fuse."""
    return bool(_spaces(operands, hardware))


@lru_cache(maxsize=KINDS_REMEMBERED)
def space(operands: GemmOperands, hardware: Hardware) -> ConfigTable:
    """Every config that compiles and runs for operands on a GPU and that no pilot excluded.

    Args:
        operands: dtypes and majors.
        hardware: the GPU.

    Raises:
        TilecastError: no family multiplies these operands on this GPU.
    """
    tables = [table for _, table in _spaces(operands, hardware)]
    if not tables:
        raise TilecastError(
            f"no kernel multiplies {operands} on {hardware.name}; allowed: operands that "
            "`tilecast space --operands` counts configs for, such as bf16:rcr"
        )
    return ConfigTable(
        tuple(config for table in tables for config in table.configs),
        np.concatenate([table.values for table in tables], axis=1),
    )


@lru_cache(maxsize=4096)
def candidates(problem: GemmProblem, hardware: Hardware) -> Candidates:
    """The configs of the space that can pay for a problem, in the order of the space.

    Args:
        problem: what is to be multiplied.
        hardware: the GPU.

    Raises:
        TilecastError: no family multiplies its operands on this GPU.
    """
    table = space(problem.operands, hardware)
    excluded = [
        family.excluded(problem, part.columns, hardware)
        for family, part in _spaces(problem.operands, hardware)
    ]
    return Candidates(table, np.flatnonzero(~np.concatenate(excluded)))
