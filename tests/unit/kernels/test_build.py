"""Compiling a kernel and what becomes of it; tests/slow/kernels compiles many and kills some."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import joblib
import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.build.builder import (
    ObjectBuilder,
    compile_into,
    object_builder,
)
from tilecast.kernels.families import family_of
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.quack_sm90 import family
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

SPEC = KernelSpec(QuackConfig(64, 64, 64, stages=2), LINEAR_BF16)


def test_a_launch_hands_over_as_many_clusters_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "max_active_clusters", lambda size, device: 132 // size)
    config = QuackConfig(128, 64, 64, 2, 1, stages=3, ctas_per_sm=2)
    called: list[tuple] = []
    spec = KernelSpec(config, LINEAR_BF16)
    start = family_of(config).launcher(lambda *values: called.append(values), spec, 0)
    start("a", "b", "out")
    assert called == [("a", "b", "out", 132)]


@pytest.mark.parametrize("raised", [OSError(28, "No space left on device"), MemoryError("no more")])
def test_what_a_compiler_lacks_is_no_fault_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def lack(family: KernelFamily, spec: KernelSpec, symbol: str) -> bytes:
        raise raised

    monkeypatch.setattr(KernelFamily, "compile", lack)
    with pytest.raises(TilecastError, match=f"cannot be compiled .*{raised.args[-1]}") as told:
        compile_into(SPEC, ObjectCache(tmp_path))
    assert "\n" not in str(told.value)
    assert "free some and run again" in str(told.value)


@pytest.mark.parametrize(
    ("ranks", "size"), [("", 16), ("1", 16), ("8", 2), ("64", 1), ("0", 16), ("x", 16), ("-2", 16)]
)
def test_the_ranks_of_a_host_share_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: str, size: int
) -> None:
    monkeypatch.setattr(joblib, "cpu_count", lambda: 192)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    cache = ObjectCache(tmp_path)
    assert ObjectBuilder(cache)._size() == size
    assert ObjectBuilder(cache, workers=5)._size() == 5


def test_a_kernel_that_is_there_is_read_once_to_be_started(
    tmp_path: Path, object_file: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, read, asked = ObjectCache(tmp_path / "objects"), ObjectCache.resources, []
    cache.put(SPEC, object_file(168, 0))
    monkeypatch.setattr(
        ObjectCache, "resources", lambda cache, spec: (asked.append(spec), read(cache, spec))[1]
    )
    builder = ObjectBuilder(cache)
    for _ in range(5):
        builder.start(SPEC)
    assert len(asked) == 1
    builder.wait(SPEC)
    assert builder.ready(SPEC) and len(asked) == 3, "what is waited for is looked at"
    builder.start(SPEC)
    assert len(asked) == 3


def test_the_default_builder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "here"))
    here = object_builder()
    assert here.objects.root == tmp_path / "here"
    assert object_builder() is here
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "there"))
    assert object_builder().objects.root == tmp_path / "there"
