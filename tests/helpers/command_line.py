"""What tests of the command line share: a valid config, and how a refusal must look."""

from __future__ import annotations

VALID = "128x128x64_c1x1x1_s6_coop_o1_rm8"
"""The name of a config that runs on an H200."""


def wrong_in(err: str, message: str = "") -> str | None:
    """What is wrong with a refusal on standard error, which has to hold a message."""
    line = err.removesuffix("\n")
    if not line.startswith("tilecast: error: ") or not line.isprintable():
        return f"said {err[:1000]!r}"
    if "allowed" not in line or len(line) > 700 or "fault of tilecast" in line:
        return f"said {err[:1000]!r}"
    return None if message in line else f"said {line!r} without {message!r}"
