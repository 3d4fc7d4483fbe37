"""What generated code calls at run time: kernels by name, loaded on first use, launched per call.

Generated code imports this module alone. Importing it touches neither the DSL nor Inductor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import ADDED, GemmProblem
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.layout import padded
from tilecast.inductor_hook.failures import Failures
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.families import parse_config
from tilecast.kernels.launch import Launch, load_kernel
from tilecast.kernels.spec import KernelSpec

if TYPE_CHECKING:
    import torch

_raises: ContextVar[bool] = ContextVar("tilecast_errors_raised", default=False)
_loaded: dict[tuple[KernelSpec, int], Launch] = {}
REMEMBERED = 4096
"""Shapes that a kernel of a symbolic extent is kept for."""


@contextmanager
def errors_raised():
    """Inside, a kernel that fails raises; outside, torch multiplies in its place."""
    token = _raises.set(True)
    try:
        yield
    finally:
        _raises.reset(token)


def loaded_kernel(spec: KernelSpec, device: int) -> Launch:
    """The kernel of a spec on a device, compiled first where neither cache nor wheel has it.

    Raises:
        TilecastError: it does not compile, or its object cannot be loaded.
    """
    kernel = _loaded.get((spec, device))
    if kernel is None:
        builder = object_builder()
        builder.wait(spec)
        kernel = _loaded[spec, device] = load_kernel(spec, builder.objects, device)
    return kernel


class StaticMatmul:
    """One compiled kernel; torch where it cannot run."""

    def __init__(self, spec: KernelSpec):
        """Take what to run; nothing is loaded before the first call."""
        self.spec, self.operands = spec, spec.operands
        self._kernels: dict[int, Launch] = {}
        self._failures = Failures()

    @classmethod
    def named(cls, config: str, operands: str, batched: bool, any_rows: bool = False) -> Self:
        """From what generated code spells out: names instead of objects."""
        return cls(*_specs((config,), operands, batched, any_rows))

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras: torch.Tensor | float
    ) -> None:
        """Write to ``out`` what the operands ask for, on the current stream; see `Launch`.

        A kernel that fails is one warning.
        """
        device = out.get_device()
        try:
            (self._kernels.get(device) or self._load(device))(a, b, out, *extras)
        # Whatever loading or launching raises: a graph that compiled must run.
        except Exception as error:
            if _raises.get():
                raise
            telemetry.warn_once(f"running {self.spec.config}", error)
            _instead(self.operands, a, b, out, *extras)

    def ready(self, device: int) -> bool:
        """Whether a call on a device waits for no compiler, which begins in the background if so.

        Nor has it to load a kernel while a CUDA graph is captured, which that might end. A kernel
        that does not compile is one warning, and is tried again after a pause.
        """
        if device in self._kernels:
            return True
        if _is_capturing():
            return False
        try:
            return self._failures.attempt("compiling", lambda: object_builder().ready(self.spec))
        # Whatever it is, torch multiplies.
        except Exception as error:
            telemetry.warn_once(f"compiling {self.spec.config}", error)
            return False

    def compile(self) -> None:
        """Bring the kernel into the object cache, which a worker of Inductor does ahead of time."""
        try:
            object_builder().wait(self.spec)
        # Not a worker's business: the launcher meets it again and knows what to do.
        except Exception as error:
            telemetry.warn_once(f"compiling {self.spec.config}", error)

    def _load(self, device: int) -> Launch:
        kernel = self._failures.attempt(device, lambda: loaded_kernel(self.spec, device))
        self._kernels[device] = kernel
        return kernel


class DynamicMatmul:
    """Several compiled kernels, of which the model picks one for the extents of each call.

    Extents that the library is expected to win are multiplied by torch.
    """

    def __init__(self, specs: Sequence[KernelSpec], model: str, power: str, digest: str):
        """Take what may run, at least one kernel, and the model that chooses.

        Args:
            specs: they differ in their configs alone.
            model: its folder; "" for the shipped one.
            power: what it aims at.
            digest: its `tilecast.inductor_hook.settings.model_digest`; another one does not choose.
        """
        self.matmuls = {spec.config: StaticMatmul(spec) for spec in specs}
        self.operands = specs[0].operands
        self._model = model
        self._power = power
        self._digest = digest
        self._chosen: dict[tuple[int, ...], Callable[..., None]] = {}
        self._failures = Failures()

    @classmethod
    def named(
        cls,
        configs: Sequence[str],
        operands: str,
        batched: bool,
        any_rows: bool = False,
        **model: str,
    ) -> Self:
        """From what generated code spells out: names instead of objects."""
        return cls(_specs(configs, operands, batched, any_rows), **model)

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras: torch.Tensor | float
    ) -> None:
        """Write to ``out`` what the operands ask for; see `StaticMatmul`."""
        # n and k are fixed where this was generated: the shape of A tells all that varies.
        matmul = self._chosen.get(a.shape) or self._choose(a, b)
        matmul(a, b, out, *extras)

    def compile(self) -> None:
        """Bring every kernel into the object cache."""
        for matmul in self.matmuls.values():
            matmul.compile()

    def _choose(self, a: torch.Tensor, b: torch.Tensor) -> Callable[..., None]:
        shape = tuple(a.shape)
        try:
            chosen = self._failures.attempt(shape, lambda: self._best(a, b))
        # Any of them multiplies correctly.
        except Exception as error:
            what = "choosing a kernel for a dynamic extent"
            telemetry.warn_once(what, error, then="the first of ours is used")
            return next(iter(self.matmuls.values()))
        if len(self._chosen) >= REMEMBERED:
            self._chosen.clear()
        self._chosen[shape] = chosen
        return chosen

    def _best(self, a: torch.Tensor, b: torch.Tensor) -> Callable[..., None]:
        """What does these extents best: the one that ranks first, or torch."""
        if 0 in a.shape:
            return lambda *operands: None  # a product without rows, or a batch of none
        from tilecast.inductor_hook.select.selection import decided, gpu_of, ranked
        from tilecast.inductor_hook.settings import Settings

        operands = self.operands
        *batch, m, k = a.shape
        n = stored = b.shape[-1]
        if operands.out.major == "row":
            stored = padded(n, operands.out.dtype.bits // 8)
        problem = GemmProblem(m, stored, k, *batch, operands=operands)
        settings = Settings(1, self._model or None, self._power, digest=self._digest)
        gpu = gpu_of(a.get_device(), settings)
        choice = decided(settings, problem, gpu, stored != n)
        if choice.deferred:
            return _in_torch(operands)
        config = choice.prediction.config
        if config not in self.matmuls:
            (config,) = ranked(settings, problem, gpu, tuple(self.matmuls), 1)
        return self.matmuls[config]


def adds(alpha: float, beta: float, dtype: torch.dtype) -> bool:
    """Whether `add_bias` does it with these factors, in one pass over an output of a type.

    Not where it would scale in fp16, which a product may overflow that fits once it is scaled.
    """
    import torch

    return alpha == 1 or (beta in (0, 1) and dtype != torch.float16)


def row(bias: torch.Tensor) -> torch.Tensor:
    """A row (`tilecast.inductor_hook.describe.layout.Addend.kind`) as a kernel takes it: (n,), a view."""
    # Not its first row, which one that was expanded to no rows does not have.
    return bias if bias.ndim == 1 else bias.as_strided(bias.shape[-1:], (1,))


def add_bias(out: torch.Tensor, bias: torch.Tensor, alpha: float, beta: float) -> None:
    """``out = alpha * out + beta * bias`` in place, for factors that `adds`.

    Args:
        out: (m, n), or (batch, m, n).
        bias: broadcastable to it.
        alpha: factor of the product.
        beta: factor of the bias; with 0 its values do not matter, not even those that are none.
    """
    import torch

    if beta == 0:
        out.mul_(alpha)
    elif beta == 1:
        torch.add(bias, out, alpha=alpha, out=out)
    else:
        torch.add(out, bias, alpha=beta, out=out)


def _is_capturing() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _instead(operands: GemmOperands, *tensors: torch.Tensor | float) -> None:
    """Have torch write what a kernel of ours did not.

    Below autograd, as a kernel is: parts of a tensor subclass may ask for gradients even here.
    """
    import torch

    with torch.no_grad():
        _in_torch(operands)(*tensors)


def _in_torch(operands: GemmOperands) -> Callable[..., None]:
    """What writes the product of some operands to ``out`` without us: f(a, b, out, *extras)."""
    if operands.a.dtype.bits > 8 and not operands.scales and operands.epilogue in _AT_ONCE:
        return partial(_multiply, [extra.name for extra in operands.extras])
    # Only here: a graph whose kernels run needs nothing of it.
    from tilecast.data_collection.timing.torch_reference import torch_launch

    launch = torch_launch(operands)

    def multiply(
        a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras: torch.Tensor | float
    ) -> None:
        # Operators of the library write no rows with gaps between them.
        whole = out if out.stride(-1) > 1 or out.is_contiguous() else out.new_empty(out.shape)
        launch(a, b, whole, *extras)
        if whole is not out:
            out.copy_(whole)

    return multiply


_AT_ONCE = ((), ("bias",), *ADDED)
"""Epilogues that one operator of torch does."""


def _multiply(
    names: Sequence[str],
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *extras: torch.Tensor | float,
) -> None:
    """Write a @ b to ``out`` with torch, rounded as a kernel does: once, to out's dtype.

    With the extras of these names, a bias (n,) or a matrix and factors, where there are some.

    That may be another one than A's and B's, which ``torch.matmul`` refuses.
    """
    import torch

    # The dtype that holds every value of both: bf16 operands are exact in fp32.
    wide = torch.promote_types(a.dtype, out.dtype)
    product = out if out.dtype == wide else out.new_empty(out.shape, dtype=wide)
    # With an output even here, because autocast would narrow what has none.
    given: dict[str, Any] = dict(zip(names, extras, strict=True))
    added = given.pop("bias", given.pop("c", None))
    if added is None:
        torch.matmul(a.to(wide), b.to(wide), out=product)
    else:
        add = torch.addmm if a.ndim == 2 else torch.baddbmm
        add(added.to(wide), a.to(wide), b.to(wide), **given, out=product)
    if product is not out:
        out.copy_(product)


def _specs(
    configs: Sequence[str], operands: str, batched: bool, any_rows: bool
) -> list[KernelSpec]:
    """The kernels that generated code names."""
    stored = GemmOperands.parse(operands)
    return [KernelSpec(parse_config(name), stored, batched, any_rows) for name in configs]
