"""What the hook tells: each problem once, as a warning, and a counter for everything it does."""

from __future__ import annotations

import logging
import sys
import threading

log = logging.getLogger(__name__)

_told: set[str] = set()
_lock = threading.Lock()


def warn_once(what: str, error: BaseException | str) -> None:
    """Log a warning the first time that ``what`` fails in this process.

    Args:
        what: what tilecast does without, such as ``ranking``; names the cause once and for all.
        error: the reason, shown in one line.
    """
    count(f"failed: {what}")
    if _is_new(what):
        reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        log.warning("tilecast: %s failed (%s); PyTorch's own kernels are used", what, _line(reason))


def say_once(kind: str, message: str) -> None:
    """Log a warning that is no failure: the first of its kind only."""
    count(f"said: {kind}")
    if _is_new(kind):
        log.warning("tilecast: %s", message)


def forget() -> None:
    """Make every message new again, as in a fresh process."""
    with _lock:
        _told.clear()


def count(event: str) -> None:
    """Add one to ``torch._dynamo.utils.counters["tilecast"][event]``, where Dynamo is in use."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo:
        dynamo.counters["tilecast"][event] += 1


def _is_new(kind: str) -> bool:
    with _lock:
        new = kind not in _told
        _told.add(kind)
        return new


def _line(text: str) -> str:
    return " ".join(text.split())[:500]
