"""Ahead-of-time compilation: a spec in, the bytes of an object file out. Needs no GPU."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from tilecast.heuristics.errors import TilecastError
from tilecast.kernels.object_cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

_CUTLASS_DTYPES = {"bfloat16": "BFloat16", "float16": "Float16", "float32": "Float32"}


@dataclass(frozen=True)
class CompileResult:
    """What became of one spec."""

    spec: KernelSpec
    """The kernel asked for."""
    seconds: float
    """Time its worker spent; 0 when the cache had it."""
    error: str | None = None
    """Why it failed, in one line; None when it is in the cache."""


def function_name(spec: KernelSpec) -> str:
    """Symbol that the object file exports; unique, so that many objects load into one process."""
    return f"tilecast_{spec.key}"


def compile_object(spec: KernelSpec) -> bytes:
    """Compile one kernel in this process.

    ``cute.compile`` is not thread-safe: call this from one thread of a process only.

    Args:
        spec: a kernel whose config is valid for its operands.

    Returns:
        A host object file with the device code inside, loaded by `tilecast.kernels.launch`.
    """
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    from tilecast.kernels.cutlass_sm90.kernel import TunableGemmKernel

    operands = spec.operands
    batch = (cute.sym_int32(),) if spec.batched else ()
    m, n, k = (cute.sym_int32() for _ in range(3))

    def operand(rows, columns, major: str, dtype: str):
        cutlass_dtype = getattr(cutlass, _CUTLASS_DTYPES[dtype])
        # 16 bytes: what TMA asks of every stride but the contiguous one.
        leading = cute.sym_int64(divisibility=128 // cutlass_dtype.width)
        matrix = (leading, 1) if major == "row" else (1, leading)
        outer = (cute.sym_int64(divisibility=128 // cutlass_dtype.width),) * len(batch)
        return make_fake_tensor(
            cutlass_dtype, (*batch, rows, columns), (*outer, *matrix), assumed_align=16
        )

    compiled = cute.compile[cute.GPUArch(spec.arch), cute.EnableTVMFFI(True)](
        TunableGemmKernel(spec.config),
        operand(m, k, operands.a_major, operands.dtype),
        operand(k, n, operands.b_major, operands.dtype),
        operand(m, n, operands.out_major, operands.out_dtype),
        cutlass.Int32(1),
        make_fake_stream(use_tvm_ffi_env_stream=True),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.o")
        compiled.export_to_c(object_file_path=str(path), function_name=function_name(spec))
        return path.read_bytes()


def compile_all(
    specs: Iterable[KernelSpec], cache: ObjectCache, workers: int
) -> Iterator[CompileResult]:
    """Bring every spec into the cache, in a pool of processes, and yield each as it is done.

    A spec that fails to compile is reported and the others go on.

    Args:
        specs: the kernels wanted; those that the cache holds are not compiled again.
        cache: where the objects go.
        workers: processes, one core each.

    Raises:
        TilecastError: the cache cannot be written, or a compiler process died.
    """
    missing = []
    for spec in dict.fromkeys(specs):
        if cache.resources(spec) is None:
            missing.append(spec)
        else:
            yield CompileResult(spec, 0.0)
    if not missing:
        return
    # Spawned, not forked: a forked child would share the compiler's threads and locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(missing)), mp_context=context)
    try:
        for future in as_completed([pool.submit(compile_into, spec, cache) for spec in missing]):
            yield future.result()
    except BrokenProcessPool as error:
        raise TilecastError(
            "a compiler process died (out of memory?); what it had finished is in the cache: "
            "run again, with fewer workers"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def compile_into(spec: KernelSpec, cache: ObjectCache) -> CompileResult:
    """Compile one kernel in this process and store it; what the DSL raises is in the result.

    Raises:
        TilecastError: the cache cannot be written.
    """
    start = time.perf_counter()
    try:
        code = compile_object(spec)
    except TilecastError:
        raise
    except Exception as error:
        # The DSL raises whatever it meets; one bad config must not stop the rest.
        return CompileResult(spec, time.perf_counter() - start, _one_line(error))
    cache.put(spec, code)
    return CompileResult(spec, time.perf_counter() - start)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
