"""What a GPU model offers, asked of its driver and, where that is silent, measured."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

from tilecast.data_collection.gpu.environment import card_of, claimed
from tilecast.data_collection.gpu.gpu_rates import MEMORY_BYTES, bandwidth, product_rate
from tilecast.data_collection.gpu.out_of_memory import is_out_of_memory
from tilecast.heuristics.errors import NotNow, TilecastError, one_line
from tilecast.heuristics.hardware import GPUS, MAX_CLUSTER, Hardware, described
from tilecast.kernels.build.workers import interrupts_held
from tilecast.kernels.families import FAMILIES

SXM, SXM_CLOCK = GPUS[0], 1.98e9
"""A GPU whose rates are known, and the highest clock that its driver states, in Hz."""

_PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry nothing() { ret; }
"""
"""A kernel to ask about: how many clusters of it fit depends on the launch alone."""


def hardware_of(device: int, known: Iterable[Hardware] = (), *, measure: bool = False) -> Hardware:
    """The hardware of a CUDA device: the only function that says which GPU model a device is.

    It is the first of ``known``, then of `GPUS`, that has the name that the driver reports. The
    hardware of a GPU with another name is made of what its driver states (`stated_gpu`), which is
    the same every time and runs no kernel.

    Args:
        device: index of a CUDA device.
        known: hardware that a model or earlier measurements describe.
        measure: measure the rates of a GPU with another name (`measured_gpu`), which takes some
            seconds in a process of its own, while no collection may use the device.

    Raises:
        TilecastError: the device does not exist, its driver does not answer or states what no GPU
            has, or no kernel is for it; or, to measure it, it is in use or its memory is taken.
    """
    names = visible_gpu_names()
    if not 0 <= device < len(names):
        raise _undescribed(device, f"the driver shows {len(names)} devices")
    for gpu in (*known, *GPUS):
        if names[device] in gpu.device_names:
            return gpu
    return _measured_apart(device) if measure else described(stated_gpu(device).facts())


@cache
def first_hardware() -> Hardware | None:
    """The hardware of this machine's first GPU that some kernel is for; None without one."""
    for device in range(len(visible_gpu_names())):
        with suppress(TilecastError):  # no kernel is for it, or its driver does not describe it
            return hardware_of(device)
    return None


def visible_gpu_names() -> list[str]:
    """The names that the driver reports of the CUDA devices of this process; none without a driver.

    PyTorch reports the same names, but takes seconds to import.
    """
    import cuda.bindings.driver as driver

    try:
        _checked(driver.cuInit(0))
        handles = map(driver.cuDeviceGet, range(_checked(driver.cuDeviceGetCount())))
        names = [_checked(driver.cuDeviceGetName(256, _checked(handle))) for handle in handles]
    except (RuntimeError, TilecastError):
        return []
    return [name.partition(b"\0")[0].decode() for name in names]


def _measured_apart(device: int) -> Hardware:
    """`measured_gpu` in a process of its own, with which its memory and context leave the GPU."""
    spawn = multiprocessing.get_context("spawn")
    with claimed([card_of(device)]), ProcessPoolExecutor(1, spawn) as process:
        try:
            with interrupts_held():
                measured = process.submit(measured_gpu, device)
            return measured.result()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise TilecastError(
                f"CUDA device {device} has too little memory left to be measured "
                f"({one_line(error)}); allowed: 4 GB that nothing else has taken; end what runs on "
                "it, or use another device"
            ) from error


def measured_gpu(device: int) -> Hardware:
    """Ask a CUDA device what it is, and measure its rates, which takes a few seconds.

    Rates are what a pass over memory, one within level 2 and a large bf16 product reach: below
    those of data sheets, but those of the part that is there, of which many are sold with less.

    Raises:
        TilecastError: as `stated_gpu`.
    """
    stated = stated_gpu(device)
    return replace(
        stated,
        dram_bytes_per_second=bandwidth(device, MEMORY_BYTES),
        # What is read and what is written, and room to spare.
        l2_bytes_per_second=bandwidth(device, stated.l2_bytes // 4),
        peak_flops=product_rate(device),
    )


def stated_gpu(device: int) -> Hardware:
    """What the driver states of a CUDA device: no kernel runs, and it is the same every time.

    The rate of memory follows from its clock and width. Those of level 2 and of products are taken
    to be the `SXM` part's for each SM and clock, as data sheets have them of most parts; of one
    that is sold with less (an H20 multiplies at a quarter of that) only `measured_gpu` knows.

    Raises:
        TilecastError: no kernel is for it, its driver does not answer, or a CUDA graph is captured
            meanwhile, which asking might end.
    """
    import cuda.bindings.driver as driver
    import torch

    try:
        properties = torch.cuda.get_device_properties(device)
    except (AssertionError, RuntimeError) as error:
        raise _undescribed(device, one_line(error)) from error
    arch = f"sm_{properties.major}{properties.minor}" + "a" * (properties.major >= 9)
    if arch not in (known := sorted({family.arch for family in FAMILIES.values()})):
        raise TilecastError(
            f"no kernel is for an {properties.name!r}, which is {arch}; allowed: "
            f"{', '.join(known)}; use another device"
        )
    if torch.cuda.is_current_stream_capturing():
        raise NotNow(
            f"an {properties.name!r} is not described while a CUDA graph is captured; allowed: "
            "a first call before that"
        )
    _checked(driver.cuInit(0))
    handle = _checked(driver.cuDeviceGet(device))

    def attribute(name: str) -> int:
        kind = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return _checked(driver.cuDeviceGetAttribute(kind, handle))

    per_block = attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    memory_clock = 1e3 * attribute("MEMORY_CLOCK_RATE")
    clock, sm_count = 1e3 * attribute("CLOCK_RATE"), properties.multi_processor_count
    share = sm_count * clock / (SXM.sm_count * SXM_CLOCK)
    with _context(handle):
        clusters = _clusters_at_once(per_block)
    return Hardware(
        name=short_name(properties.name),
        device_names=(properties.name,),
        arch=arch,
        sm_count=sm_count,
        l2_bytes=properties.L2_cache_size,
        # Bits at both edges of the clock.
        dram_bytes_per_second=2 * memory_clock * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8,
        l2_bytes_per_second=share * SXM.l2_bytes_per_second,
        peak_flops=share * SXM.peak_flops,
        clusters_at_once=clusters,
        smem_bytes_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        smem_bytes_per_block=per_block,
        smem_bytes_reserved=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
    )


def short_name(device_name: str) -> str:
    """What ``--gpu`` and a model call a GPU that its driver reports under some name."""
    words = "".join(c if c.isalnum() or c in ".-" else " " for c in device_name).split()
    return "-".join(word for word in words if word not in ("NVIDIA", "GPU"))[:64] or "GPU"


def _undescribed(device: int, reason: str) -> TilecastError:
    return TilecastError(
        f"CUDA device {device} does not say what it is ({reason}); allowed: one that PyTorch sees, "
        "or a known GPU, named with --gpu; see `tilecast doctor`"
    )


@contextmanager
def _context(handle: Any) -> Iterator[None]:
    """Have a device's own context be current in this thread, whatever it did before."""
    import cuda.bindings.driver as driver

    context = _checked(driver.cuDevicePrimaryCtxRetain(handle))
    try:
        _checked(driver.cuCtxPushCurrent(context))
        try:
            yield
        finally:
            driver.cuCtxPopCurrent()
    finally:
        driver.cuDevicePrimaryCtxRelease(handle)


def _clusters_at_once(smem_bytes: int) -> tuple[int, ...]:
    """Clusters of 0, 1, 2, ... CTAs that the current device holds, each CTA on an SM for itself.

    One at least, since features divide by them: a kernel whose cluster fits nowhere fails its
    check.
    """
    import cuda.bindings.driver as driver

    module = _checked(driver.cuModuleLoadData(_PTX.encode() + b"\0"))
    kernel = _checked(driver.cuModuleGetFunction(module, b"nothing"))
    kinds = driver.CUfunction_attribute
    for kind, value in (
        (kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes),
        (kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
    ):
        _checked(driver.cuFuncSetAttribute(kernel, kind, value))
    counts = [_clusters(kernel, size, smem_bytes) for size in range(1, MAX_CLUSTER + 1)]
    _checked(driver.cuModuleUnload(module))
    return (0, *(max(count, 1) for count in counts))


def _clusters(kernel: Any, size: int, smem_bytes: int) -> int:
    import cuda.bindings.driver as driver

    cluster = driver.CUlaunchAttribute()
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x = size
    cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
    launch = driver.CUlaunchConfig()
    launch.gridDimX, launch.gridDimY, launch.gridDimZ = size, 1, 1
    launch.blockDimX, launch.blockDimY, launch.blockDimZ = 128, 1, 1
    launch.sharedMemBytes = smem_bytes
    launch.attrs, launch.numAttrs = [cluster], 1
    return _checked(driver.cuOccupancyMaxActiveClusters(kernel, launch))


def _checked(answer: tuple) -> Any:
    """What a call of the driver returned beside its status.

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
