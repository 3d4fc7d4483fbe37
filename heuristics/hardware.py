"""What a GPU offers: the numbers that validity, rooflines and features are computed from."""

from __future__ import annotations

from dataclasses import dataclass

from tilecast.heuristics.dtypes import DType
from tilecast.heuristics.errors import TilecastError


@dataclass(frozen=True)
class Hardware:
    """One GPU model. Sizes are in bytes, rates per second."""

    name: str
    """The name that ``--gpu`` takes."""
    device_names: tuple[str, ...]
    """Names under which the driver reports it."""
    arch: str
    """Target of the compiler."""
    sm_count: int
    """Streaming multiprocessors."""
    l2_bytes: int
    """Level 2 cache."""
    dram_bytes_per_second: float
    """Read plus write bandwidth that a copy reaches."""
    l2_bytes_per_second: float
    """What all SMs together load from level 2; only its order of magnitude matters."""
    peak_flops: float
    """Dense matrix rate in bf16."""
    clusters_at_once: tuple[int, ...]
    """Clusters of 0, 1, 2, ... CTAs that the GPU holds, one CTA per SM
    (``cuOccupancyMaxActiveClusters``)."""
    smem_bytes_per_sm: int = 233_472
    """Shared memory of one SM (CUDA programming guide, compute capability 9.0: 228 KB)."""
    smem_bytes_per_block: int = 232_448
    """Most that one block may ask for (same table: 227 KB)."""
    smem_bytes_reserved: int = 1_024
    """Taken by the system from the SM for every resident block (same guide)."""

    def smem_limit(self, ctas_per_sm: int) -> int:
        """Shared memory that one CTA may take when so many share an SM."""
        share = self.smem_bytes_per_sm // ctas_per_sm - self.smem_bytes_reserved
        return min(share, self.smem_bytes_per_block)

    def peak(self, dtype: DType) -> float:
        """Dense FLOP/s for an input dtype.

        Raises:
            TilecastError: tensor cores do not multiply it.
        """
        if dtype.speed is None:
            raise TilecastError(f"dtype {dtype} has no peak rate; allowed: what is multiplied")
        return self.peak_flops * dtype.speed

    def roofline_seconds(self, flops: float, dram_bytes: float, dtype: DType) -> float:
        """Lower bound on a kernel's run time: the slower of arithmetic and DRAM traffic."""
        return max(flops / self.peak(dtype), dram_bytes / self.dram_bytes_per_second)


_HOPPER_PEAK = 989.4e12
"""Dense tensor rate of the SXM parts in bf16 (NVIDIA H100 and H200 data sheets)."""
_HOPPER_CLUSTERS = (0, 132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7)
"""As an H200 reports them; all but ones and twos leave SMs over."""
_HOPPER_L2 = 5.5e12

GPUS = (
    Hardware(
        "H200", ("NVIDIA H200",), "sm_90a", 132, 60 * 2**20, 4.8e12,
        _HOPPER_L2, _HOPPER_PEAK, _HOPPER_CLUSTERS,
    ),
    Hardware(
        "H100", ("NVIDIA H100 80GB HBM3",), "sm_90a", 132, 50 * 2**20, 3.35e12,
        _HOPPER_L2, _HOPPER_PEAK, _HOPPER_CLUSTERS,
    ),
)  # fmt: skip
"""Bandwidths are the data sheets'; an H200 copy reaches about 4.3e12."""


def hardware(name: str) -> Hardware:
    """Look a GPU up by its short name or by the name that its driver reports.

    Raises:
        TilecastError: the GPU is not described here.
    """
    for gpu in GPUS:
        if name == gpu.name or name in gpu.device_names:
            return gpu
    raise TilecastError(
        f"gpu {name!r} is not known; allowed: {', '.join(gpu.name for gpu in GPUS)}; "
        "describe a new one in heuristics/hardware.py and run `tilecast collect` on it"
    )
