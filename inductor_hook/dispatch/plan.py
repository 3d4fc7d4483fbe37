"""Which tilecast kernel does an eager product, or that torch does it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch._C._dynamo import guards

from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.errors import NotNow, TilecastError
from tilecast.heuristics.problem import ALIGNMENT_BYTES
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.arguments import launch_arguments
from tilecast.inductor_hook.describe.layout import Stored, adding
from tilecast.inductor_hook.describe.product import Product, Request
from tilecast.inductor_hook.failures import Failures
from tilecast.inductor_hook.run.static import StaticMatmul
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import Settings, of_environment
from tilecast.kernels.spec import KernelSpec

_REMEMBERED = 4096
"""Problems whose plan is kept, those used last."""
_empty: Callable[..., torch.Tensor] = vars(guards)["_empty_strided_cuda"]
"""Allocates on the current device; takes a third of the host's time that ``torch.empty`` takes, so
that code from Inductor calls it, too."""


class Plan(NamedTuple):
    """A tilecast kernel for a product, and the tensor that it writes."""

    kernel: StaticMatmul
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a new tensor; an ``out`` may have others."""
    dtype: torch.dtype

    def launch(self, request: Request, out: torch.Tensor | None = None) -> torch.Tensor:
        """The product, in ``out`` where that is given."""
        a, extras = request.a, self.kernel.operands.extras
        device = a.get_device()
        if torch._C._cuda_getDevice() != device:
            with torch.cuda.device(device):
                return self.launch(request, out)
        if out is None:
            out = _empty(self.shape, self.strides, self.dtype)
        self.kernel(
            a, request.b, out, *(launch_arguments(extras, request.values) if extras else ())
        )
        return out


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans eager products. Equal to itself alone, as it is part of the key of every plan."""

    level: int = logging.WARNING
    """Level of the messages that say why torch multiplies."""
    settings: Settings | None = None
    """Which model decides; the one that the environment names when left out."""

    def plan(self, request: Request, out: torch.Tensor | None = None) -> Plan | None:
        """The kernel for a request that writes to ``out``, if given; None where torch does it."""
        product, a, b, bias, alpha, beta, _ = request
        try:
            plan = _plan(
                *(self, product, a.get_device(), b.get_device()),
                *(a.shape, a.stride(), a.dtype),
                *(b.shape, b.stride(), b.dtype),
                None if out is None else out.stride(),
                *(() if bias is None else (*_addend(bias), bias.get_device(), alpha, beta)),
            )
        # Whatever goes wrong in there, torch multiplies.
        except Exception as error:
            telemetry.warn_once("choosing a kernel", error)
            return None
        if plan is None:
            return None
        if out is None:
            return plan if self._aligned(a.data_ptr() | b.data_ptr()) else None
        # Torch refuses or resizes any other output, in its own words.
        fits = out.shape == plan.shape and out.dtype == plan.dtype and out.device == a.device
        aligned = fits and self._aligned(a.data_ptr() | b.data_ptr() | out.data_ptr())
        return plan if aligned else None

    def explain(self, kind: str, reason: str) -> None:
        """Say, once for each reason, that torch multiplies and why."""
        message = f"a multiplication goes to torch, as others like it: {reason}"
        telemetry.say_once(kind, message, self.level)

    def _aligned(self, address: int) -> bool:
        """Whether TMA can read from an address, or from all of several or-ed together."""
        if address % ALIGNMENT_BYTES == 0:
            return True
        self.explain("alignment", f"an operand starts at no multiple of {ALIGNMENT_BYTES} bytes")
        return False


@cache
def multiplies_dtype(planner: Planner, dtype: torch.dtype) -> bool:
    """Whether tilecast kernels multiply a type; if not, the planner says so.

    It is asked at every call, and takes less time than `Planner.plan`, which finds the same.
    """
    try:
        known = dtype_of_torch(dtype).speed is not None
    except TilecastError:
        known = False
    if not known:
        planner.explain("dtype", f"an operand is {dtype}; allowed: 8 and 16 bits")
    return known


def _addend(bias: torch.Tensor) -> Stored:
    # The address modulo what alignment asks for: it is part of the key.
    return Stored.of(bias, bias.data_ptr() % ALIGNMENT_BYTES)


_failures = Failures()


@lru_cache(_REMEMBERED)
def _plan(planner: Planner, product: Product, device: int, other: int, *key: Any) -> Plan | None:
    """What `_choose` decides, remembered; what it raises is no decision, and is tried again.

    The parts of the key are arguments of their own: to make nested tuples takes time at every call.
    """
    a, b, out_strides = Stored(*key[:3]), Stored(*key[3:6]), key[6]
    added = (Stored(*key[7:11]), *key[11:]) if key[7:] else None
    if device != other:
        return None  # torch says what is wrong
    return _failures.attempt(
        (planner, product, device, *key),
        lambda: _choose(planner, product, device, a, b, out_strides, added),
    )


def _choose(
    planner: Planner,
    product: Product,
    device: int,
    a: Stored,
    b: Stored,
    out_strides: tuple[int, ...] | None,
    added: tuple[Stored, int, float, float] | None,
) -> Plan | None:
    """The plan for a product; ``added`` is the addend, its device, alpha and beta."""
    fits = (
        len(a.shape) == len(b.shape) == product.rank
        and a.shape[:-2] == b.shape[:-2]
        and a.shape[-1] == b.shape[-2]
        and (out_strides is None or len(out_strides) == product.rank)
        # Without scales torch multiplies no two types, and 8 bits only into more.
        and (product.scales or a.dtype == b.dtype)
        and (product.out or a.dtype.itemsize > 1)
    )
    if not fits:
        return None  # torch says what is wrong, or resizes out
    *batch, m, _ = a.shape
    n, dtype = b.shape[-1], product.out or a.dtype
    if added:
        addend, its_device, alpha, beta = added
        along = "col" if out_strides and out_strides[-1] != 1 else "row"
        kind = addend.added_as((*batch, m, n), dtype, along)
        steps = adding(kind, alpha, beta)
        if kind is None:
            what = f"{addend.dtype} of {len(addend.shape)} dimensions to a product in {dtype}"
            telemetry.say_once("bias", f"torch adds {what}: no tilecast kernel does", logging.INFO)
        # Torch refuses two devices, and adds no matrix to what is scaled.
        if its_device != device or not steps or (product.scales and steps != ("bias",)):
            return None
        product = product._replace(steps=steps)
    try:
        if device < 0:
            raise TilecastError("its operands are not on a GPU")
        if out_strides and 0 in out_strides:
            raise TilecastError(
                f"out has strides {out_strides}; allowed: an element for each result"
            )
        settings = planner.settings or of_environment()
        gpu = selection.hardware_of(device, settings)
        problem = product.problem(a, b, out_strides)
        any_rows = problem.n != n
        choice = selection.decided(settings, problem, gpu, any_rows)
    except NotNow:
        raise
    except TilecastError as error:
        planner.explain("eager", str(error))
        return None
    if choice.deferred:
        # The model decides so, and nothing is missing.
        telemetry.say_once(
            "library", "the model expects torch to be faster for some eager products", logging.INFO
        )
        return None
    spec = KernelSpec(choice.prediction.config, problem.operands, product.rank == 3, any_rows)
    strides = (*(m * n for _ in batch), n, 1)
    return Plan(StaticMatmul(spec), (*batch, m, n), strides, dtype)
