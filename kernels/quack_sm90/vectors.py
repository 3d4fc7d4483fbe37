"""Vectors of an epilogue, brought to shared memory while their tile is multiplied."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, const_expr

# Made importable by tilecast.kernels.quack_sm90.kernel.
from quack import copy_utils
from quack.epilogue.ops import ColVecLoad, RowVecLoad
from quack.tile_scheduler import WorkTileInfo

from tilecast.kernels.quack_sm90.resources import WARP_GROUP


class _EarlyVector:
    """A vector whose piece for a tile is on its way while the tile is multiplied.

    QuACK asks for it once the product is there, and waits: a microsecond where others load weights
    at the same time. Warp groups that take tiles in turn have a piece each.
    """

    def smem_struct_field(self, gemm, params):
        """Name and type of the pieces in shared memory."""
        element, pieces = getattr(params, self.name).element_type, 2 if gemm.pingpong else 1
        size = pieces * self._tile_size(gemm.cta_tile_shape_mnk)
        return f"s_{self.name}", cute.struct.Align[cute.struct.MemRange[element, size], 16]

    def get_smem_tensor(self, gemm, params, storage_epi):
        """The piece of the warp group that asks; remembered, with the vector, to be filled."""
        size = self._tile_size(gemm.cta_tile_shape_mnk)
        pieces = getattr(storage_epi, f"s_{self.name}").data_ptr()
        turn = cute.arch.thread_idx()[0] // WARP_GROUP % 2 if gemm.pingpong else 0
        piece = cute.make_tensor((pieces + turn * size).align(16), cute.make_layout(size))
        gemm.vectors.append((self, getattr(params, self.name), piece))
        return piece

    @cute.jit
    def load(
        self, vector: cute.Tensor, piece: cute.Tensor, place: Int32, threads: cutlass.Constexpr
    ):
        """Ask for the piece of the tile that is the ``place``-th of its line."""
        size, element = const_expr(cute.size(piece)), vector.element_type
        together = const_expr(max(32, element.width) // element.width)
        copy = copy_utils.tiled_copy_1d(element, threads, together, is_async=True)
        thread = copy.get_slice(cute.arch.thread_idx()[0] % threads)
        source = thread.partition_S(cute.local_tile(vector, (size,), (place,)))
        target = thread.partition_D(piece)
        index = thread.partition_S(cute.make_identity_tensor(size))
        for i in cutlass.range_constexpr(cute.size(target.shape[1])):
            if index[0, i] < size:
                inside = cute.make_rmem_tensor(1, Boolean)
                inside[0] = place * size + index[0, i] < cute.size(vector)
                cute.copy(thread, source[None, i], target[None, i], pred=inside)

    def begin(self, gemm, param, smem_tensor, ctx):
        """What `begin_loop` reads from: the piece as the threads see it, and registers."""
        shape = cute.make_layout((ctx.tile_M, ctx.tile_N), stride=self._broadcast_stride())
        seen = ctx.partition_for_epilogue_fn(cute.make_tensor(smem_tensor.iterator, shape))
        one = cute.group_modes(seen, 3, cute.rank(seen))[None, None, None, 0]
        return [seen, cute.make_rmem_tensor(one.layout, gemm.acc_dtype)]


class EarlyRow(_EarlyVector, RowVecLoad):
    """One along n."""


class EarlyColumn(_EarlyVector, ColVecLoad):
    """One along m."""


class _SeenTile(WorkTileInfo):
    """A tile that its kernel remembers once it is asked where it lies: before it is multiplied."""

    def __init__(self, tile: WorkTileInfo, gemm):
        super().__init__(tile._tile_idx, tile._is_valid_tile)
        self._gemm = gemm

    @property
    def tile_idx(self):
        self._gemm.tile = self._tile_idx
        return self._tile_idx

    def __new_from_mlir_values__(self, values):
        return _SeenTile(super().__new_from_mlir_values__(values), self._gemm)


def seen(scheduler: type, gemm) -> type:
    """The same scheduler, of tiles that a kernel remembers."""

    class Scheduler(scheduler):
        def initial_work_tile_info(self, **where):
            return _SeenTile(super().initial_work_tile_info(**where), gemm)

        def get_current_work(self, **where):
            return _SeenTile(super().get_current_work(**where), gemm)

    return Scheduler
