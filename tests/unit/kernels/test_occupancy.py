"""What is asked of the driver when a kernel is loaded."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import cuda.bindings.driver as driver
import pytest
import torch

from tilecast.heuristics.errors import TilecastError
from tilecast.kernels import occupancy
from tilecast.kernels.occupancy import max_active_clusters

OK, LOST = SimpleNamespace(value=0), SimpleNamespace(value=999, name="CUDA_ERROR_UNKNOWN")


def test_each_context_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A green context holds fewer clusters than its device, and the next may have its address."""
    asked: list[tuple[int, int]] = []
    current = {"number": 1, "multiprocessors": 132}

    def clusters(kernel: str, launch: Any) -> tuple:
        asked.append((current["number"], launch.gridDimX))
        if launch.gridDimX > 16:
            return LOST, 0
        return OK, current["multiprocessors"] // launch.attrs[0].value.clusterDim.x

    stand_in = SimpleNamespace(
        **{name: getattr(driver, name) for name in dir(driver) if name.startswith("CU")},
        cuCtxGetCurrent=lambda: (OK, 4096),
        cuCtxGetId=lambda context: (OK, current["number"]),
        cuCtxGetDevice=lambda: (OK, 0),
        cuDeviceGetAttribute=lambda kind, device: (OK, 232_448),
        cuLibraryLoadData=lambda *code: (OK, "library"),
        cuLibraryGetKernel=lambda library, name: (OK, name),
        cuKernelGetFunction=lambda kernel: (OK, kernel),
        cuFuncSetAttribute=lambda kernel, kind, value: (OK,),
        cuOccupancyMaxActiveClusters=clusters,
    )
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr("cuda.bindings.driver", stand_in)
    for cached in (occupancy._max_active_clusters, occupancy._kernel):
        cached.cache_clear()
    try:
        for number, multiprocessors in ((1, 132), (2, 16), (3, 64), (1, 132)):
            current.update(number=number, multiprocessors=multiprocessors)
            assert max_active_clusters(2) == max_active_clusters(2) == multiprocessors // 2
        assert max_active_clusters(1) == 132
        assert asked == [(1, 2), (2, 2), (3, 2), (1, 1)]
        with pytest.raises(TilecastError, match="CUDA_ERROR_UNKNOWN"):
            max_active_clusters(32)
    finally:
        for cached in (occupancy._max_active_clusters, occupancy._kernel):
            cached.cache_clear()
