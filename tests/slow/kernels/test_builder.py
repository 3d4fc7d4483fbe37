"""Kernels compiled in other processes while the caller goes on; most for real, so few."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import odd_caches
import pytest
from processes import until

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.build import builder as builder_module
from tilecast.kernels.build import workers
from tilecast.kernels.build.builder import (
    DEADLINE_SECONDS,
    CompileResult,
    ObjectBuilder,
    compile_all,
    compile_into,
)
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.launch import load_kernel
from tilecast.kernels.objects import cache as object_cache
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.keys import kernel_key, kernel_symbol
from tilecast.kernels.quack_sm90 import family
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

SPEC = KernelSpec(QuackConfig(128, 128, 64, stages=4), LINEAR_BF16)
OTHER = KernelSpec(QuackConfig(64, 128, 64, stages=4), LINEAR_BF16)
UNAWAITED = KernelSpec(QuackConfig(128, 64, 64, stages=4), LINEAR_BF16)
BAD = KernelSpec(QuackConfig(100, 100, 64), LINEAR_BF16)
"""No tile that WGMMA has an instruction for; the space never proposes it."""


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> ObjectBuilder:
    """One builder for all tests, which loads the compiler once."""
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
    assert set(_states(builder)) == {f"{kernel_key(SPEC)}.o"}


def test_what_was_compiled_is_loaded_with_no_gpu(
    builder: ObjectBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.wait(SPEC)
    assert kernel_symbol(SPEC).encode() in builder.objects.path(SPEC).read_bytes()
    monkeypatch.setattr(family, "max_active_clusters", lambda size, device: 132 // size)
    kernel, nothing = load_kernel(SPEC, builder.objects), None
    with pytest.raises(TypeError):  # loaded, and asked for tensors
        kernel(nothing, nothing, nothing)


def test_a_kernel_is_begun_and_nobody_waits(builder: ObjectBuilder) -> None:
    assert not builder.ready(UNAWAITED)
    until(lambda: builder.ready(UNAWAITED), DEADLINE_SECONDS)
    assert builder.objects.resources(UNAWAITED) is not None
    assert builder.ready(UNAWAITED)


def test_a_kernel_that_does_not_compile_is_told_to_who_asks_again(builder: ObjectBuilder) -> None:
    with pytest.raises(TilecastError, match=f"{BAD.config}.* did not compile: "):
        until(lambda: builder.ready(BAD), DEADLINE_SECONDS)
    assert not builder.ready(BAD), "it is never tried again"


def test_what_compiles_has_no_threads_that_a_fork_would_lose_and_no_gpu(
    builder: ObjectBuilder,
) -> None:
    builder.wait(SPEC)
    server = Path(f"/proc/{_server(builder)}")
    assert len(list((server / "task").iterdir())) == 1
    assert b"CUDA_VISIBLE_DEVICES=\0" in (server / "environ").read_bytes()


def _server(builder: ObjectBuilder) -> int:
    assert builder._workers is not None
    return builder._workers._server.pid


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}/cmdline").exists()


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that do not load the compiler."""
    for step in ("prepare", "rehearse"):
        monkeypatch.setattr(builder_module, step, odd_caches.nothing)


@pytest.fixture
def odd(
    tmp_path: Path, object_file: Callable[..., bytes], light: None
) -> Callable[..., odd_caches.OddCache]:
    """Makes a cache whose first kernel but one has an odd compiler."""
    code = object_file(168, 0)
    return partial(odd_caches.OddCache, tmp_path / "objects", code, FOUR[1])


FOUR = [KernelSpec(QuackConfig(64, 64, 64, stages=n), LINEAR_BF16) for n in (2, 3, 4, 5)]


@pytest.mark.parametrize("deaths", [1, 2])
def test_only_the_kernel_whose_process_dies_again_fails(
    odd: Callable[..., odd_caches.OddCache], deaths: int
) -> None:
    cache = odd(deaths=deaths, seconds=0.1)
    results = {result.spec: result for result in compile_all(FOUR, cache, 2)}
    assert set(results) == set(FOUR)
    failed = {spec for spec, result in results.items() if result.error}
    assert failed == ({FOUR[1]} if deaths == 2 else set())
    assert {spec for spec in FOUR if cache.resources(spec) is None} == failed
    assert len(cache.tries()) == 2
    if failed:
        assert results[FOUR[1]].passing
        assert "its process died twice" in str(results[FOUR[1]].error)
        assert "out of memory?" in str(results[FOUR[1]].error)


def test_when_all_processes_are_lost_that_is_told_and_others_are_begun(
    odd: Callable[..., odd_caches.OddCache],
) -> None:
    cache = odd(deaths=0, hangs=True)
    builder = ObjectBuilder(cache, workers=1)
    builder.start(FOUR[1])
    until(cache.tries)
    os.kill(_server(builder), signal.SIGKILL)
    with pytest.raises(TilecastError, match="the process that compiles ended with status -9"):
        builder.wait(FOUR[1])
    until(lambda: _gone(cache.tries()[0]))
    builder.wait(FOUR[0])
    assert cache.resources(FOUR[0]) is not None
    builder.close()


def test_what_was_in_work_when_all_processes_were_lost_is_compiled_once_more(
    odd: Callable[..., odd_caches.OddCache],
) -> None:
    cache = odd(hangs=True)
    builder = ObjectBuilder(cache, workers=2)
    lost: list[int] = []
    results: dict[KernelSpec, CompileResult] = {}

    def lose() -> bool:
        # The odd one hangs each time that it is tried; the second time it is lost alone.
        others = len(FOUR) - 1 if lost else 0
        if len(lost) < 2 and len(cache.tries()) > len(lost) and len(results) >= others:
            lost.append(_server(builder))
            os.kill(lost[-1], signal.SIGKILL)
        return False

    for result in builder.build(FOUR, lose):
        results[result.spec] = result
    builder.close()
    assert len(set(lost)) == 2
    assert {spec for spec, result in results.items() if result.error} == {FOUR[1]}
    assert results[FOUR[1]].passing
    assert "the process that compiles ended with status -9" in str(results[FOUR[1]].error)


def test_a_compiler_that_hangs_is_ended_and_the_others_go_on(
    odd: Callable[..., odd_caches.OddCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "DEADLINE_SECONDS", 2)
    cache = odd(hangs=True, seconds=0.2)
    begun = time.monotonic()
    results = {result.spec: result for result in compile_all(FOUR, cache, 2)}
    assert time.monotonic() - begun < 30
    assert {spec: result.error for spec, result in results.items()} == {
        **dict.fromkeys(FOUR),
        FOUR[1]: "no result after 2 s",
    }
    assert results[FOUR[1]].passing
    (hung,) = cache.tries()
    assert _gone(hung)


def test_time_in_the_queue_is_no_compile_time(
    odd: Callable[..., odd_caches.OddCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of six kernels is done after 3 s and more, each after half a second."""
    monkeypatch.setattr(builder_module, "DEADLINE_SECONDS", 2.5)
    six = [KernelSpec(QuackConfig(64, 64, 64, stages=n), LINEAR_BF16) for n in range(6, 12)]
    builder = ObjectBuilder(odd(seconds=0.5), workers=1)
    for spec in six:
        builder.start(spec)
    builder.wait(six[-1])
    assert all(map(builder.ready, six))
    builder.close()


def test_a_compiler_that_hangs_while_it_is_loaded_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "prepare", odd_caches.hang)
    monkeypatch.setattr(workers, "IDLE_SECONDS", 1)
    monkeypatch.setattr(workers, "SILENT_SECONDS", 2)
    builder = ObjectBuilder(ObjectCache(tmp_path), workers=1)
    with pytest.raises(TilecastError, match="the process that compiles (told|ended)"):
        builder.wait(SPEC)


def _multiprocessing(call: Callable[[], object]) -> Callable[[], int | None]:
    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()

    def status() -> int | None:
        process.join()
        return process.exitcode

    return status


def _os_fork(call: Callable[[], object]) -> Callable[[], int | None]:
    if child := os.fork():
        return lambda: os.waitpid(child, 0)[1]
    status = 1
    try:
        call()
        status = 0
    finally:
        os._exit(status)


@pytest.mark.parametrize("fork", [_multiprocessing, _os_fork])
def test_a_forked_child_has_processes_of_its_own(
    odd: Callable[..., odd_caches.OddCache],
    fork: Callable[[Callable[[], object]], Callable[[], int | None]],
) -> None:
    """Even when another thread of its parent was in the builder at that time."""
    builder = ObjectBuilder(odd(), workers=1)
    builder.wait(FOUR[0])
    with builder._lock:
        status = fork(lambda: builder.wait(FOUR[1]))
    start = time.monotonic()
    assert status() == 0
    assert time.monotonic() - start < min(DEADLINE_SECONDS, workers.IDLE_SECONDS)
    assert builder.objects.resources(FOUR[1]) is not None
    builder.wait(FOUR[2])
    builder.close()


def test_processes_that_want_one_kernel_compile_it_once(
    tmp_path: Path, object_file: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"

    def compile_object(family: KernelFamily, spec: KernelSpec, symbol: str) -> bytes:
        with log.open("a") as file:
            file.write(f"{kernel_key(spec)}\n")
        time.sleep(0.05)
        return object_file(168, 0)

    monkeypatch.setattr(KernelFamily, "compile", compile_object)
    cache = ObjectCache(tmp_path / "objects")

    def want_all(first: int) -> None:
        for spec in FOUR[first:] + FOUR[:first]:
            assert compile_into(spec, cache).error is None

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=want_all, args=(n % 4,)) for n in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    assert sorted(log.read_text().split()) == sorted(kernel_key(spec) for spec in FOUR)
    assert len(list(cache.root.iterdir())) == 4


def test_a_process_that_hangs_or_is_killed_holds_up_nobody_for_long(
    tmp_path: Path, object_file: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_cache, "LOCK_SECONDS", 0.5)
    monkeypatch.setattr(KernelFamily, "compile", lambda *_: object_file(168, 0))
    cache = ObjectCache(tmp_path / "objects")

    def hang() -> None:
        with cache.exclusive(SPEC):
            (tmp_path / "held").touch()
            time.sleep(100)

    process = multiprocessing.get_context("fork").Process(target=hang)
    process.start()
    until((tmp_path / "held").exists)
    assert compile_into(SPEC, cache).seconds >= 0.5
    process.kill()
    process.join()
    assert compile_into(OTHER, cache).seconds < 0.5
    cache.path(SPEC).unlink()
    assert 0 < compile_into(SPEC, cache).seconds < 0.5


SCRIPT = """
import sys
print("the script runs", flush=True)
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.spec import KernelSpec
spec = KernelSpec(QuackConfig(64, 64, 64, stages=4), LINEAR_BF16)
object_builder().wait(spec)
print(object_builder().objects.resources(spec).registers > 0)
"""


def test_a_script_without_a_guard_is_run_once(tmp_path: Path) -> None:
    """What is spawned by multiprocessing would import it and start processes of its own."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "TILECAST_CACHE": str(tmp_path / "objects")},
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split("\n") == ["the script runs", "True", ""]
