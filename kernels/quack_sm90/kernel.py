"""QuACK's SM90 GEMM with every knob taken from a config, and k split within a cluster.

The device code, its pipelines and its epilogue are QuACK's. Set here: stages, CTAs per SM, raster
order; and, where CTAs of a cluster share a tile, which of them multiplies what and how they add up.
``tests/slow/kernels/test_quack_contract.py`` states what this relies on.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from math import gcd
from typing import NamedTuple

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, const_expr
import quack.sm90_utils
from quack import copy_utils
from quack.epilogue.mixin import ComposableEpiMixin
from quack.gemm_sm90 import GemmSm90
from quack.layout_utils import select
from quack.rounding import RoundingMode
from quack.tile_scheduler import (
    RasterOrderOption,
    TileScheduler,
    TileSchedulerOptions,
    WorkTileInfo,
)

from tilecast.heuristics.operands import K_GROUPS, GemmOperands
from tilecast.kernels.quack.grouped import SCHEDULERS, varlen_arguments
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.conversion import ConvertedA
from tilecast.kernels.quack_sm90.resources import epilogue_stages, epilogue_tile, registers
from tilecast.kernels.stages import TILE_K_BYTES
# isort: on

_RASTERS = {"m": RasterOrderOption.AlongM, "n": RasterOrderOption.AlongN}
_FRAGMENT = 4
"""Accumulators that move at once: 16 bytes."""
_STORED = 8
"""Elements that a thread has on their way at once where threads store out."""


_partition = quack.sm90_utils.partition_fragment_ABC


def _partition_in_own_type(thr_mma, *args, **kwargs):
    """Fragments whose accumulators have the type that the instruction adds up in.

    QuACK makes them float32, which no product of int8 is; what it made is left unused.
    """
    acc, a, b = _partition(thr_mma, *args, **kwargs)
    return cute.make_rmem_tensor(acc.shape, thr_mma.op.acc_dtype), a, b


quack.sm90_utils.partition_fragment_ABC = _partition_in_own_type


class EpilogueArguments(NamedTuple):
    """What the epilogue of a bare product reads: nothing."""


class SplitScheduler(TileScheduler):
    """One tile per cluster, which lies along z; each of its CTAs takes one stretch of k."""

    @staticmethod
    def get_grid_shape(params, max_active_clusters, *, loc=None, ip=None):
        """Blocks along x, y and z."""
        clusters_m, clusters_n, batch = params.problem_shape_ncluster_mnl
        along_m, along_n, split = params.cluster_shape_mnk
        return clusters_m * clusters_n * along_m, along_n, split * batch

    @cute.jit
    def _delinearize_work_idx(
        self, work_idx, bidz=None, is_valid=None, *, block_zero_only=False, loc=None, ip=None
    ):
        along_m, along_n, splits = self.params.cluster_shape_mnk
        m, n, split = cute.arch.block_in_cluster_idx()
        cluster_m, cluster_n = self._swizzle_cta(work_idx, loc=loc, ip=ip)
        tile = (cluster_m * along_m + m, cluster_n * along_n + n)
        batch = Int32(cute.arch.block_idx()[2] // splits)
        return WorkTileInfo((*tile, Int32(split), batch), self.num_tiles_executed == 0)

    @cute.jit
    def get_current_work(self, *, loc=None, ip=None):
        """No further tile."""
        return WorkTileInfo((Int32(0), Int32(0), Int32(0), Int32(0)), Boolean(False))


class PairedSplitScheduler(SplitScheduler):
    """The same, with k cut between pairs of stages: where kernels with stages twice as deep cut."""

    @cute.jit
    def get_split_k_tile_range(self, k_tile_total: Int32, split_idx: Int32, *, loc=None, ip=None):
        """The first stage of a CTA's stretch, and the number of its stages."""
        return _stretch(k_tile_total, split_idx, self.params.num_split_k, 2)


@cute.jit
def _stretch(stages: Int32, number: Int32, count: cutlass.Constexpr, together: cutlass.Constexpr):
    """The first stage of a stretch of k, and the number of its stages.

    Stretches are as long as each other, or the first of them are ``together`` stages longer: as
    QuACK cuts k, but that so many stages stay together.
    """
    pieces = (stages + together - 1) // together
    each = pieces // count
    longer = pieces - each * count
    first = (number * each + cutlass.min(number, longer)) * together
    length = (each + Int32(number < longer)) * together
    return first, cutlass.min(length, stages - first)


class TunableGemm(ComposableEpiMixin, GemmSm90):
    """out = A @ B on Hopper, with every tuning parameter taken from a `QuackConfig`.

    Calling it (under ``cute.compile``) takes A (batch, m, k), B (batch, k, n) and out (batch, m,
    n), or the same without the batch; ``max_active_clusters``, the clusters that fit on the GPU at
    once; and a stream. Extents, strides and ``max_active_clusters`` stay run-time values.

    It is launched as a programmatic dependent: it may begin while the kernel before it in the
    stream ends, and reads nothing until that one is done.
    """

    EpilogueArguments = EpilogueArguments

    def __init__(self, config: QuackConfig, operands: GemmOperands, any_rows: bool = False):
        """Set what does not depend on extents.

        Args:
            config: a config that is valid for the target (`tilecast.kernels.quack_sm90.space`).
            operands: dtypes and majors.
            any_rows: whether rows of out may begin anywhere, so that threads store it, not TMA.
        """
        converted = operands.converted
        # As it is multiplied: what is narrower has become operands.a's type by then.
        a = operands.b if config.swap_ab and not converted else operands.a
        self._mma_dtype = getattr(cutlass, operands.acc.cutlass)
        whole = operands.out.dtype.name == "int32"
        super().__init__(
            # What the epilogue computes in.
            cutlass.Int32 if whole else cutlass.Float32,
            getattr(cutlass, a.dtype.cutlass),
            (config.tile_m, config.tile_n, config.tile_k),
            (config.cluster_m, config.cluster_n, config.split_k),
            pingpong=config.schedule == "pong",
            is_persistent=config.split_k == 1,
            fp8_fast_accum=not operands.promoted,
            use_pdl=True,
            split_k=config.split_k,
            transform_a=ConvertedA if converted else None,
        )
        self.config, self.operands, self.any_rows = config, operands, any_rows
        self._stretches = operands.stretches if config.split_k == 1 else 1
        depth = operands.a.dtype.bytes(config.tile_k)
        self._together = TILE_K_BYTES[-1] // int(depth) if operands.stretches > 1 else 1
        self.occupancy = config.ctas_per_sm
        self.num_regs_load, self.num_regs_mma = map(int, registers(config, operands))
        self.a_transposed = config.swap_ab and not converted
        self.cd_transposed = config.swap_ab
        # Of groups along k B has two extents, which QuACK does not exchange.
        self.b_transposed = not config.swap_ab and operands.groups != K_GROUPS

    def _setup_tiled_mma(self):
        epilogue_dtype, self.acc_dtype = self.acc_dtype, self._mma_dtype
        super()._setup_tiled_mma()
        self.acc_dtype = epilogue_dtype

    @cute.jit
    def epi_load_acc_subtile(self, tRS_rAcc, tRS_rD, epi_coord, no_release=False):
        """Bring a piece of the accumulators into the type that the epilogue computes in."""
        tRS_rD.store(tRS_rAcc[None, None, None, epi_coord].load().to(self.acc_dtype))

    def _compute_tile_shape_or_override(self, *args, **kwargs):
        return tuple(map(int, epilogue_tile(self.config, self.operands)))

    def _compute_stages(self, *args, **kwargs):
        config, operands = self.config, self.operands
        return config.stages, *map(int, epilogue_stages(config, operands))

    @cute.jit
    def mma(self, pipeline, state, multiply, sums, slow, k_tiles: Int32, warp_group: Int32):
        """Multiply a tile. Stretches of k are added up apart, as the CTAs of a split do."""
        if const_expr(self._stretches == 1):
            return GemmSm90.mma(self, pipeline, state, multiply, sums, slow, k_tiles, warp_group)
        total = cute.make_rmem_tensor(sums.shape, sums.element_type)
        total.fill(-0.0)  # which changes no sum, not even one of -0
        takes_turns, self.pingpong = const_expr(self.pingpong), False
        for number in cutlass.range(self._stretches, unroll=1):
            _, length = _stretch(k_tiles, number, self._stretches, self._together)
            state = GemmSm90.mma(*(self, pipeline, state, multiply, sums, slow, length, warp_group))
            total.store(total.load() + sums.load())
        sums.store(total.load())
        self.pingpong = takes_turns
        if const_expr(takes_turns):
            self.pingpong_barrier_arrive(1 - warp_group, stage="mma")
        return state

    def get_scheduler_class(self, varlen_m: bool = False):
        """Which CTA multiplies what."""
        if self.operands.groups:
            return SCHEDULERS[self.operands.groups]
        if self.split_k == 1:
            return TileScheduler
        return SplitScheduler if self._together == 1 else PairedSplitScheduler

    def kernel(self, *args, **kwargs):
        """The device code, ready to be launched."""
        return _WholeSharedMemory(super().kernel(*args, **kwargs))

    def epi_to_underlying_arguments(self, args, *, loc=None, ip=None):
        """What the device code gets of the epilogue's arguments."""
        self.rounding_mode = RoundingMode.RN
        return self.EpilogueParams(**self._epi_ops_to_params_dict(args))

    def epi_get_smem_tensors(self, params, storage):
        """The epilogue's shared memory; remembers where A and B lie, which splits exchange by."""
        self._stages_pointer = storage.sA.data_ptr()
        return super().epi_get_smem_tensors(params, storage)

    @cute.jit
    def epi_visit_subtile(self, params, epi_loop_tensors, tRS_rD, tRS_rC=None):
        """What is done to a piece of the tile before it is stored: nothing."""
        return ()

    def make_tma_epilogue_atoms_and_tensors(self, out, matrix, *others):
        """What TMA stores out by, or out itself where threads do, and loads a matrix like it by."""
        if not self.any_rows:
            return super().make_tma_epilogue_atoms_and_tensors(out, matrix, *others)
        return None, out, *super().make_tma_epilogue_atoms_and_tensors(None, matrix, *others)[2:]

    def epilog_gmem_copy_and_partition(self, atom, whole, tile, piece, staged, place):
        """What copies a piece of the tile between its place in memory and where it is staged."""
        if atom is not None:
            return super().epilog_gmem_copy_and_partition(atom, whole, tile, piece, staged, place)

        def pieces(tensor):
            return cute.zipped_divide(cute.local_tile(tensor, tile, place[:2]), piece)

        where = pieces(cute.make_identity_tensor(whole.shape))
        return partial(self._store_piece, pieces(whole), where, whole.shape, staged), None, None

    @cute.jit
    def _store_piece(
        self,
        pieces: cute.Tensor,
        where: cute.Tensor,
        extents: cute.Shape,
        staged: cute.Tensor,
        src_idx: Int32,
        dst_idx: cutlass.Constexpr,
    ):
        """Store a staged piece, all threads together, element by element along what is contiguous.

        Rows begin anywhere, so that no two elements may be known to lie in one word. Addresses
        follow from one another, and rounds are at least two: the compiler would keep those of all
        elements for the next piece, in more registers than there are.
        """
        along = const_expr(1 if self.d_layout.is_n_major_c() else 0)
        threads = const_expr(self.num_epi_warps * cute.arch.WARP_SIZE)
        width = const_expr(cute.size(staged, mode=[along]))
        step = const_expr(threads // width)
        shape = const_expr((step, width) if along else (width, step))
        order = cute.make_ordered_layout(shape, order=(1, 0) if along else (0, 1))
        thread = cute.arch.thread_idx()[0] % threads
        own = cute.local_partition(staged[None, None, src_idx], order, thread)
        out = cute.local_partition(pieces[(None, None), dst_idx], order, thread)
        first = cute.local_partition(where[(None, None), dst_idx], order, thread)[0]
        lines = extents[1 - along] - first[1 - along]
        if first[along] >= extents[along]:
            lines = Int32(0)
        moves = const_expr(cute.size(own))
        together = const_expr(gcd(moves // 2, _STORED))
        values = cute.make_rmem_tensor(together, staged.element_type)
        place, further = out.iterator, cute.crd2idx(1, out.layout)
        for i in cutlass.range(0, moves, together, unroll=1):
            left = lines - i * step
            for j in cutlass.range_constexpr(together):
                values[j] = own[i + j]
            for j in cutlass.range_constexpr(together):
                if j * step < left:
                    cute.make_tensor(place, 1)[0] = values[j]
                place = place + further

    def epilogue(self, params, smem_tensors, loads, stores, *args, **kwargs):
        """Finish a tile and store it, by what waits for TMA's stores if it is that which stores."""
        stores = None if self.any_rows else stores
        return super().epilogue(params, smem_tensors, loads, stores, *args, **kwargs)

    @cute.jit
    def epilogue_split_k(
        self,
        params,
        epi_fn,
        load_acc_subtile,
        tRS_rD,
        epi_tile,
        epi_read_state,
        epi_producer_state,
        epi_store_pipeline,
        tile_coord_mnkl,
        epilogue_barrier,
        tidx,
        is_tma_warp,
    ):
        """Run the epilogue; where k is split, on the sums of all CTAs of the cluster.

        The tile is stored in pieces. Every ``split_k``-th piece is one CTA's to finish: it is sent
        the others' sums of it, through the shared memory in which A and B were staged, adds them
        to its own in the order of the CTAs and stores it. So results are the same in every run and
        wherever a row lies, and nothing outside the cluster is needed.
        """
        if const_expr(self.split_k == 1):
            return epi_fn(load_acc_subtile)
        split = tile_coord_mnkl[2]
        shape = cute.zipped_divide(cute.make_layout(self.cta_tile_shape_mnk[:2]), epi_tile).shape[1]
        order = (0, 1) if const_expr(self.epi_m_major) else (1, 0)
        pieces = cute.make_ordered_layout(shape, order=order)
        buffer = cute.recast_ptr(self._stages_pointer, dtype=self.acc_dtype)
        threads = const_expr(self.num_epi_warps * cute.arch.WARP_SIZE)
        moves = const_expr(cute.size(tRS_rD) // _FRAGMENT)
        size = const_expr(moves * threads * _FRAGMENT)
        others = const_expr(self.split_k - 1)
        # CTAs that have the same split; ranks count along m, then n, then k.
        sharers = const_expr(self.config.cluster_m * self.config.cluster_n)
        tile_rank = cute.arch.block_idx_in_cluster() % sharers

        # All have multiplied: nobody reads its stages of A and B any more.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        for i in cutlass.range_constexpr(cute.size(shape)):
            owner = const_expr(i % self.split_k)
            if split != owner:
                rank = split - Int32(split > owner)
                place = buffer + (i // self.split_k * others + rank) * size
                remote = cute.arch.map_dsmem_ptr(place, tile_rank + owner * sharers)
                load_acc_subtile(tRS_rD, pieces.get_hier_coord(i))
                for v in cutlass.range_constexpr(moves):
                    sent = cute.make_tensor(tRS_rD.iterator + _FRAGMENT * v, _FRAGMENT)
                    cute.autovec_copy(sent, _fragment(remote, v * threads + tidx))
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

        def load_sum(tRS_rD_, epi_coord, **kwargs):
            load_acc_subtile(tRS_rD_, epi_coord, **kwargs)
            i = const_expr(cute.crd2idx(epi_coord, pieces))
            place = buffer + i // self.split_k * others * size
            if split == i % self.split_k:
                self._add_others(tRS_rD_, place, i % self.split_k, threads, tidx)

        def store_own(src_idx, dst_idx):
            i = const_expr(cute.crd2idx(dst_idx, pieces))
            self._store_if(split == i % self.split_k, epi_fn.keywords["copy_D"], src_idx, dst_idx)

        finish = partial(epi_fn.func, *epi_fn.args, **{**epi_fn.keywords, "copy_D": store_own})
        if split < cute.size(shape):
            epi_read_state, epi_producer_state = finish(load_sum)
        return epi_read_state, epi_producer_state

    @cute.jit
    def _add_others(
        self,
        sums: cute.Tensor,
        place: cute.Pointer,
        own: cutlass.Constexpr,
        threads: cutlass.Constexpr,
        tidx: Int32,
    ):
        """Make a CTA's own sums, of the stretch of this number, those of all stretches in order."""
        moves = const_expr(cute.size(sums) // _FRAGMENT)
        for i in cutlass.range_constexpr(moves):
            total = cute.make_rmem_tensor(_FRAGMENT, self.acc_dtype)
            for stretch in cutlass.range_constexpr(self.split_k):
                part = cute.make_tensor(sums.iterator + _FRAGMENT * i, _FRAGMENT)
                if const_expr(stretch != own):
                    part = cute.make_rmem_tensor(_FRAGMENT, self.acc_dtype)
                    rank = const_expr(stretch - (stretch > own))
                    cute.autovec_copy(_fragment(place, (rank * moves + i) * threads + tidx), part)
                total.store(part.load() if stretch == 0 else total.load() + part.load())
            for e in cutlass.range_constexpr(_FRAGMENT):
                sums[_FRAGMENT * i + e] = total[e]

    @cute.jit
    def _store_if(self, own: Boolean, copy: cutlass.Constexpr, src_idx, dst_idx: cutlass.Constexpr):
        if own:
            copy(src_idx=src_idx, dst_idx=dst_idx)

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        max_active_clusters: Int32,
        stream,
    ):
        """Launch out = A @ B; see the class for the shapes."""
        self.launch(a, b, out, None, self.EpilogueArguments(), max_active_clusters, stream)

    def launch(self, a, b, out, matrix, epilogue_arguments, max_active_clusters, stream, ends=None):
        """Launch with a matrix like out, or None, and what else the epilogue reads.

        ``ends`` are those of the groups, of rows of A or along k.
        """
        order = TileSchedulerOptions(
            max_active_clusters, _RASTERS[self.config.raster], Int32(self.config.swizzle)
        )
        if self.config.swap_ab:
            a, b = b, a
        if const_expr(self.operands.groups == K_GROUPS):
            b = select(b, [1, 0])
        if const_expr(self.transform_a is not None):
            # QuACK leaves the order of its extents, which is m, k, batch, to what transforms it.
            a = select(self.permute_batch_last(a, append_batch_if_2d=True), [1, 0, 2])
        with _loads_shared_within_splits(self.config):
            groups = varlen_arguments(self.operands.groups, ends)
            GemmSm90.__call__(self, a, b, out, matrix, epilogue_arguments, order, groups, stream)


@contextmanager
def _loads_shared_within_splits(config: QuackConfig):
    """Where k is split, have CTAs of one split share loads, and not those of all splits.

    QuACK knows the CTAs of a cluster by m and n alone. Those of one split have ranks that follow
    each other, and they lie along m or along n, not both.
    """
    whole = copy_utils.tma_get_block_copy_fn

    def shared(*args, tma_multicast, **kwargs):
        along_m = tma_multicast["multicast_dim"] == "N"
        sharers = config.cluster_m if along_m else config.cluster_n
        ranks = {"cluster_shape": (sharers, config.split_k), "multicast_dim": "N"}
        return whole(*args, tma_multicast=ranks, **kwargs)

    if config.split_k > 1:
        copy_utils.tma_get_block_copy_fn = shared
    try:
        yield
    finally:
        copy_utils.tma_get_block_copy_fn = whole


class _WholeSharedMemory:
    """A kernel that is launched with all of an SM's shared memory to be had.

    Stated, because the DSL would otherwise ask a GPU, and this compiles without one.
    """

    def __init__(self, kernel):
        self._kernel = kernel

    def launch(self, **options):
        return self._kernel.launch(preferred_smem_carveout=100, **options)


def _fragment(place: cute.Pointer, index: Int32) -> cute.Tensor:
    """The accumulators that one thread moves at once."""
    return cute.make_tensor((place + index * _FRAGMENT).align(16), _FRAGMENT)
