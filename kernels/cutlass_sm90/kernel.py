"""The tunable SM90 GEMM: NVIDIA's device code under a host side that takes every knob explicitly.

The device function, its TMA set-up and its shared-memory layouts are inherited from
``cutlass.operators``; what decides speed (tile, stages, warp groups, CTAs per SM, raster, swizzle,
operand exchange) is set here from a `Sm90Config`. ``tests/unit/test_kernel_contract.py`` states
what this relies on.
"""

# The DSL reads its struct annotations as code, and its packages are joined at import time: a type
# checker sees neither.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false
# pyright: reportInvalidTypeArguments=false

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass.operators.providers.cutedsl.gemm.implementations.sm90_static_persistent_impl import (
    Sm90StaticPersistentGemmKernel,
)
from cutlass.tensor_utils import LayoutEnum

from tilecast.kernels.cutlass_sm90.config import Sm90Config
from tilecast.kernels.cutlass_sm90.resources import (
    EPILOGUE_STAGES,
    LOAD_REGISTERS,
    epilogue_tile,
    mma_registers,
)

_BUFFER_ALIGNMENT = 1024
"""Bytes: the 128-byte swizzle of TMA and WGMMA repeats every 1024 bytes of shared memory."""


class TunableGemmKernel(Sm90StaticPersistentGemmKernel):
    """out = A @ B on Hopper, with every tuning parameter taken from a `Sm90Config`.

    Calling it (under ``cute.compile``) takes A (batch, m, k), B (batch, k, n) and out (batch, m,
    n), or the same without the batch; ``max_active_clusters``, the clusters that fit on the GPU at
    once; and a stream. Extents, strides and ``max_active_clusters`` stay run-time values.
    """

    def __init__(self, config: Sm90Config, acc_dtype: type[cutlass.Numeric] = cutlass.Float32):
        """Set what does not depend on the operands.

        Args:
            config: a config that is valid for the target (`tilecast.kernels.cutlass_sm90.space`).
            acc_dtype: accumulator dtype.
        """
        super().__init__(
            acc_dtype,
            (config.tile_m, config.tile_n),
            (config.cluster_m, config.cluster_n),
            swizzle_size=config.swizzle,
            raster_along_m=config.raster == "m",
        )
        self.config = config
        self.occupancy = config.ctas_per_sm
        self.atom_layout_mnk = (config.warp_groups, 1, 1)
        self.num_mma_warp_groups = config.warp_groups
        self.num_mma_threads = config.warp_groups * self.num_threads_per_warp_group
        self.threads_per_cta = self.num_mma_threads + self.num_threads_per_warp_group
        self.load_register_requirement = LOAD_REGISTERS
        self.mma_register_requirement = mma_registers(config)
        self.epilog_sync_barrier = pipeline.NamedBarrier(
            barrier_id=1, num_threads=self.num_mma_threads
        )

    def _setup_attributes(self) -> None:
        """Derive the tiled MMA, multicast and shared-memory layouts from config and operands."""
        config = self.config
        self.tile_shape_mnk = (config.tile_m, config.tile_n, config.tile_k)
        self.tiled_mma = sm90_utils.make_trivial_tiled_mma(
            self.a_dtype,
            self.b_dtype,
            self.a_layout.sm90_mma_major_mode(),
            self.b_layout.sm90_mma_major_mode(),
            self.acc_dtype,
            self.atom_layout_mnk,
            tiler_mn=(64, config.tile_n),
        )
        self.cta_layout_mnk = cute.make_layout((*self.cluster_shape_mn, 1))
        self.num_mcast_ctas_a, self.num_mcast_ctas_b = config.cluster_n, config.cluster_m
        self.is_a_mcast = config.cluster_n > 1
        self.is_b_mcast = config.cluster_m > 1
        self.epi_tile = epilogue_tile(config)
        self.ab_stage, self.epi_stage = config.stages, EPILOGUE_STAGES
        (
            self.a_smem_layout_staged,
            self.b_smem_layout_staged,
            self.epi_smem_layout_staged,
        ) = self._make_smem_layouts(
            self.tile_shape_mnk,
            self.epi_tile,
            self.a_dtype,
            self.a_layout,
            self.b_dtype,
            self.b_layout,
            self.ab_stage,
            self.c_dtype,
            self.c_layout,
            self.epi_stage,
        )

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        max_active_clusters: cutlass.Int32,
        stream,
    ):
        """Launch out = A @ B; see the class for the shapes."""
        # The device code wants (m, k, batch), (n, k, batch) and (m, n, batch).
        a = _batch_last(a)
        b = _exchange_modes(_batch_last(b))
        out = _batch_last(out)
        if cutlass.const_expr(self.config.swap_ab):
            a, b, out = b, a, _exchange_modes(out)

        self.a_dtype, self.b_dtype, self.c_dtype = (
            a.element_type,
            b.element_type,
            out.element_type,
        )
        self.a_layout, self.b_layout, self.c_layout = (
            LayoutEnum.from_tensor(a),
            LayoutEnum.from_tensor(b),
            LayoutEnum.from_tensor(out),
        )
        self._setup_attributes()

        tile_m, tile_n, tile_k = self.tile_shape_mnk
        load_a, tensor_a = self._make_tma_atoms_and_tensors(
            a, self.a_smem_layout_staged, (tile_m, tile_k), self.num_mcast_ctas_a
        )
        load_b, tensor_b = self._make_tma_atoms_and_tensors(
            b, self.b_smem_layout_staged, (tile_n, tile_k), self.num_mcast_ctas_b
        )
        store, tensor_out = self._make_tma_store_atoms_and_tensors(
            out, self.epi_smem_layout_staged, self.epi_tile
        )
        schedule, grid = self._compute_grid(
            out,
            self.tile_shape_mnk,
            self.cluster_shape_mn,
            self.swizzle_size,
            self.raster_along_m,
            max_active_clusters,
        )

        # The inherited device code reads these four fields by name.
        @cute.struct
        class SharedStorage:
            mainloop_pipeline_array_ptr: cute.struct.MemRange[cutlass.Int64, self.ab_stage * 2]
            sA: cute.struct.Align[
                cute.struct.MemRange[self.a_dtype, cute.cosize(self.a_smem_layout_staged)],
                _BUFFER_ALIGNMENT,
            ]
            sB: cute.struct.Align[
                cute.struct.MemRange[self.b_dtype, cute.cosize(self.b_smem_layout_staged)],
                _BUFFER_ALIGNMENT,
            ]
            sC: cute.struct.Align[
                cute.struct.MemRange[self.c_dtype, cute.cosize(self.epi_smem_layout_staged)],
                _BUFFER_ALIGNMENT,
            ]

        self.shared_storage = SharedStorage
        self.kernel(
            load_a,
            tensor_a,
            load_b,
            tensor_b,
            store,
            tensor_out,
            self.tiled_mma,
            self.cta_layout_mnk,
            self.a_smem_layout_staged,
            self.b_smem_layout_staged,
            self.epi_smem_layout_staged,
            schedule,
        ).launch(
            grid=grid,
            block=[self.threads_per_cta, 1, 1],
            cluster=(*self.cluster_shape_mn, 1),
            min_blocks_per_mp=self.occupancy,
            # Stated, because the DSL would otherwise ask a GPU, and this compiles without one.
            preferred_smem_carveout=100,
            stream=stream,
        )


def _batch_last(tensor: cute.Tensor) -> cute.Tensor:
    """View (rows, columns) or (batch, rows, columns) as (rows, columns, batch)."""
    layout = cute.prepend(tensor.layout, cute.make_layout(1), up_to_rank=3)
    return cute.make_tensor(tensor.iterator, cute.select(layout, [1, 2, 0]))


def _exchange_modes(tensor: cute.Tensor) -> cute.Tensor:
    """View (rows, columns, batch) as (columns, rows, batch)."""
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, [1, 0, 2]))
