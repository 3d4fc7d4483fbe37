"""QuACK's SM90 GEMM with all that operands name done to the product before it is stored.

Vectors that this reads are brought to shared memory while their tile is multiplied.
"""

from __future__ import annotations

from typing import cast

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, const_expr
from cutlass.experimental import primitives as prims
from quack import copy_utils
from quack.epilogue.ops import ColVecLoad, RowVecLoad, Scalar
from quack.tile_scheduler import WorkTileInfo

from tilecast.heuristics.operands import GATED_COLUMNS
from tilecast.kernels.quack.compiler import compile_gemm
from tilecast.kernels.quack.epilogue import NUMBERS, VECTORS, Epilogue
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.kernel import TunableGemm
from tilecast.kernels.quack_sm90.resources import WARP_GROUP
from tilecast.kernels.spec import KernelSpec
# isort: on


def compile_kernel(spec: KernelSpec, arch: str, symbol: str) -> bytes:
    """The object file of a kernel, which exports ``symbol``."""
    operands = spec.operands
    fused = FusedGemm if operands.fused else TunableGemm
    kernel = GemmWithExtras if operands.extras else fused
    config = cast("QuackConfig", spec.config)
    return compile_gemm(kernel(config, operands, spec.any_rows), spec, arch, symbol)


class _EarlyVector:
    """A vector whose piece for a tile is on its way while the tile is multiplied.

    QuACK asks for it once the product is there, and waits: a microsecond where others load weights
    at the same time. Warp groups that take tiles in turn have a piece each.
    """

    def smem_struct_field(self, gemm, params):
        """Name and type of the pieces in shared memory."""
        element, pieces = getattr(params, self.name).element_type, 2 if gemm.pingpong else 1
        size = pieces * self._tile_size(gemm.out_tile)
        return f"s_{self.name}", cute.struct.Align[cute.struct.MemRange[element, size], 16]

    def get_smem_tensor(self, gemm, params, storage_epi):
        """The piece of the warp group that asks; remembered, with the vector, to be filled."""
        size = self._tile_size(gemm.out_tile)
        pieces = getattr(storage_epi, f"s_{self.name}").data_ptr()
        turn = cute.arch.thread_idx()[0] // WARP_GROUP % 2 if gemm.pingpong else 0
        piece = cute.make_tensor((pieces + turn * size).align(16), cute.make_layout(size))
        gemm.vectors.append((self, getattr(params, self.name), piece))
        return piece

    @cute.jit
    def load(
        self,
        vector: cute.Tensor,
        piece: cute.Tensor,
        place: Int32,
        length: Int32,
        threads: cutlass.Constexpr,
    ):
        """Ask for the piece of the tile that is the ``place``-th along so long a vector."""
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
                inside[0] = place * size + index[0, i] < length
                cute.copy(thread, source[None, i], target[None, i], pred=inside)

    def begin(self, gemm, param, smem_tensor, ctx):
        """What `begin_loop` reads from: the piece as the threads see it, and registers."""
        shape = cute.make_layout((ctx.tile_M, ctx.tile_N), stride=self._broadcast_stride())
        seen = ctx.partition_for_epilogue_fn(cute.make_tensor(smem_tensor.iterator, shape))
        one = cute.group_modes(seen, 3, cute.rank(seen))[None, None, None, 0]
        return [seen, cute.make_rmem_tensor(one.layout, gemm.acc_dtype)]


class _EarlyRow(_EarlyVector, RowVecLoad):
    def of_group(self, vector, group, starts):
        """The vector of a group, and its length: each has one of its own."""
        return vector[group, None], cute.size(vector, mode=[1])


class _EarlyColumn(_EarlyVector, ColVecLoad):
    def of_group(self, vector, group, starts):
        """The same: a part of a vector along all rows."""
        first = starts[group]
        return cute.domain_offset((first,), vector), starts[group + 1] - first


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


def _seen(scheduler: type, gemm) -> type:
    """The same scheduler, of tiles that a kernel remembers, and of where groups begin."""

    class Scheduler(scheduler):
        def initial_work_tile_info(self, **where):
            gemm.starts = getattr(self.params, "cu_seqlens_m", None)
            return _SeenTile(super().initial_work_tile_info(**where), gemm)

        def get_current_work(self, **where):
            return _SeenTile(super().get_current_work(**where), gemm)

    return Scheduler


_TURN = GATED_COLUMNS // 2
"""Columns of each half of B that a gate's kernel reads in turn: as many as a thread's accumulators
are apart (PTX ISA, wgmma, fragments of D)."""


def _in_turn(b):
    """B (n, k, batch) with its halves along n in turn, `_TURN` columns of each; nothing moves."""
    n, step = b.shape[0], b.stride[0]
    shape = ((_TURN, 2, n // (2 * _TURN)), *b.shape[1:])
    stride = ((step, n // 2 * step, _TURN * step), *b.stride[1:])
    return cute.make_tensor(b.iterator, cute.make_layout(shape, stride=stride))


def _half(acc, second: int):
    """The accumulators of one half of B, which are every other of those `_TURN` columns apart."""
    (pair, rows, turns), along_m, along_n = acc.shape
    one, row, turn = acc.stride[0]
    layout = cute.make_layout(
        ((pair, rows, turns // 2), along_m, along_n),
        stride=((one, row, 2 * turn), *acc.stride[1:]),
    )
    return cute.make_tensor(acc.iterator + turn * second, layout)


class FusedGemm(Epilogue, TunableGemm):
    """The same, with all that operands name done to the product before it is stored.

    A gate pairs the two halves of B, of which a tile has as many columns each. Behind the products
    the tile is as wide as one of them: it is stored, and vectors are read, as in any other kernel.
    """

    _epi_ops = (
        *(Scalar(name) for name in NUMBERS),
        *(_EarlyRow(f"row_{name}") for name in VECTORS),
        *(_EarlyColumn(f"column_{name}") for name in VECTORS),
        *(_EarlyRow(f"second_{name}") for name in ("scale_b", "bias")),
    )

    @property
    def out_tile(self):
        """The part of out that a tile makes, and its stretch of k."""
        m, n, k = self.cta_tile_shape_mnk
        return m, n // self.operands.columns_for_one, k

    def rotate_batch_last(self, a, b, *others, **options):
        """The operands in the order of extents that the kernel has, the batch last."""
        a, b, *others = super().rotate_batch_last(a, b, *others, **options)
        return a, _in_turn(b) if self.operands.gate else b, *others

    def _setup_attributes(self, epilogue_args):
        super()._setup_attributes(epilogue_args)
        self.epi_tile_shape = cute.ceil_div(self.out_tile[:2], self.epi_tile)

    def epilog_gmem_copy_and_partition(self, atom, whole, tile, *others):
        """What copies a piece of the tile between its place in memory and where it is staged."""
        return super().epilog_gmem_copy_and_partition(atom, whole, self.out_tile[:2], *others)

    def epi_retile_acc(self, acc, *others):
        """The accumulators in the pieces that are stored; of both halves where there is a gate."""
        pieces = super().epi_retile_acc
        if not self.operands.gate:
            return pieces(acc, *others)
        return tuple(pieces(_half(acc, second), *others) for second in (0, 1))

    def epi_load_acc_subtile(self, pieces, result, place, no_release=False):
        """Bring a piece into registers; that of the second half is remembered beside it."""
        if self.operands.gate:
            pieces, second = pieces
            self.second = cute.make_rmem_tensor(result.layout, self.acc_dtype)
            super().epi_load_acc_subtile(second, self.second, place, no_release)
        super().epi_load_acc_subtile(pieces, result, place, no_release)

    def epilogue(self, *args, **kwargs):
        """Finish a tile and store it, as wide as out has it."""
        whole, self.cta_tile_shape_mnk = self.cta_tile_shape_mnk, self.out_tile
        try:
            return super().epilogue(*args, **kwargs)
        finally:
            self.cta_tile_shape_mnk = whole

    def get_scheduler_class(self, varlen_m: bool = False):
        """Which CTA multiplies what."""
        return _seen(super().get_scheduler_class(varlen_m), self)

    def epi_get_smem_tensors(self, params, storage):
        """The epilogue's shared memory, and which vectors are to be brought there."""
        self.vectors = []
        return super().epi_get_smem_tensors(params, storage)

    def mma(self, *args):
        """Multiply a tile; its vectors are on their way meanwhile."""
        self._load_vectors()
        return super().mma(*args)

    def mma_rs_interleaved(self, *args, **kwargs):
        """The same of an operand that is converted."""
        self._load_vectors()
        return super().mma_rs_interleaved(*args, **kwargs)

    def _load_vectors(self):
        """Ask for the vectors of the tile that comes next.

        All threads have read those of the tile before: its pieces are stored behind a barrier.
        """
        if not self.vectors:
            return
        # A kernel before this one may write them.
        prims.griddepcontrol(prims.GridDepAction.WAIT)
        threads = self.num_epi_warps * cute.arch.WARP_SIZE
        for op, vector, piece in self.vectors:
            length = cute.size(vector)
            if self.starts is not None:
                vector, length = op.of_group(vector, self.tile[3], self.starts)
            op.load(vector, piece, self.tile[op._coord_idx()], length, threads)
        cute.arch.cp_async_commit_group()


class GemmWithExtras(FusedGemm):
    """The same, called with a tuple of the operands' extras behind out."""

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        extras: tuple,
        max_active_clusters: Int32,
        stream,
    ):
        """Launch; see the class."""
        arguments, matrix, ends = self.arguments(extras)
        self.launch(a, b, out, matrix, arguments, max_active_clusters, stream, ends)
