"""Rates that a GPU reaches, where no driver tells them."""

from __future__ import annotations

from collections.abc import Callable

MEMORY_BYTES = 2**30
"""Read by the kernel that tells the memory's bandwidth: far more than any level 2 holds."""
PRODUCT_EXTENT = 8192
"""m, n and k of the product that tells the matrix rate."""
REPEATS = 20
"""Launches in one timing; the best of `TRIALS` of them counts, before the card grows warm."""
TRIALS = 5


def bandwidth(device: int, size: int) -> float:
    """Bytes a second, read plus written, of a kernel that passes over ``size`` bytes."""
    import torch

    source = torch.zeros(size // 4, dtype=torch.int32, device=f"cuda:{device}")
    target = torch.empty_like(source)
    # No copy: in a graph that is none of a kernel's, and takes 1.7 times as long.
    return 2 * size / _seconds(device, lambda: torch.bitwise_not(source, out=target))


def product_rate(device: int) -> float:
    """FLOP/s of a large product in bf16."""
    import torch

    extent = PRODUCT_EXTENT
    a, b = torch.randn(2, extent, extent, device=f"cuda:{device}", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    return 2 * extent**3 / _seconds(device, lambda: torch.mm(a, b, out=out))


def _seconds(device: int, launch: Callable[[], object]) -> float:
    """Time of one launch on a device: the best of a few graphs of many, which cost no host time."""
    import torch

    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):
        launch()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for _ in range(REPEATS):
            launch()
        graph.capture_end()
        times = []
        for _ in range(TRIALS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e-3 / REPEATS)
    return min(times)
