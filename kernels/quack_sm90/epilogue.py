"""What is done to a product before it is stored: scales, then the steps of its operands.

Vectors that it reads are brought to shared memory while their tile is multiplied.
"""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import Any, NamedTuple

# isort: off
# First, as it makes QuACK importable where its other parts' packages are not.
from tilecast.kernels.quack_sm90.kernel import TunableGemm

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, const_expr
from cutlass.experimental import primitives as prims
from quack import copy_utils
from quack.cute_dsl_utils import mlir_namedtuple
from quack.epilogue.ops import ColVecLoad, RowVecLoad, Scalar
from quack.tile_scheduler import WorkTileInfo

from tilecast.heuristics.operands import (
    COLUMN,
    EPILOGUES,
    GROUP_ENDS,
    MATRIX,
    NUMBER,
    ONE,
    ROW,
    GemmOperands,
)
from tilecast.heuristics.problem import GATED_COLUMNS
from tilecast.kernels.quack_sm90.resources import WARP_GROUP
# isort: on

# log2 of the normal distribution function at -t, for t from 0 to _GELU_END: a polynomial fitted for
# the least largest error (Lawson's algorithm), which is 5e-6; the highest power first.
_GELU_END = 6.0
_GELU = (
    *(-1.83481452e-06, 6.15983544e-05, -0.000930525316, 0.00850789271),
    *(-0.0539600727, -0.45846439, -1.15125105, -0.999995294),
)


def gelu(x):
    """X times the normal distribution function at x, to 4e-6 of it, without a branch.

    The error function of the library takes some forty instructions, which stand between the last
    product and the store; this takes twelve. Written for -|x|, where nothing cancels. NaN stays.
    """
    t = cute.arch.fmin(cute.math.absf(x), _GELU_END)
    exponent = Float32(_GELU[0])
    for coefficient in _GELU[1:]:
        exponent = cute.math.fma(exponent, t, Float32(coefficient))
    below = cute.math.exp2(exponent, fastmath=True)
    return cute.math.fma(-t, below, relu(x))


def relu(x):
    """The larger of x and 0; NaN stays, which QuACK's makes 0."""
    return cute.arch.fmax(x, 0.0, nan=True)


@cache
def _function(name):
    """A device function by its dotted name, as a row of `EPILOGUES` has it."""
    return resolve_name(__package__ + name if name.startswith(".") else name)


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


class _EarlyRow(_EarlyVector, RowVecLoad):
    pass


class _EarlyColumn(_EarlyVector, ColVecLoad):
    pass


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
    """The same scheduler, of tiles that a kernel remembers."""

    class Scheduler(scheduler):
        def initial_work_tile_info(self, **where):
            return _SeenTile(super().initial_work_tile_info(**where), gemm)

        def get_current_work(self, **where):
            return _SeenTile(super().get_current_work(**where), gemm)

    return Scheduler


_VECTORS = ("scale_a", "scale_b", "bias")
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


@mlir_namedtuple
class FusedArguments(NamedTuple):
    """What the epilogue reads; vectors lie along the kernel's own n (rows) or m (columns).

    Where a gate pairs two halves of n, rows are of the first, and those of the second beside them.
    """

    alpha: Float32 | None = None
    beta: Float32 | None = None
    one_scale_a: cute.Pointer | None = None
    one_scale_b: cute.Pointer | None = None
    row_scale_a: cute.Tensor | None = None
    row_scale_b: cute.Tensor | None = None
    row_bias: cute.Tensor | None = None
    column_scale_a: cute.Tensor | None = None
    column_scale_b: cute.Tensor | None = None
    column_bias: cute.Tensor | None = None
    second_scale_b: cute.Tensor | None = None
    second_bias: cute.Tensor | None = None


class Epilogue:
    """What is done to a product by the operands that a kernel has, whatever its architecture."""

    EpilogueArguments = FusedArguments
    config: Any
    operands: GemmOperands

    @cute.jit
    def epi_visit_subtile(self, params, epi_loop_tensors, tRS_rD, tRS_rC=None):
        """Do it to one piece of the tile, element by element in registers."""
        for i in cutlass.range_constexpr(cute.size(tRS_rD)):
            tRS_rD[i] = self._finished(tRS_rD[i], epi_loop_tensors, tRS_rC, i)
        return ()

    def _finished(self, value, given, matrix, i):
        """What becomes of an element; where there is a gate, of that and the one it pairs."""
        value = self._before_gate(value, given, matrix, i, ("row", "column"))
        if not self.operands.gate:
            return value
        gate = EPILOGUES[self.operands.gate]
        pair = value, self._before_gate(self.second[i], given, matrix, i, ("second", "column"))
        return _function(gate.device)(pair[gate.half]) * pair[1 - gate.half]

    def _before_gate(self, value, given, matrix, i, lines):
        """What all steps but a gate make of an element, with vectors of these two lines."""
        for name in ("scale_a", "scale_b"):
            if f"one_{name}" in given:
                value = value * given[f"one_{name}"]
            for line in lines:
                if f"{line}_{name}" in given:
                    value = value * given[f"{line}_{name}"][i]
        for step in self.operands.epilogue:
            if step != self.operands.gate:
                value = self._step(step, value, given, matrix, i, lines)
        return value

    def _step(self, step, value, given, matrix, i, lines):
        fusion = EPILOGUES[step]
        extras = [self._extra(extra, given, matrix, i, lines) for extra in fusion.extras]
        if fusion.device:
            return _function(fusion.device)(value, *extras)
        if step == "alpha":
            return value * extras[0]
        if step == "beta-c":
            matrix, beta = extras
            return value + beta * matrix
        return value + extras[0]

    def _extra(self, extra, given, matrix, i, lines):
        """What an extra holds for the element, which lies in a vector of either line."""
        if extra.kind == MATRIX:
            return matrix[i].to(self.acc_dtype)
        if extra.kind == NUMBER:
            return given[extra.name]
        along, across = (f"{line}_{extra.name}" for line in lines)
        return given[along if along in given else across][i]

    def arguments(self, extras: tuple):
        """What the epilogue reads of the operands' extras; a matrix and ends of groups, or None."""
        arguments, matrix, ends = {}, None, None
        lines = {ROW: "row", COLUMN: "column"}
        if self.config.swap_ab:
            lines = {ROW: "column", COLUMN: "row"}
        for extra, value in zip(self.operands.extras, extras, strict=True):
            if extra.kind == MATRIX:
                matrix = value
            elif extra.kind == GROUP_ENDS:
                ends = value
            elif extra.kind == ONE:
                arguments[f"one_{extra.name}"] = value.iterator
            elif extra.kind == ROW and self.operands.gate != "":
                half = cute.make_layout((cute.size(value) // 2,))
                arguments[f"row_{extra.name}"] = cute.make_tensor(value.iterator, half)
                second = value.iterator + cute.size(value) // 2
                arguments[f"second_{extra.name}"] = cute.make_tensor(second.align(4), half)
            elif extra.kind in lines:
                arguments[f"{lines[extra.kind]}_{extra.name}"] = value
            else:
                arguments[extra.name] = value
        return FusedArguments(**arguments), matrix, ends


class FusedGemm(Epilogue, TunableGemm):
    """The same, with all that operands name done to the product before it is stored.

    A gate pairs the two halves of B, of which a tile has as many columns each. Behind the products
    the tile is as wide as one of them: it is stored, and vectors are read, as in any other kernel.
    """

    _epi_ops = (
        *(Scalar(name) for name in ("alpha", "beta", "one_scale_a", "one_scale_b")),
        *(_EarlyRow(f"row_{name}") for name in _VECTORS),
        *(_EarlyColumn(f"column_{name}") for name in _VECTORS),
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
            op.load(vector, piece, self.tile[op._coord_idx()], threads)
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
