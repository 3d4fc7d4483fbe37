"""Warnings, each once, and counters of what the hook does."""

from __future__ import annotations

import atexit
import logging
import re
import sys
import threading
from collections.abc import Mapping
from functools import cache

from tilecast.heuristics.errors import TilecastError, one_line

log = logging.getLogger(__name__)

_told: set[str] = set()
_lock = threading.Lock()
_NUMBER = re.compile(r"(?<!\w)\d[\dx]*")
"""A number by itself or extents, such as 7 or 8x16; not the 16 of a dtype's name."""


def reason(error: Exception) -> str:
    """Why something failed, in one line: what tilecast says itself as it is."""
    return str(error) if isinstance(error, TilecastError) else one_line(error)


def warn_once(what: str, error: Exception, then: str = "PyTorch's own kernels are used") -> None:
    """Log a warning the first time that ``what`` fails in this process.

    Args:
        what: what failed, such as ``ranking``.
        error: the reason, shown in one line.
        then: what happens instead.
    """
    count(f"failed: {what}")
    if _is_new(what):
        log.warning("tilecast: %s failed (%s); %s", what, one_line(error), then)


def say_once(kind: str, message: str, level: int = logging.WARNING) -> None:
    """Log what is no failure, the first time that this kind has this reason.

    Messages that differ in numbers alone give one reason: there may be as many as extents.
    """
    count(f"said: {kind}")
    if _is_new(f"{kind}: {_NUMBER.sub('0', message)}"):
        log.log(level, "tilecast: %s", message)


def count(event: str) -> None:
    """Add 1 to ``torch._dynamo.utils.counters["tilecast"][event]``, where Dynamo is in use."""
    # Another thread may be importing it.
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if counters is not None:
        counters["tilecast"][event] += 1


@cache
def summarise_at_exit() -> None:
    """Have `summary` printed on standard error when this process ends."""
    atexit.register(lambda: (said := summary()) and print(f"tilecast: {said}", file=sys.stderr))


def summary() -> str:
    """What the counters say of this process's products, in a line; nothing where it had none."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    found: Mapping[str, int] = counters["tilecast"] if counters is not None else {}
    alone = sum(
        times
        for event, times in found.items()
        if event.startswith(("fell back to ATen: ", "not covered: "))
    )
    offered = found.get("problems", 0)
    if not offered + alone:
        return ""
    won, lost = found.get("won", 0), found.get("lost", 0)
    races = f", which won {won} of {won + lost} benchmarks" if won + lost else ""
    return (
        f"{offered + alone} GEMMs: {offered} got tilecast kernels as choices{races}; PyTorch's "
        f"alone ran {alone}"
    )


def _is_new(kind: str) -> bool:
    with _lock:
        new = kind not in _told
        _told.add(kind)
        return new
