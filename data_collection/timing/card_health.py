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

CLOCKS_SET = 0x2
"""The bit of the same that says that applications' clocks are set below the highest."""


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


def oddities(uuid: str) -> list[str]:
    """What sets a card apart from others of its model, in words.

    A power limit that it does not boot with, memory without ECC, a partition (MIG), clocks that
    somebody has set, or throttling as it idles; what NVML does not say is left out.
    """
    nvml, card = _card(uuid)
    found = []
    with suppress(nvml.NvmlError):
        limit = nvml.device_get_power_management_limit(card)
        usual = nvml.device_get_power_management_default_limit(card)
        if limit != usual:
            found.append(f"its power limit is {limit / 1e3:.0f} W instead of {usual / 1e3:.0f} W")
    with suppress(nvml.NvmlError):
        if not nvml.device_get_ecc_mode(card)[0]:
            found.append("its memory is without ECC")
    with suppress(nvml.NvmlError):
        if nvml.device_get_mig_mode(card)[0]:
            found.append("it is partitioned (MIG)")
    with suppress(nvml.NvmlError):
        reasons = nvml.device_get_current_clocks_event_reasons(card)
        if reasons & CLOCKS_SET:
            found.append("somebody has set its clocks")
        found += [f"it throttles: {name}" for name in throttles(reasons)]
    return found


def _card(uuid: str) -> tuple[Any, Any]:
    """NVML, and its handle of a card."""
    from cuda.bindings import nvml  # pyright: ignore[reportAttributeAccessIssue]

    nvml.init_v2()
    return nvml, nvml.device_get_handle_by_uuid(f"GPU-{uuid.removeprefix('GPU-')}")
