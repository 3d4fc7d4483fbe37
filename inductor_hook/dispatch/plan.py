"""How an eager multiplication is done: by which kernel of ours, or by torch."""

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
from tilecast.heuristics.operands import GemmOperands, TensorSpec
from tilecast.heuristics.problem import ALIGNMENT_BYTES, GemmProblem
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.layout import Addend, Scale, adding, major, padded, scaling
from tilecast.inductor_hook.failures import Failures
from tilecast.inductor_hook.run.launcher import StaticMatmul, row
from tilecast.inductor_hook.select.selection import decided, gpu_of, runnable
from tilecast.inductor_hook.settings import Settings, of_environment
from tilecast.kernels.spec import KernelSpec

_REMEMBERED = 4096
"""Problems whose plan is kept, those used last."""
_empty: Callable[..., torch.Tensor] = vars(guards)["_empty_strided_cuda"]
"""Allocates on the current device; takes a third of the host's time that ``torch.empty`` takes, so
that code from Inductor calls it, too."""


class Product(NamedTuple):
    """What is asked for beside A and B."""

    rank: int = 2
    """Dimensions of A, B and the result."""
    out: torch.dtype | None = None
    """Type of the result; None for A's, which B then shares."""
    scales: tuple[Scale, ...] = ()
    """Those of A and B, or none."""
    fast: bool = True
    """Whether fp8 is added up without promotion, ``use_fast_accum`` of ``torch._scaled_mm``."""
    steps: tuple[str, ...] = ()
    """Those of the epilogue."""


class Plan(NamedTuple):
    """How a multiplication is done by us."""

    kernel: StaticMatmul
    """The kernel."""
    shape: tuple[int, ...]
    """Shape of its result."""
    strides: tuple[int, ...]
    """Strides of its result."""
    dtype: torch.dtype
    """Type of its result."""
    steps: tuple[str, ...]
    """With which the kernel adds something itself."""

    def added(
        self, bias: torch.Tensor, alpha: float, beta: float
    ) -> tuple[torch.Tensor | float, ...]:
        """What the kernel takes for its steps, in order."""
        if self.steps == ("bias",):
            return (row(bias),)
        given = {"alpha": (float(alpha),), "c": (bias,), "beta-c": (bias, float(beta))}
        return tuple(value for step in self.steps for value in given[step])

    def launch(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None,
        *extras: torch.Tensor | float,
    ) -> torch.Tensor:
        """The product, in ``out`` where that is given; extras as the kernel's operands have them.

        A scale or a bias is a vector.
        """
        device = a.get_device()
        if torch._C._cuda_getDevice() != device:
            with torch.cuda.device(device):
                return self.launch(a, b, out, *extras)
        if out is None:
            out = _empty(self.shape, self.strides, self.dtype)
        self.kernel(a, b, out, *extras)
        return out


@dataclass(frozen=True, eq=False)
class Planner:
    """Who has multiplications planned. Equal to itself alone, as it is part of every call's key."""

    level: int = logging.WARNING
    """Of the messages that torch multiplies, and why."""
    settings: Settings | None = None
    """Which model decides; the one that the environment names when left out."""

    def plan(
        self,
        product: Product,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        alpha: float = 1,
        beta: float = 1,
    ) -> Plan | None:
        """How operands are multiplied; None where torch does it.

        Args:
            product: what is asked for; its steps may come of the bias.
            a: A.
            b: B.
            out: what is written to; a new tensor when left out.
            bias: what is added, if anything is.
            alpha: factor of the product.
            beta: factor of what is added.
        """
        try:
            plan = _plan(
                *(self, product),
                *(a.shape, a.stride(), a.dtype, a.get_device()),
                *(b.shape, b.stride(), b.dtype, b.get_device()),
                None if out is None else out.stride(),
                *(() if bias is None else (*_seen(bias), alpha, beta)),
            )
        # Whatever goes wrong in there, torch multiplies.
        except Exception as error:
            telemetry.warn_once("choosing a kernel", error)
            return None
        if plan is None:
            return None
        if out is None:
            return plan if self._aligned(a.data_ptr() | b.data_ptr()) else None
        # Any other output is refused or resized by torch, in its own words.
        fits = out.shape == plan.shape and out.dtype == plan.dtype and out.device == a.device
        aligned = fits and self._aligned(a.data_ptr() | b.data_ptr() | out.data_ptr())
        return plan if aligned else None

    def leaves(self, kind: str, reason: str) -> None:
        """Tell, once, that and why torch multiplies."""
        message = f"a multiplication goes to torch, as others like it: {reason}"
        telemetry.say_once(kind, message, self.level)

    def _aligned(self, address: int) -> bool:
        """Whether TMA can read from an address, or from all of several or-ed together."""
        if address % ALIGNMENT_BYTES == 0:
            return True
        self.leaves("alignment", f"an operand starts at no multiple of {ALIGNMENT_BYTES} bytes")
        return False


@cache
def multiplied(planner: Planner, dtype: torch.dtype) -> bool:
    """Whether kernels of ours multiply a type; the planner tells of one that none does.

    For those who ask at every call: `Planner.plan` says the same, but takes longer to.
    """
    try:
        known = dtype_of_torch(dtype).speed is not None
    except TilecastError:
        known = False
    if not known:
        planner.leaves("dtype", f"an operand is {dtype}; allowed: 8 and 16 bits")
    return known


def _seen(bias: torch.Tensor) -> tuple:
    """What counts of something that is added: shape, strides, dtype, device and alignment."""
    start = bias.data_ptr() % ALIGNMENT_BYTES
    return (bias.shape, bias.stride(), bias.dtype, bias.get_device(), start)


_failures = Failures()


@lru_cache(_REMEMBERED)
def _plan(planner: Planner, product: Product, *what: Any) -> Plan | None:
    """What `_choose` says, remembered; what it raises is no decision, and is tried again.

    What it takes comes one behind the other here: a tuple in a tuple takes time to make.
    """
    a, b, out_stride, added = what[:4], what[4:8], what[8], what[9:]
    key = (planner, product, *what)
    return _failures.attempt(key, lambda: _choose(planner, product, a, b, out_stride, added))


def _choose(
    planner: Planner,
    product: Product,
    a: tuple,
    b: tuple,
    out_stride: tuple[int, ...] | None,
    added: tuple,
) -> Plan | None:
    """The plan for operands given as shape, strides, dtype and device.

    What is added is given as `_seen` and two factors, or not at all.
    """
    a_shape, _, a_dtype, device = a
    b_shape, _, b_dtype, b_device = b
    fit = (
        len(a_shape) == len(b_shape) == product.rank
        and a_shape[:-2] == b_shape[:-2]
        and a_shape[-1] == b_shape[-2]
        and (out_stride is None or len(out_stride) == product.rank)
        and b_device == device
        # Without scales torch multiplies no two types, and 8 bits only into more.
        and (product.scales or a_dtype == b_dtype)
        and (product.out or a_dtype.itemsize > 1)
    )
    if not fit:
        return None  # torch says what is wrong, or resizes out
    *batch, m, _ = a_shape
    n, dtype = b_shape[-1], product.out or a_dtype
    if added:
        along = "col" if out_stride and out_stride[-1] != 1 else "row"
        steps = _steps(added, (*batch, m, n), dtype, device, along)
        # Torch adds no matrix to what is scaled.
        if not steps or (product.scales and steps != ("bias",)):
            return None
        product = product._replace(steps=steps)
    try:
        if device < 0:
            raise TilecastError("its operands are not on a GPU")
        if out_stride and 0 in out_stride:
            raise TilecastError(
                f"out has strides {out_stride}; allowed: an element for each result"
            )
        settings = planner.settings or of_environment()
        gpu = gpu_of(device, settings)
        problem = problem_of(product, a, b, out_stride)
        if runnable(settings, problem.operands, gpu) != problem.operands:
            raise TilecastError(f"no kernel, or no model, adds as {problem.operands} asks for")
        any_rows = problem.n != n
        choice = decided(settings, problem, gpu, any_rows)
    except NotNow:
        raise
    except TilecastError as error:
        planner.leaves("eager", str(error))
        return None
    if choice.deferred:
        # The model's own word, and no lack of anything.
        telemetry.say_once("library", "the model leaves some eager products to torch", logging.INFO)
        return None
    batched = product.rank == 3
    spec = KernelSpec(choice.prediction.config, problem.operands, batched, any_rows)
    strides = (*(m * n for _ in batch), n, 1)
    return Plan(StaticMatmul(spec), (*batch, m, n), strides, dtype, product.steps)


def _steps(
    added: tuple, shape: tuple[int, ...], dtype: torch.dtype, device: int, along: str
) -> tuple[str, ...]:
    """Steps with which the kernel of a product adds something itself; none where none does.

    Args:
        added: `_seen` and the factors of the product and of what is added.
        shape: of the product.
        dtype: of the product.
        device: of the product.
        along: `tilecast.inductor_hook.describe.layout.major` of the product.
    """
    extents, strides, of, where, start, alpha, beta = added
    if where != device:
        return ()  # torch says what is wrong
    kind = Addend(extents, strides, of, start).kind(shape, dtype, along)
    if kind is None:
        what = f"{of} of {len(extents)} dimensions to a product in {dtype}"
        telemetry.say_once("bias", f"torch adds {what}, as no kernel of ours does", logging.INFO)
    return adding(kind, alpha, beta)


def problem_of(
    product: Product, a: tuple, b: tuple, out_stride: tuple[int, ...] | None = None
) -> GemmProblem:
    """What is asked of the model, with longer rows where TMA does not store the result's own.

    Args:
        product: what is asked for beside A and B.
        a: A's shape, strides, dtype and device.
        b: those of B.
        out_stride: of an ``out`` that was given.

    Raises:
        TilecastError: no kernel reads operands of these strides, types or scales.
    """
    (*batch, m, k), _, a_dtype, _ = a
    n, out_dtype = b[0][-1], product.out or a_dtype
    operands = _operands(product, a, b, out_dtype, out_stride)
    # Torch refuses int8 and fp8 with such an n, ready or not.
    keeps = out_stride or a_dtype.itemsize == 1
    written = n if keeps else padded(n, out_dtype.itemsize)
    return GemmProblem(m, written, k, *batch, operands=operands)


def _operands(
    product: Product,
    a: tuple,
    b: tuple,
    out_dtype: torch.dtype,
    out_stride: tuple[int, ...] | None,
) -> GemmOperands:
    """What a kernel would be compiled for.

    Raises:
        TilecastError: no kernel reads operands of these strides, types or scales.
    """
    (a_shape, a_stride, a_dtype, _), (b_shape, b_stride, b_dtype, _) = a, b
    shape = (*a_shape[:-1], b_shape[-1])
    out_major = major("out", shape, out_stride, out_dtype.itemsize) if out_stride else "row"
    operands = GemmOperands.product(
        TensorSpec(dtype_of_torch(a_dtype), major("A", a_shape, a_stride, a_dtype.itemsize)),
        TensorSpec(dtype_of_torch(b_dtype), major("B", b_shape, b_stride, b_dtype.itemsize)),
        TensorSpec(dtype_of_torch(out_dtype), out_major),
    )
    if product.scales:
        of_a, of_b = product.scales
        scales = scaling(of_a, of_b, a_shape[0], b_shape[1])
        operands = operands.scaled(scales, product.fast)
    return operands.then(*product.steps)
