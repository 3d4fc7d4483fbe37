"""One kernel by name, loaded on first use and launched per call, as generated code calls it.

Generated code imports files of this folder alone, which load neither the DSL nor Inductor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

import torch

from tilecast.data_collection.timing.correctness import wrong_row
from tilecast.heuristics.errors import NotNow, TilecastError
from tilecast.heuristics.operands import ROW_GROUPS, GemmOperands
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.arguments import row  # noqa: F401  # for generated code
from tilecast.inductor_hook.run.in_torch import instead
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.families import parse_config
from tilecast.kernels.launch import Launch, load_kernel
from tilecast.kernels.spec import KernelSpec

_raises: ContextVar[bool] = ContextVar("tilecast_errors_raised", default=False)
_loaded: dict[tuple[KernelSpec, int], Launch] = {}


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


def kernel_now(spec: KernelSpec, device: int, *, wait: bool) -> Launch | None:
    """The same, or None if it cannot be had now: unless asked to ``wait``, it is then begun.

    Nor is it loaded while a CUDA graph is captured, which that might end.

    Raises:
        TilecastError: as `loaded_kernel`.
    """
    there = (spec, device) in _loaded or (
        not _is_capturing() and (wait or object_builder().ready(spec))
    )
    return loaded_kernel(spec, device) if there else None


class StaticMatmul:
    """One compiled kernel; torch where it cannot run."""

    def __init__(self, spec: KernelSpec, untried: bool = False):
        """Take what to run; nothing is loaded before the first call.

        Where it is ``untried``, as nobody ran such a kernel on such a GPU, its first result on each
        device is compared with PyTorch's.
        """
        self.spec, self.operands, self._untried = spec, spec.operands, untried
        self._kernels: dict[int, Launch] = {}
        self._failed: dict[int, str] = {}
        """Why there is none on a device; an exception would hold the tensors of its call."""

    @classmethod
    def named(
        cls,
        config: str,
        operands: str,
        batched: bool,
        any_rows: bool = False,
        untried: bool = False,
    ) -> Self:
        """As generated code makes one: of names instead of objects."""
        (spec,) = specs = named_specs((config,), operands, batched, any_rows)
        begin(specs)
        return cls(spec, untried)

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras: torch.Tensor | float
    ) -> None:
        """Write to ``out`` what the operands ask for, on the current stream; see `Launch`.

        A kernel that fails is one warning.
        """
        device = out.get_device()
        try:
            kernel = self._kernels.get(device) or self._load(device, a, b, out, *extras)
            kernel(a, b, out, *extras)
        # Whatever loading or launching raises: a graph that compiled must run.
        except Exception as error:
            if _raises.get():
                raise
            telemetry.warn_once(f"running {self.spec.config}", error)
            instead(self.operands, a, b, out, *extras)

    def _load(
        self,
        device: int,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        *extras: torch.Tensor | float,
    ) -> Launch:
        """The kernel on a device; where there was none once, there is none in this process.

        So that no graph changes its kernel in the middle of a run, as between a forward and its
        recomputation.
        """
        if device in self._failed:
            raise TilecastError(self._failed[device])
        try:
            kernel = loaded_kernel(self.spec, device)
            if self._untried:
                check_first_result(kernel, self.spec, a, b, out, *extras)
        except NotNow:
            raise
        except Exception as error:
            self._failed[device] = telemetry.reason(error)
            raise
        self._kernels[device] = kernel
        return kernel


def check_first_result(
    kernel: Launch,
    spec: KernelSpec,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *extras: torch.Tensor | float,
) -> None:
    """Launch a kernel and compare what it writes to ``out`` with what PyTorch computes.

    Raises:
        TilecastError: they differ.
        NotNow: a CUDA graph is being captured, in which nothing can be compared; or no group has
            a row.
    """
    if _is_capturing():
        raise NotNow(
            f"{spec.config} has never run on such a GPU, and is first called while a CUDA graph is "
            "captured; allowed: a call before that, to compare its result"
        )
    written = len(out)
    if spec.operands.groups == ROW_GROUPS:
        # Rows behind the last group are nobody's.
        (ends, *_) = extras
        written = int(torch.as_tensor(ends)[-1])
        if not written:
            raise NotNow(
                f"{spec.config} has never run on such a GPU, and is first called without a row in "
                "any group; allowed: a call with some, to compare its result"
            )
    kernel(a, b, out, *extras)
    expected = torch.empty_like(out)
    instead(spec.operands, a, b, expected, *extras)
    if wrong := wrong_row(out[:written], expected[:written], a.shape[-1], spec.operands):
        raise TilecastError(
            f"{spec.config} has never run on such a GPU, and its result is not PyTorch's "
            f"({wrong}); allowed: one that is; report this GPU, and take TILECAST out of the list "
            "of backends"
        )


def named_specs(
    configs: Sequence[str], operands: str, batched: bool, any_rows: bool
) -> list[KernelSpec]:
    """The kernels that generated code names."""
    stored = GemmOperands.parse(operands)
    return [KernelSpec(parse_config(name), stored, batched, any_rows) for name in configs]


def begin(specs: Sequence[KernelSpec]) -> None:
    """Have kernels that are missing compiled at once, as a graph that runs them is loaded.

    It may come from Inductor's cache while they are gone. Not in a worker of Inductor, whose parent
    loads the graph too.
    """
    worker = sys.modules.get("torch._inductor.compile_worker.utils")
    if worker and not worker.in_toplevel_process():
        return
    try:
        for spec in specs:
            object_builder().start(spec)
    # Whatever it is, the first call meets it again and knows what to do.
    except Exception as error:
        telemetry.warn_once("compiling", error)


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
