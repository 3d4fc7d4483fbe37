"""How many clusters of CTAs a GPU holds at once."""

from __future__ import annotations

from functools import cache
from threading import Lock

_asking = Lock()


def max_active_clusters(cluster_size: int, device: int = 0) -> int:
    """Clusters of one CTA per SM that the current context of a device holds at once.

    The driver says it: fewer than SMs / cluster size where graphics processing clusters do not
    divide evenly, and in a green context fewer still.
    """
    import cuda.bindings.driver as driver
    import torch

    # The DSL compiles a kernel to find out, which no two threads may do at once.
    with _asking, torch.cuda.device(device):
        there = int(driver.cuCtxGetCurrent()[1] or 0)
        if not there and not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()  # makes the context that is asked
        # The context's number, as the next green context may get its address.
        return _max_active_clusters(cluster_size, device, driver.cuCtxGetId(None)[1])


@cache
def _max_active_clusters(cluster_size: int, device: int, context: int) -> int:
    """The answer for the current context: its number never names another one."""
    from cutlass.utils import HardwareInfo

    return HardwareInfo(device).get_max_active_clusters(cluster_size)
