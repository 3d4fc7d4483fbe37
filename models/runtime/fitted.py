"""What is learned ends in an underscore, and asking for it too soon says so."""

from __future__ import annotations

from tilecast.heuristics.errors import TilecastError


class NotFittedError(TilecastError):
    """A heuristic was asked before it was fitted."""


def check_fitted(heuristic: object, attribute: str) -> None:
    """Check that ``fit`` has set an attribute.

    Raises:
        NotFittedError: it has not.
    """
    if not hasattr(heuristic, attribute):
        raise NotFittedError(
            f"{type(heuristic).__name__} is not fitted; allowed: one that has been; "
            "call fit(table) first or load an artifact"
        )
