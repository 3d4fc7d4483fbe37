"""Compiling one kernel in this process, and what became of it."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass

from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.kernels.families import family_of
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.keys import kernel_symbol
from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True)
class CompileResult:
    """What became of one spec."""

    spec: KernelSpec
    """The kernel asked for."""
    seconds: float
    """Time its worker spent; 0 when the cache had it, or it came with tilecast."""
    error: str | None = None
    """Why it failed, in one line; None when it is in the cache."""
    passing: bool = False
    """Whether it may compile another time: its compiler hung or died, and did not refuse it."""


def compile_into(spec: KernelSpec, cache: ObjectCache) -> CompileResult:
    """Compile one kernel in this process and store it; what the DSL raises is in the result.

    Where another process compiles the same kernel, this one waits and takes what that one stored.

    Raises:
        TilecastError: the cache cannot be written, or others may write it; or the machine lacks
            what a compiler takes, such as free space for temporary files.
    """
    start = time.perf_counter()
    with cache.exclusive(spec):
        if cache.resources(spec) is not None:
            return CompileResult(spec, 0.0)
        try:
            code = family_of(spec.config).compile(spec, kernel_symbol(spec))
        except TilecastError:
            raise
        except (OSError, MemoryError) as error:
            raise TilecastError(
                f"kernel {spec} cannot be compiled ({one_line(error)}); allowed: a machine with "
                f"free memory and space in {tempfile.gettempdir()}; free some and run again"
            ) from error
        except Exception as error:
            # The DSL raises whatever it meets; one bad config must not stop the rest.
            return CompileResult(spec, time.perf_counter() - start, one_line(error))
        cache.put(spec, code)
    return CompileResult(spec, time.perf_counter() - start)
