"""The hardware of a CUDA device: a known one, one that its driver states, or a measured one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache

from tilecast.data_collection.gpu.environment import card_of, claimed, is_out_of_memory
from tilecast.heuristics.errors import NotNow, TilecastError, one_line
from tilecast.heuristics.hardware import (
    GPUS,
    MAX_CLUSTER,
    MEASURED,
    Hardware,
    described,
    known_gpu,
)
from tilecast.kernels.build.workers import interrupts_held
from tilecast.kernels.families import FAMILIES, same_code
from tilecast.kernels.occupancy import driver_value, max_active_clusters

SXM_CLOCK = 1.98e9
"""Highest clock that drivers state of the first GPUs of `GPUS` of each architecture, in Hz; a
B200's is 1% lower."""

MEMORY_BYTES = 2**30
"""Read by the kernel that measures the memory's bandwidth: far more than any level 2 holds."""
PRODUCT_EXTENT = 8192
"""m, n and k of the product that measures the matrix rate."""
USUAL_BANDWIDTH, USUAL_PRODUCT_RATE = 0.9, 0.75
"""Estimates of what a GPU reaches of its data sheet's rates when these are measured so; a GPU test
compares them with the card that it runs on."""
SOLD_WITH_LESS = 0.75
"""A part that reaches less than this of what others do is sold with less than it seems to have."""
REPEATS, TRIALS = 20, 5
"""Launches in one timing, and timings, of which the best counts, before the card grows warm."""


def hardware_of(device: int, known: Iterable[Hardware] = (), *, measure: bool = False) -> Hardware:
    """The hardware of a CUDA device: the only function that says which GPU model a device is.

    It is the first of ``known``, then of `MEASURED`, that has the name that the driver reports. The
    hardware of a GPU with another name is made of what its driver states (`stated_gpu`), which is
    the same every time and runs no kernel.

    Args:
        device: index of a CUDA device.
        known: hardware that a model or earlier measurements describe.
        measure: measure the rates of a GPU that is none of `GPUS` (`measured_gpu`), which takes
            some seconds in a process of its own, while no collection may use the device.

    Raises:
        TilecastError: the device does not exist, its driver does not answer or states what no GPU
            has, or no kernel is for it; or, to measure it, it is in use or its memory is taken.
    """
    names = visible_gpu_names()
    if not 0 <= device < len(names):
        raise _undescribed(device, f"the driver shows {len(names)} devices")
    for gpu in (*known, *MEASURED):
        if names[device] in gpu.device_names:
            return gpu
    if measure and known_gpu(names[device]) is None:
        return _measured_apart(device)
    return described(stated_gpu(device).facts())


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
        driver_value(driver.cuInit(0))
        handles = map(driver.cuDeviceGet, range(driver_value(driver.cuDeviceGetCount())))
        names = [
            driver_value(driver.cuDeviceGetName(256, driver_value(handle))) for handle in handles
        ]
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
    """What the driver states of a CUDA device, less what a pass over memory and a product deny.

    It takes a few seconds: many parts are sold with less than their clocks and SMs promise.

    Raises:
        TilecastError: as `stated_gpu`.
    """
    stated = stated_gpu(device)
    return replace(
        stated,
        dram_bytes_per_second=on_data_sheet(
            stated.dram_bytes_per_second, _bandwidth(device, MEMORY_BYTES) / USUAL_BANDWIDTH
        ),
        peak_flops=on_data_sheet(stated.peak_flops, _product_rate(device) / USUAL_PRODUCT_RATE),
    )


def on_data_sheet(stated: float, reached: float) -> float:
    """The rate of a GPU on the scale of data sheets, which models are trained with.

    Args:
        stated: what clocks, widths and SMs promise.
        reached: what a part that keeps its promises would have to state to reach what was measured.
    """
    return reached if reached < SOLD_WITH_LESS * stated else stated


def stated_gpu(device: int) -> Hardware:
    """What the driver states of a CUDA device: no kernel runs, and it is the same every time.

    Of one of `GPUS` the rates of memory and of products are those of its data sheet, as of the GPUs
    that models were trained on. Of another one that of memory follows from its clock and width, and
    the others are those of the first of `GPUS` that runs the same code, scaled by SMs and clock, as
    in most data sheets: a part that is sold with less is only described by `measured_gpu`.

    Raises:
        TilecastError: no kernel is for it, its driver does not answer, or a CUDA graph is captured
            meanwhile, which the calls might end.
    """
    import cuda.bindings.driver as driver
    import torch

    try:
        properties = torch.cuda.get_device_properties(device)
    except (AssertionError, RuntimeError) as error:
        raise _undescribed(device, one_line(error)) from error
    arch = f"sm_{properties.major}{properties.minor}" + "a" * (properties.major >= 9)
    known = sorted({arch for family in FAMILIES.values() for arch in family.runs_on})
    if arch not in known:
        raise TilecastError(
            f"no kernel is for an {properties.name!r}, which is {arch}; allowed: "
            f"{', '.join(known)}; use another device"
        )
    if torch.cuda.is_current_stream_capturing():
        raise NotNow(
            f"an {properties.name!r} is not described while a CUDA graph is captured; allowed: "
            "a first call before that"
        )
    driver_value(driver.cuInit(0))
    handle = driver_value(driver.cuDeviceGet(device))

    def attribute(name: str) -> int:
        kind = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return driver_value(driver.cuDeviceGetAttribute(kind, handle))

    memory_clock = 1e3 * attribute("MEMORY_CLOCK_RATE")
    clock, sm_count = 1e3 * attribute("CLOCK_RATE"), properties.multi_processor_count
    sizes = range(1, MAX_CLUSTER + 1)
    like = next((gpu for gpu in GPUS if same_code(gpu.arch, arch)), GPUS[0])
    share = sm_count * clock / (like.sm_count * SXM_CLOCK)
    sheet = known_gpu(properties.name)
    # Bits at both edges of the clock.
    memory = 2 * memory_clock * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8
    return Hardware(
        name=short_name(properties.name),
        device_names=(properties.name,),
        arch=arch,
        sm_count=sm_count,
        l2_bytes=properties.L2_cache_size,
        dram_bytes_per_second=sheet.dram_bytes_per_second if sheet else memory,
        l2_bytes_per_second=share * like.l2_bytes_per_second,
        peak_flops=sheet.peak_flops if sheet else share * like.peak_flops,
        # At least one, since features divide by them; a cluster that does not fit fails its check.
        clusters_at_once=(0, *(max(max_active_clusters(n, device), 1) for n in sizes)),
        smem_bytes_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        smem_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        smem_bytes_reserved=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
    )


def short_name(device_name: str) -> str:
    """The name of a GPU for ``--gpu`` and for models, made of the name that its driver reports."""
    words = "".join(c if c.isalnum() or c in ".-" else " " for c in device_name).split()
    return "-".join(word for word in words if word not in ("NVIDIA", "GPU"))[:64] or "GPU"


def _undescribed(device: int, reason: str) -> TilecastError:
    return TilecastError(
        f"CUDA device {device} does not say what it is ({reason}); allowed: one that PyTorch sees, "
        "or a known GPU, named with --gpu; see `tilecast doctor`"
    )


def _bandwidth(device: int, size: int) -> float:
    """Bytes a second, read plus written, of a kernel that passes over ``size`` bytes of memory."""
    import torch

    source = torch.zeros(size // 4, dtype=torch.int32, device=f"cuda:{device}")
    target = torch.empty_like(source)
    # No copy: in a graph that is no kernel, and takes 1.7 times as long.
    return 2 * size / _seconds(device, lambda: torch.bitwise_not(source, out=target))


def _product_rate(device: int) -> float:
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
