"""What is asked of the driver when a kernel is loaded."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import cuda.bindings.driver
import cutlass.utils
import pytest
import torch

from tilecast.kernels import occupancy
from tilecast.kernels.occupancy import max_active_clusters


def test_each_context_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A green context holds fewer clusters than its device, and the next may have its address."""
    asked: list[tuple[int, int]] = []
    current = {"number": 1, "multiprocessors": 132}

    class HardwareInfo:
        def __init__(self, device: int):
            self.device = device

        def get_max_active_clusters(self, size: int) -> int:
            asked.append((current["number"], size))
            return current["multiprocessors"] // size

    monkeypatch.setattr(cutlass.utils, "HardwareInfo", HardwareInfo)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    driver = SimpleNamespace(
        cuCtxGetCurrent=lambda: (0, 4096), cuCtxGetId=lambda context: (0, current["number"])
    )
    monkeypatch.setattr(cuda.bindings, "driver", driver)
    occupancy._max_active_clusters.cache_clear()
    try:
        for _ in range(2):
            assert max_active_clusters(2) == 66
        current.update(number=2, multiprocessors=16)
        for _ in range(2):
            assert max_active_clusters(2) == 8
        current.update(number=3, multiprocessors=64)
        assert max_active_clusters(2) == 32
        current.update(number=1, multiprocessors=132)
        assert max_active_clusters(2) == 66
        assert max_active_clusters(1) == 132
        assert asked == [(1, 2), (2, 2), (3, 2), (1, 1)]
    finally:
        occupancy._max_active_clusters.cache_clear()
