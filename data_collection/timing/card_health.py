"""Whether a card is throttled by anything but its regular power limit, and who else uses it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tilecast.data_collection.timing.protocol import CardFailure
from tilecast.heuristics.errors import one_line

THROTTLES = {0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
"""Bits of NVML's clocks event reasons, without the power cap, which the sustained regime meets."""


def throttles(reasons: int) -> list[str]:
    """The names of `THROTTLES` whose bits are set."""
    return [name for bit, name in THROTTLES.items() if reasons & bit]


def watch(uuid: str) -> Callable[[], None]:
    """A function that raises `CardFailure` while a card throttles, or does not say whether it does.

    Its UUID is written as the driver does it, with or without ``GPU-``.
    """
    nvml, card = _card(uuid)

    def check() -> None:
        try:
            reasons = nvml.device_get_current_clocks_event_reasons(card)
        except nvml.NvmlError as error:
            raise CardFailure(f"the GPU does not say if it throttles: {one_line(error)}") from error
        if found := throttles(reasons):
            raise CardFailure(f"the GPU throttles: {', '.join(found)}")

    return check


def others_on(uuid: str) -> list[int]:
    """The ids of other processes that have a CUDA context on a card; none where NVML says none.

    In a container they are those of the host.
    """
    nvml, card = _card(uuid)
    with suppress(nvml.NvmlError):
        found = nvml.device_get_compute_running_processes_v3(card)
        return [one.pid for one in found if one.pid != os.getpid()]
    return []


def _card(uuid: str) -> tuple[Any, Any]:
    """NVML, and its handle of a card."""
    from cuda.bindings import nvml  # pyright: ignore[reportAttributeAccessIssue]

    nvml.init_v2()
    return nvml, nvml.device_get_handle_by_uuid(f"GPU-{uuid.removeprefix('GPU-')}")
