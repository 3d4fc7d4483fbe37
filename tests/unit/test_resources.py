"""Resources: the arithmetic that predicts them, and the reader that finds them in an object."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.cutlass_sm90 import resources
from tilecast.kernels.cutlass_sm90.config import Sm90Config
from tilecast.kernels.object_facts import KernelResources, read_resources

schedules = st.builds(
    Sm90Config,
    tile_m=st.sampled_from([64, 128, 192, 256]),
    tile_n=st.sampled_from(range(16, 257, 16)),
    tile_k=st.sampled_from([64, 128]),
    stages=st.integers(2, 12),
    warp_groups=st.integers(1, 3),
    ctas_per_sm=st.integers(1, 2),
)


@given(schedules)
def test_register_demand_never_exceeds_the_launch_allocation(config: Sm90Config) -> None:
    """The one that hung the GPU: three MMA warp groups of 232 beside 40 are more than an SM has."""
    threads = 128 * (config.warp_groups + 1)
    launch = resources.launch_registers(config)
    assert launch % 8 == 0
    assert launch * threads * config.ctas_per_sm <= 65_536
    mma = resources.mma_registers(config)
    assert mma % 8 == 0
    assert 128 * (config.warp_groups * mma + 40) <= launch * threads


def test_three_warp_groups_get_less_than_they_would_ask_for() -> None:
    assert 3 * 128 * 232 + 128 * 40 > 65_536
    assert resources.mma_registers(Sm90Config(192, 128, 64, warp_groups=3)) < 232


@pytest.mark.parametrize(
    ("warp_groups", "ctas_per_sm", "launch", "mma"),
    [(1, 1, 232, 232), (2, 1, 168, 232), (1, 2, 128, 216), (2, 2, 80, 96)],
)
def test_registers_by_hand(warp_groups: int, ctas_per_sm: int, launch: int, mma: int) -> None:
    config = Sm90Config(128, 128, 64, warp_groups=warp_groups, ctas_per_sm=ctas_per_sm)
    assert resources.launch_registers(config) == launch
    assert resources.mma_registers(config) == mma


def test_shared_memory_by_hand(linear: GemmOperands, h200: Hardware) -> None:
    config = Sm90Config(128, 256, 64, stages=4, warp_groups=2)
    stages = 4 * (128 + 256) * 64 * 2
    epilogue = 4 * 128 * 32 * 2
    assert resources.smem_bytes(config, linear) == 1024 + stages + epilogue
    assert h200.smem_limit(config.ctas_per_sm) == 227 * 1024


def test_two_ctas_share_the_sm(h200: Hardware) -> None:
    config = Sm90Config(128, 128, 64, ctas_per_sm=2)
    limit = h200.smem_limit(config.ctas_per_sm)
    assert 2 * (limit + 1024) == 228 * 1024


@given(registers=st.integers(8, 255), spill_bytes=st.integers(0, 4096))
def test_reads_registers_and_spills(
    object_file: Callable[..., bytes], registers: int, spill_bytes: int
) -> None:
    code = object_file(registers, spill_bytes)
    assert read_resources(code) == KernelResources(registers, spill_bytes)


def test_ignores_what_follows(object_file: Callable[..., bytes]) -> None:
    assert read_resources(object_file(168, 0) + b"host code") == KernelResources(168, 0)


@given(data=st.data())
def test_object_that_was_cut_short_is_refused(
    object_file: Callable[..., bytes], data: st.DataObject
) -> None:
    code = object_file(168, 0)
    size = data.draw(st.integers(0, len(code) - 1))
    with pytest.raises(TilecastError, match="object file .*; delete it and compile again"):
        read_resources(code[:size])


@pytest.mark.parametrize("code", [b"", b"\x7fELF", b"no object at all", b"\x7fELF" * 50])
def test_what_is_no_object_is_refused(code: bytes) -> None:
    with pytest.raises(TilecastError, match="object file"):
        read_resources(code)


def test_host_code_alone_is_refused(object_file: Callable[..., bytes]) -> None:
    with pytest.raises(TilecastError, match="holds no device code"):
        read_resources(object_file(168, 0, machine=62))
