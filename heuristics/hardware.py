"""What a GPU offers: the numbers that validity, rooflines and features are computed from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
    peak_flops: tuple[tuple[str, float], ...]
    """Dense matrix rate by input dtype."""
    smem_bytes_per_sm: int = 233_472
    """Shared memory of one SM (CUDA programming guide, compute capability 9.0: 228 KB)."""
    smem_bytes_per_block: int = 232_448
    """Most that one block may ask for (same table: 227 KB)."""
    smem_bytes_reserved: int = 1_024
    """Taken by the system from the SM for every resident block (same guide)."""

    @cached_property
    def _peaks(self) -> dict[str, float]:
        return dict(self.peak_flops)

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s for an input dtype.

        Raises:
            TilecastError: no rate is known for the dtype.
        """
        if dtype not in self._peaks:
            raise TilecastError(
                f"dtype {dtype!r} has no peak rate on {self.name}; "
                f"allowed: {', '.join(self._peaks)}"
            )
        return self._peaks[dtype]

    def roofline_seconds(self, flops: float, dram_bytes: float, dtype: str) -> float:
        """Lower bound on a kernel's run time: the slower of arithmetic and DRAM traffic."""
        return max(flops / self.peak(dtype), dram_bytes / self.dram_bytes_per_second)


_HOPPER_PEAKS = (("bfloat16", 989.4e12), ("float16", 989.4e12))
"""Dense tensor rates of the SXM parts (NVIDIA H100 and H200 data sheets)."""

GPUS = (
    Hardware("H200", ("NVIDIA H200",), "sm_90a", 132, 60 * 2**20, 4.8e12, _HOPPER_PEAKS),
    Hardware("H100", ("NVIDIA H100 80GB HBM3",), "sm_90a", 132, 50 * 2**20, 3.35e12, _HOPPER_PEAKS),
)
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
