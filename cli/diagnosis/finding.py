"""The outcome of a check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    subject: str
    """What was checked."""
    found: str
    """What was found."""
    works: bool
    """Whether it works with tilecast."""
    needed: bool = True
    """Whether tilecast is unusable without it."""
    advice: str = ""
    """What to do, where it does not work."""
