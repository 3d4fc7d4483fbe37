"""A weight of int8 that becomes bf16 on its way from shared memory to the tensor cores.

wgmma multiplies operands of one width, but takes its A from registers, too. QuACK's mainloop for
that leaves open how 16 columns of A, a block, get there between two wgmmas. QuACK's own weights of
8 bits are repacked for it; this one is a matrix as PyTorch stores it.
"""

from __future__ import annotations

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr
from cutlass._mlir.dialects import llvm
from quack.copy_utils import as_position_independent_swizzle_tensor, swizzle_ptr
from quack.operand_transform.transform import TransformA
# isort: on

_CHUNK = 16
"""Bytes that a swizzle leaves together."""
_IN_FLIGHT = 2
"""Blocks that a thread holds as stored: one is converted, the next one is read."""


class ConvertedA(TransformA):
    """A (m, k, batch) of int8, contiguous along k, as what the kernel multiplies is made of.

    In shared memory it lies as it is stored, a row of a stage as wide as its swizzle. The pairs
    that a register of wgmma's A takes are neighbours there, and those that a warp reads at once
    lie in different banks.
    """

    owns_a_layout = True

    def __init__(self, gemm):
        """Take the kernel that this is a part of."""
        self._gemm = gemm

    def _box(self) -> tuple[int, int]:
        """Rows and columns of a stage."""
        rows, _, columns = self._gemm.cta_tile_shape_mnk
        return rows, columns

    def a_bytes_per_stage(self) -> int:
        """Shared memory of one stage."""
        rows, columns = self._box()
        return rows * columns

    def make_a_smem_layout_staged(self, stages: int):
        """Rows, columns, 1, stages, without the swizzle, which QuACK's own layout has."""
        self._stage = cute.slice_(self._gemm.a_smem_layout_staged, (None, None, 0))
        return cute.make_ordered_layout((*self._box(), 1, stages), order=(1, 0, 2, 3))

    def make_a_tma(self, a: cute.Tensor):
        """What loads a stage."""
        sharers = self._gemm.cluster_shape_mnk[1]
        return self._gemm._make_tma_atoms_and_tensors(a, self._stage, self._box(), sharers)

    def a_gmem_slice(self, a: cute.Tensor, tile_coord_mnkl, batch: Int32):
        """All stages of a tile: rows, columns, 1, stages."""
        return cute.local_tile(a, (*self._box(), 1), (tile_coord_mnkl[0], None, batch))

    @cute.jit
    def make_copy_block(self, tiled_mma, sA, tCrA, tidx, warp_group_idx, sAux=None, mAux=None):
        """What brings block ``b`` of a stage into registers, converted."""
        rows, columns = self._box()
        swizzle = cute.make_swizzle((columns // _CHUNK).bit_length() - 1, 4, 3)
        staged = cute.make_tensor(
            cute.recast_ptr(sA.iterator, swizzle, dtype=cutlass.Int8),
            cute.make_ordered_layout((rows, columns, self._gemm.ab_stage), order=(1, 0, 2)),
        )
        thread = tiled_mma.get_slice(tidx)
        # As QuACK's load of A of 16 bits has it: the swizzle is in the strides.
        own = cute.make_tensor(
            swizzle_ptr(thread.partition_A(staged).iterator),
            thread.partition_A(as_position_independent_swizzle_tensor(staged)).layout,
        )
        stored = cute.recast_tensor(own, cutlass.Uint16)
        multiplied = cute.recast_tensor(tCrA, Int32)
        pairs, fragments, blocks = (const_expr(cute.size(multiplied, mode=[i])) for i in range(3))
        read = cute.make_rmem_tensor((pairs, fragments, _IN_FLIGHT), cutlass.Uint16)

        def read_block(stage, b):
            for i in cutlass.range_constexpr(pairs * fragments):
                at = const_expr((i % pairs, i // pairs))
                read[*at, b % _IN_FLIGHT] = stored[*at, b, stage]

        def copy_block(stage, b, k_tile=None):
            if const_expr(b == 0):
                read_block(stage, 0)
            if const_expr(b + 1 < blocks):
                read_block(stage, b + 1)
            for i in cutlass.range_constexpr(pairs * fragments):
                at = const_expr((i % pairs, i // pairs))
                multiplied[*at, b] = _converted(read[*at, b % _IN_FLIGHT])

        return copy_block


def _converted(pair: cutlass.Uint16) -> Int32:
    """Two bf16 of two int8, exactly, in four instructions.

    bf16 has 7 bits of mantissa, which count ones from 128 on: with the lower 7 bits of a number
    there it is 128 more than they are. The sign bit, one more in the exponent, makes 256 of 128.
    """
    code = """{
        .reg .b32 both, lower, sign;
        prmt.b32 both, $1, 0x43, 0x4140;
        and.b32 lower, both, 0xff7fff7f;
        and.b32 sign, both, 0xff80ff80;
        sub.rn.bf16x2 $0, lower, sign;
    }"""
    return Int32(llvm.inline_asm(Int32.mlir_type, [Int32(pair).ir_value()], code, "=r,r"))
