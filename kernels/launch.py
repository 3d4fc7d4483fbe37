"""Loading compiled kernels and launching them on the current GPU and stream."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tilecast.heuristics.errors import TilecastError
from tilecast.kernels.families import family_of
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.keys import kernel_symbol
from tilecast.kernels.spec import KernelSpec

Launch = Callable[..., object]
"""A loaded kernel: ``launch(a, b, out, *extras)`` writes to ``out`` what its operands ask for,
on the current stream; a bare product takes no extras.

A is (m, k), or (batch, m, k) when its spec is batched; B and out likewise. The compiled function
refuses other dtypes, strides or alignments than its spec says.
"""


def preload() -> None:
    """Import what loads kernels: a second's work, which can go on while they are compiled."""
    import cutlass.cute  # noqa: F401


def load_kernel(spec: KernelSpec, objects: ObjectCache, device: int = 0) -> Launch:
    """Load a compiled kernel from the cache.

    Raises:
        TilecastError: the cache does not hold it whole.
    """
    code = objects.code(spec)
    if code is None:
        raise TilecastError(
            f"kernel {spec} is not compiled in {objects.root}; allowed: what `tilecast compile` "
            "built there; run it first"
        )
    with _sealed(code) as path:
        module = _module_type()(path, enable_tvm_ffi=True)
    function = getattr(module, kernel_symbol(spec))
    return family_of(spec.config).launcher(function, spec, device)


@cache
def _module_type() -> Callable[..., object]:
    """What `cute.runtime.load_module` makes of a file, with the libraries that it needs loaded.

    It looks for these each time, which is two fifths of what loading a kernel takes.
    """
    from cutlass.base_dsl.export import ExternalBinaryModule
    from cutlass.runtime import find_runtime_libraries

    for path in find_runtime_libraries(enable_tvm_ffi=True):
        # The library names where one would be, and passes over one that is not installed, too.
        if Path(path).exists():
            ctypes.CDLL(path)
    return ExternalBinaryModule


@contextmanager
def _sealed(code: bytes) -> Iterator[str]:
    """Path of a file in memory that holds these bytes and can hold no others.

    The library takes a path alone, and what lies in the cache may have changed since it was read.
    """
    handle = os.memfd_create("tilecast", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(code)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, seals)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
