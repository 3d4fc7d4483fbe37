"""Compiling one of QuACK's GEMMs for any extents, without a GPU."""

# The DSL's packages are joined at import time: a type checker does not see them.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from tilecast.heuristics.dtypes import DTYPES
from tilecast.heuristics.operands import (
    COLUMN,
    COLUMN_BLOCKS,
    GROUP_ENDS,
    GROUP_ROWS,
    MATRIX,
    NUMBER,
    ONE,
    ROW,
    ROW_BLOCKS,
    Extra,
    TensorSpec,
)
from tilecast.kernels.spec import KernelSpec


def compile_gemm(
    kernel: Callable[..., None], spec: KernelSpec, arch: str, symbol: str, *, room: bool = False
) -> bytes:
    """Compile one kernel in this process.

    ``cute.compile`` is not thread-safe: call this from one thread of a process only.

    Args:
        kernel: takes A (m, k), B (k, n) and out (m, n), or (m, n/2) behind a gate, with a batch in
            front where the spec has one, and the groups in front of what is `stacked`; where
            operands have extras, or there is room, a tuple of them with the room behind; the
            clusters that fit on the GPU at once, and a stream.
        spec: what it computes.
        arch: target of the compiler.
        symbol: what the object shall export.
        room: whether it is given float32 memory, flat, for sums of its own.

    Returns:
        A host object file with the device code inside, which exports ``symbol``.
    """
    operands = spec.operands
    products, m, n, k = (cute.sym_int32() for _ in range(4))
    many = (products,) if spec.batched or operands.groups else ()
    of_a, of_b, of_out = (many if stacked else () for stacked in operands.stacked)
    out_n = cute.sym_int32() if operands.gate else n

    def tensor(batch, rows, columns, stored: TensorSpec, align: int = 16):
        dtype = getattr(cutlass, stored.dtype.cutlass)
        # 16 bytes: what TMA asks of every stride but the contiguous one.
        elements = 8 * align // dtype.width
        leading = cute.sym_int64(divisibility=elements)
        matrix = (leading, 1) if stored.major == "row" else (1, leading)
        outer = (cute.sym_int64(divisibility=elements),) * len(batch)
        shape, strides = (*batch, rows, columns), (*outer, *matrix)
        return make_fake_tensor(dtype, shape, strides, assumed_align=align)

    def further(extra: Extra):
        if extra.kind == MATRIX:
            return tensor(of_out, m, out_n, operands.out)
        dtype = getattr(
            cutlass, (DTYPES[extra.dtype] if extra.dtype else operands.out.dtype).cutlass
        )
        if extra.kind == NUMBER:
            return cutlass.Float32(1.0)
        if extra.kind in (ROW_BLOCKS, COLUMN_BLOCKS):
            return make_fake_tensor(dtype, (cute.sym_int32(512),), (1,), assumed_align=16)
        if extra.kind == GROUP_ROWS:
            strides = (cute.sym_int64(), 1)
            return make_fake_tensor(dtype, (products, n), strides, assumed_align=4)
        extent = {ONE: 1, ROW: n, COLUMN: m, GROUP_ENDS: products}[extra.kind]
        # Four bytes: the least that is copied at once.
        return make_fake_tensor(dtype, (extent,), (1,), assumed_align=4)

    given = [*map(further, operands.extras)]
    if room:
        given.append(make_fake_tensor(cutlass.Float32, (cute.sym_int32(),), (1,), assumed_align=16))
    compiled = cute.compile[cute.GPUArch(arch), cute.EnableTVMFFI(True)](
        kernel,
        tensor(of_a, m, k, operands.a),
        tensor(of_b, k, n, operands.b),
        tensor(
            of_out, m, out_n, operands.out, operands.out.dtype.bits // 8 if spec.any_rows else 16
        ),
        *([tuple(given)] if given else []),
        cutlass.Int32(1),
        make_fake_stream(use_tvm_ffi_env_stream=True),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.o")
        compiled.export_to_c(object_file_path=str(path), function_name=symbol)
        return path.read_bytes()
