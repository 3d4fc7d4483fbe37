"""What generated code calls at run time: kernels by name, loaded on first use, launched per call.

Generated code imports this module alone. Importing it touches neither the DSL nor Inductor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmOperands, GemmProblem
from tilecast.inductor_hook import report
from tilecast.kernels.builder import object_builder
from tilecast.kernels.launch import LoadedKernel, load_kernel
from tilecast.kernels.spec import KernelSpec

if TYPE_CHECKING:
    import torch

_raises: ContextVar[bool] = ContextVar("tilecast_errors_raised", default=False)
_loaded: dict[tuple[KernelSpec, int], LoadedKernel] = {}


@contextmanager
def errors_raised():
    """Inside, a kernel that fails raises; outside, torch multiplies in its place."""
    token = _raises.set(True)
    try:
        yield
    finally:
        _raises.reset(token)


def loaded_kernel(spec: KernelSpec, device: int) -> LoadedKernel:
    """The kernel of a spec on a device, compiled first where the object cache lacks it.

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
    """One compiled kernel; where it cannot run, ``torch.matmul``, with one warning."""

    def __init__(self, spec: KernelSpec):
        """Take what to run; nothing is loaded before the first call."""
        self.spec = spec
        self._kernels: dict[int, LoadedKernel] = {}
        self._broken: Exception | None = None

    @classmethod
    def named(cls, config: str, layout: str, dtype: str, out_dtype: str, batched: bool, arch: str):
        """From what generated code spells out: names instead of objects."""
        operands = GemmOperands.from_layout(layout, dtype, out_dtype)
        return cls(KernelSpec(KernelConfig.parse(config), operands, batched, arch))

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        """Write a @ b to ``out`` on the current stream of its device.

        Args:
            a: (m, k), or (batch, m, k) for a batched spec.
            b: (k, n) or (batch, k, n).
            out: (m, n) or (batch, m, n).
        """
        try:
            (self._kernels.get(out.get_device()) or self._load(out.get_device()))(a, b, out)
        # Whatever loading or launching raises: a graph that compiled must run.
        except Exception as error:
            if _raises.get():
                raise
            report.warn_once(f"running {self.spec.config}", error)
            import torch

            torch.matmul(a, b, out=out)

    def compile(self) -> None:
        """Bring the kernel into the object cache, which a worker of Inductor does ahead of time."""
        try:
            object_builder().wait(self.spec)
        # Not a worker's business: the launcher meets it again and knows what to do.
        except Exception as error:
            report.warn_once(f"compiling {self.spec.config}", error)

    def _load(self, device: int) -> LoadedKernel:
        if self._broken:
            raise self._broken
        try:
            kernel = self._kernels[device] = loaded_kernel(self.spec, device)
        except Exception as error:
            # Kept: trying again would cost each call of the graph.
            self._broken = error
            raise
        return kernel


class DynamicMatmul:
    """Several compiled kernels, of which the model picks one for the extents of each call."""

    def __init__(self, specs: Sequence[KernelSpec], model: str, power: str, digest: str):
        """Take what may run.

        Args:
            specs: at least one; they differ in their configs alone.
            model: folder of the model that chooses; "" for the shipped one.
            power: what the model aims at.
            digest: `tilecast.inductor_hook.settings.model_digest` of that model; another one does
                not choose.
        """
        self.matmuls = {spec.config: StaticMatmul(spec) for spec in specs}
        self._model = model
        self._power = power
        self._digest = digest
        self._chosen: dict[tuple[int, ...], Callable[..., None]] = {}

    @classmethod
    def named(
        cls,
        configs: Sequence[str],
        layout: str,
        dtype: str,
        out_dtype: str,
        batched: bool,
        arch: str,
        model: str,
        power: str,
        digest: str,
    ):
        """From what generated code spells out: names instead of objects."""
        operands = GemmOperands.from_layout(layout, dtype, out_dtype)
        specs = [KernelSpec(KernelConfig.parse(c), operands, batched, arch) for c in configs]
        return cls(specs, model, power, digest)

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        """Write a @ b to ``out``; see `StaticMatmul`."""
        # n and k are fixed where this was generated: the shape of A tells all that varies.
        matmul = self._chosen.get(a.shape)
        if matmul is None:
            matmul = self._chosen[tuple(a.shape)] = self._choose(a, b)
        matmul(a, b, out)

    def compile(self) -> None:
        """Bring every kernel into the object cache."""
        for matmul in self.matmuls.values():
            matmul.compile()

    def _choose(self, a: torch.Tensor, b: torch.Tensor) -> Callable[..., None]:
        if 0 in a.shape:
            return _write_nothing
        from tilecast.inductor_hook.selection import gpu_of, ranked
        from tilecast.inductor_hook.settings import Settings

        first = next(iter(self.matmuls.values()))
        try:
            problem = GemmProblem(
                a.shape[-2], b.shape[-1], a.shape[-1], _batch(a.shape), first.spec.operands
            )
            settings = Settings(1, self._model or None, self._power, digest=self._digest)
            gpu = gpu_of(a.get_device())
            return self.matmuls[ranked(settings, problem, gpu, tuple(self.matmuls), 1)[0]]
        # Any of them multiplies correctly.
        except Exception as error:
            report.warn_once("choosing a kernel for a dynamic extent", error)
            return first


def adds(alpha: float, beta: float) -> bool:
    """Whether `add_bias` does it with these factors, in one pass over the output."""
    return beta == 0 or 1 in (alpha, beta)


def add_bias(out: torch.Tensor, bias: torch.Tensor, alpha: float, beta: float) -> None:
    """``out = alpha * out + beta * bias`` in place, for factors that `adds`.

    Args:
        out: (m, n).
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


def _write_nothing(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """What a product without rows takes."""


def _batch(shape: Sequence[int]) -> int:
    return shape[0] if len(shape) == 3 else 1
