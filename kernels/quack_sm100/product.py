"""QuACK's SM100 GEMM with every knob taken from a config.

Device code and pipelines are QuACK's.
"""

# The DSL's packages are joined at import time: a type checker does not see them.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from typing import Any

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr
from quack.epilogue.mixin import ComposableEpiMixin
from quack.epilogue.ops import ColVecLoad, RowVecLoad, Scalar
from quack.gemm_config import SplitKMode
from quack.gemm_sm100 import GemmSm100
from quack.layout_utils import select
from quack.rounding import RoundingMode
from quack.tile_scheduler import RasterOrderOption, TileSchedulerOptions

from tilecast.heuristics.operands import BLOCK, K_GROUPS, GemmOperands
from tilecast.kernels.quack.epilogue import NUMBERS, VECTORS, Epilogue, FusedArguments
from tilecast.kernels.quack_sm100.config import Sm100Config
from tilecast.kernels.quack_sm100.resources import accumulators, epilogue_stages, pairs
from tilecast.kernels.quack.grouped import SCHEDULERS, varlen_arguments
# isort: on

_RASTERS = {"m": RasterOrderOption.AlongM, "n": RasterOrderOption.AlongN}


class Sm100Gemm(Epilogue, ComposableEpiMixin, GemmSm100):
    """out = A @ B on Blackwell; called as `tilecast.kernels.quack_sm90.kernel.TunableGemm` is."""

    _epi_ops = (
        *(Scalar(name) for name in NUMBERS),
        *(RowVecLoad(f"row_{name}") for name in VECTORS),
        *(ColVecLoad(f"column_{name}") for name in VECTORS),
    )

    def __init__(self, config: Sm100Config, operands: GemmOperands):
        """Set what does not depend on extents."""
        rows = int(config.tile_m * (1 + pairs(config)))
        super().__init__(
            cutlass.Float32,
            getattr(cutlass, operands.a.dtype.cutlass),
            (rows, config.tile_n, config.tile_k),
            (config.cluster_m, config.cluster_n, 1),
            sf_vec_size=BLOCK if operands.block_scaled else None,
            use_clc_persistence=True,
            use_pdl=True,
            split_k=config.split_k,
            split_k_mode=SplitKMode.SEPARATE,
        )
        self.config, self.operands = config, operands
        self.a_transposed = self.cd_transposed = config.swap_ab
        # Of groups along k B has two extents, which QuACK does not exchange.
        self.b_transposed = not config.swap_ab and operands.groups != K_GROUPS

    def _compute_stages(self, *args, **kwargs):
        config = self.config
        return (
            int(accumulators(config, self.operands)),
            config.stages,
            int(epilogue_stages(config)),
            0,
        )

    def get_scheduler_class(self, varlen_m: bool = False):
        """What hands out tiles; all threads wait there, where more than loads have to.

        Of groups all read where they end. Of a stretch of k without a stage nothing is loaded: its
        zeros must not be stored while the kernel in front reads what lies there.
        """
        if self.split_k > 1:
            return SCHEDULERS[K_GROUPS]
        groups = self.operands.groups
        return SCHEDULERS[groups] if groups else super().get_scheduler_class(varlen_m)

    def epi_to_underlying_arguments(self, args, *, loc=None, ip=None):
        """What the device code gets of the epilogue's arguments."""
        self.rounding_mode = RoundingMode.RN
        return self.EpilogueParams(**self._epi_ops_to_params_dict(args))

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, clusters: Int32, stream):
        """Launch out = A @ B."""
        self.launch(a, b, out, FusedArguments(), clusters, stream)

    def launch(self, a, b, out, arguments, clusters, stream, scale_a=None, scale_b=None, ends=None):
        """Launch with what the epilogue reads; the hardware hands out tiles, to all clusters.

        ``scale_a`` and ``scale_b`` are those of `ROW_BLOCKS` and `COLUMN_BLOCKS`, ``ends`` those of
        the groups.
        """
        if scale_a is not None:
            m, k = a.shape
            scale_a, scale_b = _tiled(scale_a, m, k), _tiled(scale_b, b.shape[1], k)
        order = TileSchedulerOptions(
            clusters, _RASTERS[self.config.raster], Int32(self.config.swizzle)
        )
        if self.config.swap_ab:
            a, b, scale_a, scale_b = b, a, scale_b, scale_a
        if const_expr(self.operands.groups == K_GROUPS):
            b = select(b, [1, 0])
        groups = varlen_arguments(self.operands.groups, ends)
        given = a, b, out, None, arguments, order, groups, stream, scale_a, scale_b
        GemmSm100.__call__(self, *given)


def _tiled(scales, rows, k):
    """Scales of blocks as QuACK takes them: tiles of rows, tiles along k, and inside 32 x 4 x 4."""
    tiles = cute.ceil_div(rows, 128), cute.ceil_div(k, 4 * BLOCK)
    strides = 512 * tiles[1], 512, 16, 4, 1
    return cute.make_tensor(scales.iterator, cute.make_layout((*tiles, 32, 4, 4), stride=strides))


class TakesExtras:
    """Has such a kernel called with a tuple of the operands' extras behind out."""

    arguments: Any
    launch: Any
    blockscaled: bool

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        extras: tuple,
        clusters: Int32,
        stream,
    ):
        """Launch; see the class."""
        arguments, _, ends = self.arguments(extras)
        blocks = extras[:2] if self.blockscaled else (None, None)
        self.launch(a, b, out, arguments, clusters, stream, *blocks, ends)
