"""How many clusters of CTAs a GPU holds at once."""

from __future__ import annotations

from functools import cache
from typing import Any

from tilecast.heuristics.errors import TilecastError

_PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry nothing() { ret; }
\0"""
"""A kernel to ask about: how many clusters of it fit depends on the launch alone."""


def max_active_clusters(cluster_size: int, device: int = 0) -> int:
    """Clusters of one CTA per SM that the current context of a device holds at once.

    The driver says it: fewer than SMs / cluster size where graphics processing clusters do not
    divide evenly, and in a green context fewer still.

    Raises:
        TilecastError: the driver does not answer.
    """
    import cuda.bindings.driver as driver
    import torch

    with torch.cuda.device(device):
        there = int(driver.cuCtxGetCurrent()[1] or 0)
        if not there and not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()  # makes the context that is asked
        # The context's number, as the next green context may get its address.
        return _max_active_clusters(cluster_size, driver.cuCtxGetId(None)[1])


@cache
def _max_active_clusters(cluster_size: int, context: int) -> int:
    """The answer for the current context: its number never names another one."""
    import cuda.bindings.driver as driver

    kernel, smem_bytes = _kernel(context)
    cluster = driver.CUlaunchAttribute()
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x = cluster_size
    cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
    launch = driver.CUlaunchConfig()
    launch.gridDimX, launch.gridDimY, launch.gridDimZ = cluster_size, 1, 1
    launch.blockDimX, launch.blockDimY, launch.blockDimZ = 128, 1, 1
    launch.sharedMemBytes = smem_bytes
    launch.attrs, launch.numAttrs = [cluster], 1
    return driver_value(driver.cuOccupancyMaxActiveClusters(kernel, launch))


@cache
def _kernel(context: int) -> tuple[Any, int]:
    """The kernel in the current context, and the shared memory that leaves an SM to one CTA."""
    import cuda.bindings.driver as driver

    library = driver_value(driver.cuLibraryLoadData(_PTX, None, None, 0, None, None, 0))
    whole = driver_value(driver.cuLibraryGetKernel(library, b"nothing"))
    kernel = driver_value(driver.cuKernelGetFunction(whole))
    most = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    device = driver_value(driver.cuCtxGetDevice())
    smem_bytes = driver_value(driver.cuDeviceGetAttribute(most, device))
    kinds = driver.CUfunction_attribute
    for kind, value in (
        (kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes),
        (kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
    ):
        driver_value(driver.cuFuncSetAttribute(kernel, kind, value))
    return kernel, smem_bytes


def driver_value(answer: tuple) -> Any:
    """The value that a call of the driver returned beside its status.

    Raises:
        TilecastError: the status is an error.
    """
    status, *values = answer
    if status.value:
        raise TilecastError(
            f"the CUDA driver does not describe the GPU ({status.name}); allowed: a GPU whose "
            "driver works; see `tilecast doctor`"
        )
    return values[0] if values else None
