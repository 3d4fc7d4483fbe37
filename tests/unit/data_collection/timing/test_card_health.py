"""Whether a card throttles."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tilecast.data_collection.timing.card_health import oddities, others_on, throttles, watch
from tilecast.data_collection.timing.protocol import CardFailure


def test_the_power_cap_is_no_throttle() -> None:
    assert throttles(0x1 | 0x4) == []
    assert throttles(0x4 | 0x20 | 0x80) == ["software thermal", "power brake"]


def test_a_card_that_does_not_say_if_it_throttles_is_to_blame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no kernel, of which one may have been announced last."""
    from cuda.bindings import nvml  # pyright: ignore[reportAttributeAccessIssue]

    class Lost(nvml.NvmlError):
        def __init__(self) -> None:
            Exception.__init__(self, "GPU is lost")  # NVML's own asks the driver for its text

    def lost(card: object) -> int:
        raise Lost

    monkeypatch.setattr(nvml, "init_v2", lambda: None)
    monkeypatch.setattr(nvml, "device_get_handle_by_uuid", lambda uuid: uuid)
    monkeypatch.setattr(nvml, "device_get_current_clocks_event_reasons", lost)
    with pytest.raises(
        CardFailure, match="^the GPU does not say if it throttles: Lost: GPU is lost$"
    ):
        watch("GPU-1")()


def test_other_processes_on_a_card_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvml  # pyright: ignore[reportAttributeAccessIssue]

    there: dict[str, list[int]] = {"GPU-1": [os.getpid(), 7, 9], "GPU-2": [os.getpid()]}
    monkeypatch.setattr(nvml, "init_v2", lambda: None)
    monkeypatch.setattr(nvml, "device_get_handle_by_uuid", lambda uuid: uuid)
    monkeypatch.setattr(
        nvml,
        "device_get_compute_running_processes_v3",
        lambda card: [SimpleNamespace(pid=pid) for pid in there[card]],
    )
    assert others_on("1") == [7, 9]
    assert others_on("GPU-2") == []


def test_what_sets_a_card_apart_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvml  # pyright: ignore[reportAttributeAccessIssue]

    said = {
        "power_management_limit": {"GPU-1": 450_000},
        "ecc_mode": {"GPU-1": (0, 1)},
        "mig_mode": {"GPU-1": (1, 1)},
        "current_clocks_event_reasons": {"GPU-1": 0x2 | 0x4 | 0x40},
    }
    usual = {"power_management_limit": 700_000, "ecc_mode": (1, 1), "mig_mode": (0, 0)}
    monkeypatch.setattr(nvml, "init_v2", lambda: None)
    monkeypatch.setattr(nvml, "device_get_handle_by_uuid", lambda uuid: uuid)
    monkeypatch.setattr(nvml, "device_get_power_management_default_limit", lambda card: 700_000)
    for name, values in said.items():
        default = usual.get(name, 0x1)
        monkeypatch.setattr(
            nvml, f"device_get_{name}", lambda card, v=values, d=default: v.get(card, d)
        )
    assert oddities("2") == []
    assert oddities("GPU-1") == [
        "its power limit is 450 W instead of 700 W",
        "its memory is without ECC",
        "it is partitioned (MIG)",
        "somebody has set its clocks",
        "it throttles: hardware thermal",
    ]
