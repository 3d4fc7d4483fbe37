"""What QuACK's families share as families: configs as columns, compiling, launching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from tilecast.heuristics.config import Geometry, KernelConfig
from tilecast.kernels.spec import KernelSpec

Config = TypeVar("Config", bound=KernelConfig)

PACKAGES = ("nvidia-cutlass-dsl", "quack-kernels", "apache-tvm-ffi")
"""What QuACK's kernels are compiled by."""
ENVIRONMENT = {"CUTE_DSL_ARCH": "sm_120a"}
"""The GPU that the DSL is to take for this host's: one that no family is for. Into one that kernels
are for it would load each that it compiles; with none named it asks the driver, which makes it
unfit to be forked."""


def launch_with(
    function: Callable[..., object], spec: KernelSpec, clusters: int
) -> Callable[..., object]:
    """What launches a loaded kernel as ``launch(a, b, out, *extras)``, on so many clusters."""
    if spec.operands.extras:
        return lambda a, b, out, *extras: function(a, b, out, extras, clusters)
    return lambda a, b, out: function(a, b, out, clusters)


def with_stages(points: Geometry, stages: np.ndarray, inner: int) -> Geometry:
    """Points with other numbers of stages, but no fewer, in the order of their configs.

    What does not fit with those that they have breaks the rule of shared memory. Of the points each
    ``inner`` in turn differ only in knobs that configs are compared by after the stages.
    """
    stages = np.maximum(stages, points.stages)
    outer = np.arange(len(points)) // inner
    return replace(points, stages=stages).at(np.lexsort((stages, outer)))


def configs_of(kind: type[Config], c: Geometry) -> list[Config]:
    """The configs of a family in the rows of columns, given their class."""
    columns = vars(c) | {
        "schedule": np.where(c.ping_pong, "pong", "coop"),
        "raster": np.where(c.raster_m, "m", "n"),
        "swap_ab": c.swap_ab.astype(bool),
    }
    knobs = (columns[knob.name].tolist() for knob in fields(kind))
    return [kind(*values) for values in zip(*knobs, strict=True)]


def columns_of(configs: Sequence[Any]) -> Geometry:
    """The columns of some configs of a family; 1 for what is no knob of theirs."""
    names = [column.name for column in fields(Geometry)]
    columns = {name: np.array([getattr(one, name, 1) for one in configs]) for name in names}
    return Geometry(**columns | {"raster_m": np.array([one.raster == "m" for one in configs])})
