"""What a ranking may aim at: the time in one power regime, or the worse slowdown of both."""

from __future__ import annotations

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.errors import TilecastError

ROBUST = "robust"
"""The smallest worst case over both regimes."""
OBJECTIVES: tuple[str, ...] = (*REGIMES, ROBUST)
"""What a ranking may aim at: the best time in one regime, or `ROBUST`."""


def check_objective(objective: str) -> str:
    """Return ``objective`` if it is one of `OBJECTIVES`.

    Raises:
        TilecastError: it is not.
    """
    if objective not in OBJECTIVES:
        raise TilecastError(
            f"power {objective!r} is not known; allowed: {', '.join(OBJECTIVES)}; "
            "use robust when you cannot tell how hot the card will run"
        )
    return objective


def regimes_of(objective: str) -> tuple[str, ...]:
    """The regimes whose times decide: one, or both for `ROBUST`."""
    return REGIMES if objective == ROBUST else (objective,)
