"""What a GPU offers: the numbers that validity, rooflines and features are computed from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

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
    """What all SMs together load from level 2 when each asks for lines of its own."""
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

    def facts(self) -> dict[str, Any]:
        """All fields as plain JSON data, which `described` reads."""
        return json.loads(json.dumps(asdict(self)))

    def same_gpu(self, other: Hardware) -> bool:
        """Whether two descriptions are of one GPU model: rates that were measured differ a bit."""
        return (self.name, self.arch) == (other.name, other.arch)

    def smem_limit(self, ctas_per_sm: np.ndarray | int) -> np.ndarray:
        """Shared memory that one CTA may take when so many share an SM."""
        share = self.smem_bytes_per_sm // ctas_per_sm - self.smem_bytes_reserved
        return np.minimum(share, self.smem_bytes_per_block)

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
"""An estimate of its order of magnitude; no measurement of it is recorded. What was fitted to
measurements is a factor on it: kernels get 1.4 times as much (models/EXPERIMENTS.md, "the analytic
time")."""
_BLACKWELL_L2 = 2 * _HOPPER_L2
"""A guess, of 132 SMs: with less, 256 x 256 over two CTAs, which QuACK takes by default, would wait
for it."""


def _from_data_sheet(
    name: str,
    device_names: tuple[str, ...],
    sm_count: int,
    l2_mib: int,
    dram_terabytes: float,
    bf16_teraflops: float,
    arch: str = "sm_90a",
    l2: float = _HOPPER_L2,
) -> Hardware:
    """A GPU of which nothing was measured here; clusters scale with its SMs, ``l2`` of 132 too."""
    return Hardware(
        name,
        device_names,
        arch,
        sm_count,
        l2_mib * 2**20,
        dram_terabytes * 1e12,
        l2 * sm_count / 132,
        bf16_teraflops * 1e12,
        tuple(count * sm_count // 132 for count in _HOPPER_CLUSTERS),
    )


MEASURED = (
    Hardware(
        "H200", ("NVIDIA H200",), "sm_90a", 132, 60 * 2**20, 4.8e12,
        _HOPPER_L2, _HOPPER_PEAK, _HOPPER_CLUSTERS,
    ),
    Hardware(
        "H100", ("NVIDIA H100 80GB HBM3",), "sm_90a", 132, 50 * 2**20, 3.35e12,
        _HOPPER_L2, _HOPPER_PEAK, _HOPPER_CLUSTERS,
    ),
)  # fmt: skip
"""Those that tilecast was made on. Bandwidths are the data sheets'; an H200 copy reaches about
4.3e12."""
GPUS = (
    *MEASURED,
    _from_data_sheet("H200-NVL", ("NVIDIA H200 NVL",), 132, 60, 4.8, 835.5),
    _from_data_sheet("H100-NVL", ("NVIDIA H100 NVL",), 132, 60, 3.9, 835.5),
    _from_data_sheet("H100-PCIe", ("NVIDIA H100 PCIe",), 114, 50, 2.0, 756.0),
    _from_data_sheet("H20", ("NVIDIA H20",), 78, 60, 4.0, 148.0),
    _from_data_sheet("GH200-480GB", ("NVIDIA GH200 480GB",), 132, 60, 4.0, 989.4),
    _from_data_sheet("GH200-144G-HBM3e", ("NVIDIA GH200 144G HBM3e",), 132, 60, 4.9, 989.4),
    _from_data_sheet("B200", ("NVIDIA B200",), 148, 126, 8.0, 2250.0, "sm_100a", _BLACKWELL_L2),
)
"""All that are described. Bandwidths and dense rates are those of NVIDIA's data sheets of these
products; that of the H20 is not public, and its figures are those of its announcement. SMs and L2
are those that drivers report, or 10 MiB a stack of a Hopper's memory. Where such a card is at hand,
its driver says all but the rates (`tilecast.data_collection.gpu.gpu_model`)."""


MAX_CLUSTER = 16
"""CTAs of the largest cluster that any GPU of `GPUS` runs."""


def hardware(name: str) -> Hardware:
    """Look a GPU up by its short name or by the name that its driver reports.

    Raises:
        TilecastError: the GPU is not described here.
    """
    found = known_gpu(name)
    if found is None:
        raise TilecastError(
            f"gpu {name!r} is not known; allowed: {', '.join(gpu.name for gpu in GPUS)}; "
            "describe a new one in heuristics/hardware.py, or run `tilecast campaign` on it, which "
            "does, and name the model that it trains with --model"
        )
    return found


def described(facts: Mapping[str, Any]) -> Hardware:
    """The GPU that is called as some facts say: the one of `MEASURED`, or else one of these facts.

    Measurements and models carry the description of their GPU (`Hardware.facts`), so that one that
    nobody wrote down here is trained for and found all the same. So is one of `GPUS` that is
    described from a data sheet alone, which nothing was measured by.

    Raises:
        TilecastError: there is none of that name, and the facts are not those of a GPU.
    """
    name = facts.get("name")
    known = known_gpu(name) if isinstance(name, str) else None
    if known in MEASURED:
        return known
    wrong = sorted(facts.keys() ^ _SOUND.keys())
    wrong += [field for field, fits in _SOUND.items() if field in facts and not fits(facts[field])]
    if wrong:
        raise TilecastError(
            f"gpu {str(name)[:64]!r} is not described (wrong: {', '.join(wrong)[:200]}); allowed: "
            "one of heuristics/hardware.py, or what `tilecast campaign` wrote, whole"
        )
    lists = {name: tuple(facts[name]) for name in ("device_names", "clusters_at_once")}
    return Hardware(**{**facts, **lists})


def known_gpu(name: str) -> Hardware | None:
    """The GPU of `GPUS` that has a short name, or a name that a driver reports; None without."""
    return next((gpu for gpu in GPUS if name == gpu.name or name in gpu.device_names), None)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", value) is not None


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value < 2**40


def _is_rate(value: object) -> bool:
    return type(value) in (int, float) and 1e9 <= value <= 1e18  # pyright: ignore


_SOUND: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("name", "arch"), _is_word),
    **dict.fromkeys(("dram_bytes_per_second", "l2_bytes_per_second", "peak_flops"), _is_rate),
    **dict.fromkeys(("sm_count", "l2_bytes"), _is_count),
    **dict.fromkeys(("smem_bytes_per_sm", "smem_bytes_per_block"), _is_count),
    "smem_bytes_reserved": _is_count,
    "device_names": lambda names: (
        isinstance(names, list) and names != [] and all(isinstance(name, str) for name in names)
    ),
    "clusters_at_once": lambda counts: (
        isinstance(counts, list)
        and len(counts) == MAX_CLUSTER + 1
        and counts[0] == 0
        and all(map(_is_count, counts[1:]))
    ),
}
"""What each field may be when it comes out of a file."""
