"""What a GPU model offers, asked of its driver and, where that is silent, measured."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

from tilecast.data_collection.gpu.environment import card_of, claimed
from tilecast.data_collection.gpu.gpu_rates import MEMORY_BYTES, bandwidth, product_rate
from tilecast.data_collection.timing.out_of_memory import is_shortage
from tilecast.heuristics.errors import NotNow, TilecastError, one_line
from tilecast.heuristics.hardware import GPUS, MAX_CLUSTER, Hardware, described, known_gpu
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


def find_gpu(device: int, runs: Iterable[Mapping[str, Any]] = ()) -> Hardware:
    """The model of a CUDA device: as `GPUS` has it, as some runs do, or as it describes itself.

    Args:
        device: its index.
        runs: provenance of runs, whose measurements those to come shall join.

    Raises:
        TilecastError: it is not there, its driver does not answer, or it would have to describe
            itself and another collection measures on it, or its memory is taken.
    """
    name = _name(device)
    known = [*GPUS, *(described(run["hardware"]) for run in runs if "hardware" in run)]
    for gpu in known:
        if name in gpu.device_names:
            return gpu
    spawn = multiprocessing.get_context("spawn")
    # In a process of its own, with which its memory and its context leave the GPU.
    with claimed([card_of(device)]), ProcessPoolExecutor(1, spawn) as process:
        try:
            with interrupts_held():
                description = process.submit(describe_gpu, device)
            return description.result()
        except Exception as error:
            if not is_shortage(error):
                raise
            raise TilecastError(
                f"CUDA device {device} has too little memory left to be measured "
                f"({one_line(error)}); allowed: 4 GB that nothing else has taken; end what runs on "
                "it, or use another device"
            ) from error


def gpu_here(device: int) -> Hardware:
    """The model of a CUDA device: as `GPUS` has it, or as its driver states it.

    Raises:
        TilecastError: as `stated_gpu`; or its driver states what no GPU has.
    """
    return gpu_called(_name(device), device)


def gpu_called(name: str, device: int) -> Hardware:
    """As `gpu_here`, of a device whose name is known: it is not looked at where `GPUS` has that."""
    return known_gpu(name) or described(stated_gpu(device).facts())


@cache
def first_here() -> Hardware | None:
    """The model of this machine's first GPU that some kernel is for; None where there is none."""
    for device, name in enumerate(names_here()):
        # No kernel is for it, or it does not say what it is: that is no reason to fail.
        with suppress(TilecastError):
            return gpu_called(name, device)
    return None


def names_here() -> list[str]:
    """What the driver calls the GPUs that it shows this process; none without one.

    It is asked itself: importing PyTorch, which calls them the same, takes seconds.
    """
    import cuda.bindings.driver as driver

    try:
        _told(driver.cuInit(0))
        handles = map(driver.cuDeviceGet, range(_told(driver.cuDeviceGetCount())))
        names = [_told(driver.cuDeviceGetName(256, _told(handle))) for handle in handles]
    # There is no driver, or it shows no GPU.
    except (RuntimeError, TilecastError):
        return []
    return [name.partition(b"\0")[0].decode() for name in names]


def describe_gpu(device: int) -> Hardware:
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
    that is sold with less (an H20 multiplies at a quarter of that) only `describe_gpu` knows.

    Raises:
        TilecastError: no kernel is for it, its driver does not answer, or a CUDA graph is captured
            meanwhile, which asking might end.
    """
    import cuda.bindings.driver as driver
    import torch

    properties = _asked(torch.cuda.get_device_properties, device)
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
    _told(driver.cuInit(0))
    handle = _told(driver.cuDeviceGet(device))

    def attribute(name: str) -> int:
        kind = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return _told(driver.cuDeviceGetAttribute(kind, handle))

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


def _name(device: int) -> str:
    """What the driver calls a device."""
    import torch

    return _asked(torch.cuda.get_device_name, device)


def _asked(question: Callable[[int], Any], device: int) -> Any:
    """What PyTorch answers of a device.

    Raises:
        TilecastError: it is not there.
    """
    try:
        return question(device)
    except (AssertionError, RuntimeError) as error:
        raise TilecastError(
            f"CUDA device {device} does not say what it is ({one_line(error)}); allowed: one that "
            "PyTorch sees, or a known GPU, named with --gpu; see `tilecast doctor`"
        ) from error


@contextmanager
def _context(handle: Any) -> Iterator[None]:
    """Have a device's own context be current in this thread, whatever it did before."""
    import cuda.bindings.driver as driver

    context = _told(driver.cuDevicePrimaryCtxRetain(handle))
    try:
        _told(driver.cuCtxPushCurrent(context))
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

    module = _told(driver.cuModuleLoadData(_PTX.encode() + b"\0"))
    kernel = _told(driver.cuModuleGetFunction(module, b"nothing"))
    kinds = driver.CUfunction_attribute
    for kind, value in (
        (kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes),
        (kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
    ):
        _told(driver.cuFuncSetAttribute(kernel, kind, value))
    counts = [_clusters(kernel, size, smem_bytes) for size in range(1, MAX_CLUSTER + 1)]
    _told(driver.cuModuleUnload(module))
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
    return _told(driver.cuOccupancyMaxActiveClusters(kernel, launch))


def _told(answer: tuple) -> Any:
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
