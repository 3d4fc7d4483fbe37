"""Ahead-of-time compilation: a spec in, the bytes of an object file out. Needs no GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tilecast.kernels.spec import KernelSpec

_CUTLASS_DTYPES = {"bfloat16": "BFloat16", "float16": "Float16", "float32": "Float32"}


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
