"""Whether a card is slowed down by anything but the power limit that it is sold with."""

from __future__ import annotations

from collections.abc import Callable

from tilecast.data_collection.timing.protocol import CardFailure
from tilecast.heuristics.errors import one_line

THROTTLES = {0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
"""Bits of NVML's clocks event reasons. The power cap is none: it is what the sustained regime is
about."""


def throttles(reasons: int) -> list[str]:
    """What of `THROTTLES` is among NVML's clocks event reasons."""
    return [name for bit, name in THROTTLES.items() if reasons & bit]


def watch(uuid: str) -> Callable[[], None]:
    """What sees, before and after a timing, whether a card throttles.

    Args:
        uuid: of the card, as the driver writes it, with or without ``GPU-``.

    Returns:
        A function that raises `CardFailure` where the card throttles at that moment, or does not
        say whether it does: no kernel is to blame for that.
    """
    from cuda.bindings import nvml  # pyright: ignore[reportAttributeAccessIssue]

    nvml.init_v2()
    card = nvml.device_get_handle_by_uuid(f"GPU-{uuid.removeprefix('GPU-')}")

    def check() -> None:
        try:
            reasons = nvml.device_get_current_clocks_event_reasons(card)
        except nvml.NvmlError as error:
            raise CardFailure(f"the GPU does not say if it throttles: {one_line(error)}") from error
        if found := throttles(reasons):
            raise CardFailure(f"the GPU throttles: {', '.join(found)}")

    return check
