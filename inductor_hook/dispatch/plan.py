"""Which tilecast kernel does an eager product, or that torch does it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from threading import Lock
from typing import Any

import torch
from torch._C._dynamo import guards

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.errors import NotNow, TilecastError
from tilecast.heuristics.operands import Extra
from tilecast.heuristics.problem import ALIGNMENT_BYTES
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.arguments import launch_arguments
from tilecast.inductor_hook.describe.layout import Stored, adding
from tilecast.inductor_hook.describe.product import Product, Request
from tilecast.inductor_hook.run.static import kernel_now
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import Settings, of_environment
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.launch import Launch
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime import unmeasured

_REMEMBERED = 4096
"""Problems whose plan is kept, those used last."""
_empty: Callable[..., torch.Tensor] = vars(guards)["_empty_strided_cuda"]
"""Allocates on the current device; takes a third of the host's time that ``torch.empty`` takes, so
that code from Inductor calls it, too."""


@dataclass(slots=True)
class Plan:
    """A tilecast kernel for a product, and the tensor that it writes."""

    kernel: Launch | None
    """None if it was not there when this was planned, or has failed."""
    config: KernelConfig
    extras: tuple[Extra, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a new tensor; an ``out`` may have others."""
    dtype: torch.dtype

    def launch(
        self, kernel: Launch, request: Request, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The product, in ``out`` where that is given."""
        a, extras = request.a, self.extras
        device = a.get_device()
        if torch._C._cuda_getDevice() != device:
            with torch.cuda.device(device):
                return self.launch(kernel, request, out)
        if out is None:
            out = _empty(self.shape, self.strides, self.dtype)
        kernel(a, request.b, out, *(launch_arguments(extras, request.values) if extras else ()))
        return out


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans eager products. Equal to itself alone, as it is part of the key of every plan."""

    level: int = logging.WARNING
    """Level of the messages that say why torch multiplies."""
    settings: Settings | None = None
    """Which model decides; the one that the environment names when left out."""
    waits: bool = True
    """Whether the first call of a problem waits for its kernel to be compiled."""
    lock: Lock = field(default_factory=Lock)
    """Held while a problem is decided, so that threads that meet it together do alike."""

    def multiply(self, request: Request, out: torch.Tensor | None = None) -> torch.Tensor | None:
        """The product by a tilecast kernel, in ``out`` if given; None where torch has to do it.

        What torch does once for want of a kernel it does until `decide_again`, so that no problem
        changes its kernel meanwhile.
        """
        product, a, b, bias, alpha, beta, *_ = request
        key = (
            *(self, product, a.get_device(), b.get_device()),
            *(a.shape, a.stride(), a.dtype),
            *(b.shape, b.stride(), b.dtype),
            None if out is None else out.stride(),
            *(() if bias is None else _addend(bias, alpha, beta)),
        )
        plan = None
        try:
            plan = _plan(*key)
            kernel = plan and plan.kernel
            if kernel and plan and self._takes(plan, a, b, out):
                return plan.launch(kernel, request, out)
        # Whatever goes wrong in there, torch multiplies.
        except Exception as error:
            with self.lock:
                _with_torch.add(key)
                if plan:
                    plan.kernel = None
            telemetry.warn_once(f"running {plan.config}" if plan else "choosing a kernel", error)
        return None

    def explain(self, kind: str, reason: str) -> None:
        """Say, once for each reason, that torch multiplies and why."""
        message = f"a multiplication goes to torch, as others like it: {reason}"
        telemetry.say_once(kind, message, self.level)

    def _takes(
        self, plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None
    ) -> bool:
        """Whether a kernel can read and write where these tensors are."""
        if out is None:
            return self._aligned(a.data_ptr() | b.data_ptr())
        # Torch refuses or resizes any other output, in its own words.
        fits = out.shape == plan.shape and out.dtype == plan.dtype and out.device == a.device
        return fits and self._aligned(a.data_ptr() | b.data_ptr() | out.data_ptr())

    def _aligned(self, address: int) -> bool:
        """Whether TMA can read from an address, or from all of several or-ed together."""
        if address % ALIGNMENT_BYTES == 0:
            return True
        self.explain("alignment", f"an operand starts at no multiple of {ALIGNMENT_BYTES} bytes")
        return False


@cache
def multiplies_dtype(planner: Planner, dtype: torch.dtype) -> bool:
    """Whether tilecast kernels multiply a type; if not, the planner says so.

    It is asked at every call, and takes less time than a plan, which finds the same.
    """
    try:
        known = dtype_of_torch(dtype).speed is not None
    except TilecastError:
        known = False
    if not known:
        planner.explain("dtype", f"an operand is {dtype}; allowed: 8 and 16 bits")
    return known


_OTHER = 2
"""Stands for all factors but 0 and 1: no kernel is chosen by them."""


def _addend(bias: torch.Tensor, alpha: float, beta: float) -> tuple[Any, ...]:
    """What of an addend, and of the factors of a sum, decides for a kernel."""
    # The address modulo what alignment asks for.
    stored = Stored.of(bias, bias.data_ptr() % ALIGNMENT_BYTES)
    factors = alpha if alpha == 1 else _OTHER, beta if beta in (0, 1) else _OTHER
    return (*stored, bias.get_device(), *factors)


_with_torch: set[tuple[Any, ...]] = set()
"""Keys of `_plan` for which there was no kernel when it was wanted."""


def decide_again() -> None:
    """Let problems that torch does for want of a kernel run tilecast kernels from now on.

    Until it is called a problem whose kernel was not compiled at its first call, or failed, stays
    with torch: forward and recomputed backward run the same, and so does every step. This returns
    once no kernel is being compiled. Call it between steps, on every rank behind the same step.

    Raises:
        TilecastError: there is no folder for compiled kernels.
    """
    object_builder().settle()
    _with_torch.clear()
    _plan.cache_clear()


@lru_cache(_REMEMBERED)
def _plan(planner: Planner, product: Product, device: int, other: int, *key: Any) -> Plan | None:
    """What `_choose` decides, remembered; what it raises is no decision.

    The parts of the key are arguments of their own: to make nested tuples takes time at every call.
    """
    a, b, out_strides = Stored(*key[:3]), Stored(*key[3:6]), key[6]
    added = (Stored(*key[7:11]), *key[11:]) if key[7:] else None
    if device != other:
        return None  # torch says what is wrong
    whole = (planner, product, device, other, *key)
    with planner.lock:
        if whole in _with_torch:
            return None
        plan = _choose(planner, product, device, a, b, out_strides, added)
        if plan and not plan.kernel:
            _with_torch.add(whole)
            reason = "its kernel was not there at its first call; see eager.decide_again"
            planner.explain("kernel", reason)
        return plan


def _choose(
    planner: Planner,
    product: Product,
    device: int,
    a: Stored,
    b: Stored,
    out_strides: tuple[int, ...] | None,
    added: tuple[Stored, int, float, float] | None,
) -> Plan | None:
    """The plan for a product, with its kernel if that is there, or None where no kernel does it.

    ``added`` is the addend, its device, alpha and beta.
    """
    fits = (
        (len(a.shape), len(b.shape)) == product.ranks
        and (product.groups or a.shape[:-2] == b.shape[:-2])
        and a.shape[-1] == b.shape[-2]
        and (out_strides is None or len(out_strides) == product.rank)
        # Without scales torch multiplies no two types, and 8 bits only into more.
        and (product.scales or a.dtype == b.dtype)
        and (product.out or a.dtype.itemsize > 1)
    )
    if not fits or 0 in (*a.shape, *b.shape):
        return None  # torch says what is wrong, or resizes out; or there is nothing to multiply
    shape, dtype = product.extents(a, b), product.out or a.dtype
    *batch, m, n = shape
    if added:
        addend, its_device, alpha, beta = added
        along = "col" if out_strides and out_strides[-1] != 1 else "row"
        kind = addend.added_as(shape, dtype, along)
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
        # Whatever a file of choices names: no first result is compared with torch's here.
        if selection.untried(settings, gpu):
            raise TilecastError(unmeasured.terms(gpu))
        problem = settings.posed(product.problem(a, b, out_strides))
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
    kernel = kernel_now(spec, device, wait=planner.waits)
    return Plan(kernel, spec.config, problem.operands.extras, shape, strides, dtype)
