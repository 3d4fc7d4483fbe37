"""Several kernels by name, of which the model picks one for the extents of each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch

from tilecast.heuristics.errors import NotNow
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.layout import padded
from tilecast.inductor_hook.run.in_torch import in_torch
from tilecast.inductor_hook.run.static import StaticMatmul, begin, named_specs
from tilecast.kernels.spec import KernelSpec

REMEMBERED = 4096
"""Shapes of A whose kernel is kept."""


class DynamicMatmul:
    """A product with a symbolic extent.

    Torch multiplies the extents for which cuBLAS is expected to be faster.
    """

    def __init__(
        self,
        specs: Sequence[KernelSpec],
        model: str,
        power: str,
        digest: str,
        invariant: bool = False,
    ):
        """Take what may run, and the model that chooses.

        Args:
            specs: one at least; they differ in their configs alone.
            model: its folder; "" for the shipped one.
            power: the objective.
            digest: its `tilecast.inductor_hook.settings.model_digest`; another one does not choose.
            invariant: whether rows have to be the same in every batch: torch multiplies nothing.
        """
        self.matmuls = {spec.config: StaticMatmul(spec) for spec in specs}
        self.operands = specs[0].operands
        self._model, self._power, self._digest = model, power, digest
        self._invariant = invariant
        self._chosen: dict[tuple[int, ...], Callable[..., None]] = {}

    @classmethod
    def named(
        cls,
        configs: Sequence[str],
        operands: str,
        batched: bool,
        any_rows: bool = False,
        **model: Any,
    ) -> Self:
        """As generated code makes one: of names instead of objects."""
        specs = named_specs(configs, operands, batched, any_rows)
        begin(specs)
        return cls(specs, **model)

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras: torch.Tensor | float
    ) -> None:
        """Write to ``out`` what the operands ask for; see `StaticMatmul`."""
        # n and k are fixed where this was generated: the shape of A tells all that varies.
        matmul = self._chosen.get(a.shape) or self._choose(a, b)
        matmul(a, b, out, *extras)

    def _choose(self, a: torch.Tensor, b: torch.Tensor) -> Callable[..., None]:
        try:
            chosen = self._best(a, b)
        # Any of them multiplies correctly.
        except Exception as error:
            what = "choosing a kernel for a dynamic extent"
            telemetry.warn_once(what, error, then="the first tilecast kernel is used")
            chosen = next(iter(self.matmuls.values()))
            if isinstance(error, NotNow):
                return chosen
        if len(self._chosen) >= REMEMBERED:
            self._chosen.clear()
        self._chosen[tuple(a.shape)] = chosen
        return chosen

    def _best(self, a: torch.Tensor, b: torch.Tensor) -> Callable[..., None]:
        """The kernel that the model ranks first for these extents, or torch."""
        if 0 in a.shape:
            return lambda *operands: None  # a product without rows, or a batch of none
        # Only here: graphs whose extents are fixed need no model.
        from tilecast.inductor_hook.select import selection
        from tilecast.inductor_hook.settings import Settings

        operands = self.operands
        *batch, m, k = a.shape
        n = stored = b.shape[-1]
        if operands.out.major == "row":
            stored = padded(n, operands.out.dtype.bits // 8)
        problem = GemmProblem(m, stored, k, *batch, operands=operands)
        settings = Settings(
            1, self._model or None, self._power, digest=self._digest, invariant=self._invariant
        )
        gpu = selection.hardware_of(a.get_device(), settings)
        choice = selection.decided(settings, problem, gpu, stored != n)
        if choice.deferred:
            return in_torch(operands)
        config = choice.prediction.config
        if config not in self.matmuls:
            (config,) = selection.ranked(settings, problem, gpu, tuple(self.matmuls), 1)
        return self.matmuls[config]
