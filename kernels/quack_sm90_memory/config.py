"""The knobs of QuACK's SM90 GEMM with a split of k through memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilecast.kernels.quack_sm90.config import QuackConfig

_PREFIX = "memory_"


@dataclass(frozen=True, order=True)
class MemoryConfig(QuackConfig):
    """A `QuackConfig` whose CTAs that split k share no cluster.

    They leave their sums in memory, in float32; behind them a second kernel adds these up in order
    and finishes the product.
    """

    family: ClassVar[str] = "quack_sm90_memory"

    @property
    def name(self) -> str:
        """A key, such as ``memory_128x192x64_c2x1x5_s4_coop_o1_rm8``."""
        return _PREFIX + super().name

    @classmethod
    def parse(cls, name: str) -> MemoryConfig | None:
        """Read a config back from its name; None where it is not one of these."""
        found = super().parse(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None
        return found and cls(**vars(found))
