"""Groups of rows of A, each multiplied by a B of its own, and groups along k.

They are no family of their own: QuACK's kernel takes groups, too, and with them all knobs but a
split of k and swap_ab. Tiles of rows are handed out on the device, which alone knows where groups
end.
"""

# The DSL's packages are joined at import time: a type checker does not see them.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from typing import Any

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.experimental import primitives as prims
from quack.tile_scheduler import TileScheduler, VarlenMTileScheduler
from quack.varlen_utils import VarlenArguments

from tilecast.heuristics.operands import K_GROUPS, ROW_GROUPS
# isort: on


class GroupStarts:
    """Where groups begin, and behind the last where it ends, as QuACK reads them.

    PyTorch has a tensor of their ends alone. To copy it behind a 0 would take a kernel of its own
    in front of every product.
    """

    def __init__(self, ends: cute.Tensor):
        """Take the end of each group."""
        self._ends = ends

    @property
    def shape(self):
        """One more than there are groups."""
        extents: Any = self._ends.shape
        return (extents[0] + 1,)

    def __getitem__(self, group: Int32) -> Int32:
        """Where a group begins."""
        before = self._ends[cutlass.max(Int32(group) - 1, 0)]
        return Int32(group > 0) * before

    def __extract_mlir_values__(self):
        """The tensor, as the DSL hands it to the device."""
        return cutlass.extract_mlir_values(self._ends)

    def __new_from_mlir_values__(self, values):
        """The same of the tensor that the device has."""
        return GroupStarts(cutlass.new_from_mlir_values(self._ends, values))


def _behind(scheduler: type) -> type:
    """The same scheduler, behind the kernel that writes where groups end."""

    class Scheduler(scheduler):
        def initial_work_tile_info(self, **where):
            prims.griddepcontrol(prims.GridDepAction.WAIT)
            return super().initial_work_tile_info(**where)

    return Scheduler


SCHEDULERS = {ROW_GROUPS: _behind(VarlenMTileScheduler), K_GROUPS: _behind(TileScheduler)}
"""What hands out tiles: those of the groups one after the other, and those of one in the order of
the raster. All threads wait there, as all read where groups end."""


def varlen_arguments(groups: str, ends: cute.Tensor | None) -> VarlenArguments | None:
    """What QuACK's kernel is told of groups, with the end of each; of none, nothing."""
    if ends is None:
        return None
    starts: Any = GroupStarts(ends)
    if groups == K_GROUPS:
        return VarlenArguments(mCuSeqlensK=starts)
    return VarlenArguments(mCuSeqlensM=starts)
