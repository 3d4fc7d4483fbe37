"""Kernels compiled in worker processes while the caller goes on; for real, so these are few."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import LINEAR_BF16
from tilecast.kernels.background import ObjectBuilder, object_builder
from tilecast.kernels.object_cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

SPEC = KernelSpec(KernelConfig(128, 128, 64, stages=4, warp_groups=2), LINEAR_BF16)
OTHER = KernelSpec(KernelConfig(64, 128, 64, stages=4), LINEAR_BF16)
LATER = KernelSpec(KernelConfig(64, 64, 64, stages=4), LINEAR_BF16)
BAD = KernelSpec(KernelConfig(100, 100, 64), LINEAR_BF16)
"""No tile that WGMMA has an instruction for; the space never proposes it."""


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> ObjectBuilder:
    """One builder for all tests, whose worker starts once."""
    return ObjectBuilder(ObjectCache(tmp_path_factory.mktemp("objects")), workers=1)


def _states(builder: ObjectBuilder) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in builder.objects.root.iterdir()}


def test_many_callers_share_one_compilation(builder: ObjectBuilder) -> None:
    builder.start(SPEC)
    assert builder.objects.resources(SPEC) is None
    seen: list[dict[str, int]] = []

    def wait() -> None:
        builder.wait(SPEC)
        assert builder.objects.resources(SPEC) is not None
        seen.append(_states(builder))

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [_states(builder)] * 8
    assert set(_states(builder)) == {f"{SPEC.key}.o", f"{SPEC.key}.json"}


def test_what_the_cache_holds_is_not_compiled_again(builder: ObjectBuilder) -> None:
    builder.wait(SPEC)
    before = _states(builder)
    for again in (builder, ObjectBuilder(builder.objects, workers=1)):
        again.start(SPEC)
        again.wait(SPEC)
    assert _states(builder) == before


def test_an_object_that_was_cut_short_is_compiled_again(builder: ObjectBuilder) -> None:
    builder.wait(SPEC)
    path = builder.objects.path(SPEC)
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    builder.wait(SPEC)
    assert builder.objects.resources(SPEC) is not None
    assert len(path.read_bytes()) == len(whole)


def test_a_config_that_does_not_compile_is_told_in_one_line(builder: ObjectBuilder) -> None:
    for _ in range(2):
        with pytest.raises(TilecastError, match="did not compile: ") as refusal:
            builder.wait(BAD)
        message = str(refusal.value)
        assert BAD.config.name in message
        assert "\n" not in message
        assert f"tilecast compile --config {BAD.config}" in message
    assert builder.objects.resources(BAD) is None


def test_a_bad_config_stops_no_other(builder: ObjectBuilder) -> None:
    builder.start(BAD)
    builder.start(OTHER)
    builder.wait(OTHER)
    assert builder.objects.resources(OTHER) is not None


def test_a_cache_that_cannot_be_written_is_told_in_one_line(builder: ObjectBuilder) -> None:
    pool = builder._pool
    unwritable = ObjectBuilder(ObjectCache(Path("/proc/tilecast")), workers=1)
    unwritable._pool = pool  # saves the start of another worker
    with pytest.raises(TilecastError, match="cannot write /proc/tilecast") as refusal:
        unwritable.wait(SPEC)
    assert "\n" not in str(refusal.value)


@contextlib.contextmanager
def _dying_worker(builder: ObjectBuilder) -> Iterator[None]:
    """Ends the builder's worker, as the kernel does when memory runs out, then begins the block."""
    builder.start(LATER)
    deadline = time.monotonic() + 60
    job, pool = builder._jobs[LATER], builder._pool
    assert pool is not None
    while not job.done() and time.monotonic() < deadline:
        for pid in list(getattr(pool, "_processes", ())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    assert job.done(), "the pool did not notice"
    assert job.exception() is not None, "the worker was faster than the signal"
    yield


def test_a_worker_that_dies_unwatched_stops_nobody(tmp_path: Path) -> None:
    """Nobody waits yet when it dies: its kernel is told to have failed or compiled after all."""
    builder = ObjectBuilder(ObjectCache(tmp_path), workers=1)
    with _dying_worker(builder), contextlib.suppress(TilecastError):
        builder.wait(LATER)
    builder.wait(LATER)
    assert builder.objects.resources(LATER) is not None


SCRIPT = """
import sys
print("the script runs", flush=True)
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import LINEAR_BF16
from tilecast.kernels.background import object_builder
from tilecast.kernels.spec import KernelSpec
spec = KernelSpec(KernelConfig(64, 64, 64, stages=4), LINEAR_BF16)
object_builder().wait(spec)
print(object_builder().objects.resources(spec).registers > 0)
"""


def test_a_script_without_a_guard_is_run_once(tmp_path: Path) -> None:
    """A spawned worker would import it and start workers of its own."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TILECAST_CACHE": str(tmp_path / "objects")},
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split("\n") == ["the script runs", "True", ""]


def test_the_default_builder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "here"))
    here = object_builder()
    assert here.objects.root == tmp_path / "here"
    assert object_builder() is here
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "there"))
    assert object_builder().objects.root == tmp_path / "there"
