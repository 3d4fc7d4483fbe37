"""out = A @ B with one thread an element; no shared memory, no tensor cores."""

# The DSL reads annotations and subscripts as code: a type checker understands neither.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import tempfile
from pathlib import Path

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor


class ToyGemm:
    """A kernel of one tile; call it under ``cute.compile`` with A, B, out and a stream."""

    def __init__(self, rows: int, columns: int):
        self.tile = (rows, columns)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, stream):
        rows, columns = self.tile
        grid = (cute.ceil_div(out.shape[1], columns), cute.ceil_div(out.shape[0], rows), 1)
        self.multiply(a, b, out).launch(grid=grid, block=(columns, rows, 1), stream=stream)

    @cute.kernel
    def multiply(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
        x, y, _ = cute.arch.thread_idx()
        block_x, block_y, _ = cute.arch.block_idx()
        row, column = block_y * self.tile[0] + y, block_x * self.tile[1] + x
        if row < out.shape[0] and column < out.shape[1]:
            total = cutlass.Float32(0)
            for k in range(a.shape[1]):
                total += a[row, k].to(cutlass.Float32) * b[k, column].to(cutlass.Float32)
            out[row, column] = total.to(out.element_type)


def compile_kernel(spec, arch, symbol) -> bytes:
    """Bytes of an object that exports ``symbol``."""
    m, n, k = (cute.sym_int32() for _ in range(3))

    def tensor(rows, columns, stored):
        dtype = getattr(cutlass, stored.dtype.cutlass)
        leading = cute.sym_int64()
        strides = (leading, 1) if stored.major == "row" else (1, leading)
        return make_fake_tensor(dtype, (rows, columns), strides, assumed_align=16)

    operands = spec.operands
    compiled = cute.compile[cute.GPUArch(arch), cute.EnableTVMFFI(True)](
        ToyGemm(spec.config.rows, spec.config.columns),
        tensor(m, k, operands.a),
        tensor(k, n, operands.b),
        tensor(m, n, operands.out),
        make_fake_stream(use_tvm_ffi_env_stream=True),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.o")
        compiled.export_to_c(object_file_path=str(path), function_name=symbol)
        return path.read_bytes()
