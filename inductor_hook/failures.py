"""Attempts that failed are repeated after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import TypeVar

from tilecast.heuristics.errors import TilecastError, one_line

LEAST_PAUSE = 10.0
"""Seconds after a failure before the next attempt."""
PAUSE_FACTOR = 100
"""Seconds of pause for each that the failed attempt took: attempts cost 1% of the time at most."""
_REMEMBERED = 4096

T = TypeVar("T")


class Failures:
    """The attempts that failed lately: messages by key, and when each may be tried again.

    Messages, because an exception holds the tensors of the call that failed.
    """

    def __init__(self) -> None:
        """Start without any."""
        self._kept: dict[Hashable, tuple[str, float]] = {}

    def attempt(self, key: Hashable, function: Callable[[], T]) -> T:
        """Call a function unless what it attempts, the key, failed a short while ago.

        Raises:
            TilecastError: it failed a short while ago; says how.
            Exception: what the function raises.
        """
        message, due = self._kept.get(key, ("", 0.0))
        start = time.monotonic()
        if start < due:
            raise TilecastError(message)
        try:
            result = function()
        except Exception as error:
            if len(self._kept) >= _REMEMBERED:
                self._kept.clear()
            end = time.monotonic()
            pause = max(LEAST_PAUSE, PAUSE_FACTOR * (end - start))
            known = isinstance(error, TilecastError)
            self._kept[key] = (str(error) if known else one_line(error), end + pause)
            raise
        self._kept.pop(key, None)
        return result
