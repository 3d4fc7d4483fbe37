"""Attacks on the object cache: planted and swapped code, processes that are killed at any time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from processes import alive, until

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import STALE_SECONDS
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels import launch
from tilecast.kernels.build import builder
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.launch import load_kernel
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.quack_sm90 import family
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

SPECS = [KernelSpec(QuackConfig(64, 64, 64, stages=n), LINEAR_BF16) for n in (3, 4, 5)]
SPEC = SPECS[0]
FORK = multiprocessing.get_context("fork")
EVIL = b"\x7fELF evil"


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the library is handed to run, which is not run."""
    contents: list[bytes] = []

    class Module:
        def __init__(self, path: str, *, enable_tvm_ffi: bool):
            contents.append(Path(path).read_bytes())

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *arguments: None

    monkeypatch.setattr(launch, "_module_type", lambda: Module)
    monkeypatch.setattr(family, "max_active_clusters", lambda size, device: 1)
    return contents


@contextlib.contextmanager
def _running(*targets: Callable[[], None]) -> Iterator[None]:
    processes = [FORK.Process(target=target) for target in targets]
    for process in processes:
        process.start()
    try:
        yield
        assert all(process.is_alive() for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_what_runs_is_what_was_checked_however_files_are_swapped(
    tmp_path: Path, object_file: Callable[..., bytes], executed: list[bytes]
) -> None:
    cache = ObjectCache(tmp_path / "objects")
    whole: dict[bytes, bytes] = {}
    for registers in (168, 232):
        cache.put(SPEC, object_file(registers, 0))
        whole[object_file(registers, 0)] = cache.path(SPEC).read_bytes()
    entry, first = cache.path(SPEC), next(iter(whole.values()))
    contents = [*whole.values(), first[:-70], EVIL + first[len(EVIL) :], EVIL]
    (tmp_path / "evil").write_bytes(EVIL)

    def swap(seed: int) -> None:
        source, mine = random.Random(seed), cache.root / f".swap{seed}"
        while True:
            content, how = source.choice(contents), source.randrange(5)
            if how == 0:
                mine.symlink_to(tmp_path / "evil")
                mine.replace(entry)
            elif how < 3:
                mine.write_bytes(content)
                mine.replace(entry)
            else:
                # A reader may have half of it.
                entry.write_bytes(content)

    refused, end = 0, time.monotonic() + 3
    with _running(lambda: swap(1), lambda: swap(2)):
        while time.monotonic() < end:
            try:
                load_kernel(SPEC, cache)
            except TilecastError as error:
                assert "is not compiled in" in str(error)
                refused += 1
    assert set(executed) == set(whole)
    assert len(executed) > 20
    assert refused > 20


def test_kills_at_any_time_leave_whole_entries_or_none(
    tmp_path: Path, object_file: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no lock: what the next process wants it compiles at once."""
    code = {spec: object_file(160 + 8 * position, 0) for position, spec in enumerate(SPECS)}
    monkeypatch.setattr(KernelFamily, "compile", lambda family, spec, symbol: code[spec])
    cache, source = ObjectCache(tmp_path / "objects"), random.Random(0)

    def compile_for_ever() -> None:
        while True:
            for spec in SPECS:
                cache.path(spec).unlink(missing_ok=True)
                builder.compile_into(spec, cache)

    for _ in range(30):
        with _running(compile_for_ever):
            time.sleep(source.uniform(0.01, 0.06))
        for spec in SPECS:
            assert cache.code(spec) in (None, code[spec])
            assert builder.compile_into(spec, cache).seconds < 5
            assert cache.code(spec) == code[spec]
    for left in cache.root.iterdir():
        old = time.time() - STALE_SECONDS - 1
        os.utime(left, (old, old))
    # A process looks for such files when it first writes.
    code_of_another = (
        "import pathlib, sys; from tilecast.heuristics.files import replace_atomically\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "replace_atomically(path, lambda file: file.write_bytes(path.read_bytes()))"
    )
    again = [sys.executable, "-c", code_of_another, str(cache.path(SPEC))]
    subprocess.run(again, check=True)
    assert {path.name for path in cache.root.iterdir()} == {
        f"{kernel_key(spec)}.o" for spec in SPECS
    }


def _children(pid: int) -> set[int]:
    """Processes that a process began, and theirs."""
    with contextlib.suppress(OSError):
        found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return {process for child in found for process in (child, *_children(child))}
    return set()


def _is_worker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


COMMAND = ("-m", "tilecast.cli.main", "compile", "--workers", "1", "-k", "64", "4096x4096x4096")
"""Compiles for half a minute, so that every signal finds it at work."""
SCRIPT = """
import os, pathlib, sys
from tilecast.heuristics.operands import LINEAR_BF16
import odd_caches
from tilecast.kernels.build import builder
from tilecast.kernels.candidates import space
from tilecast.heuristics.hardware import hardware

builder.prepare = builder.rehearse = odd_caches.nothing
configs = space(LINEAR_BF16, hardware("H200")).configs
specs = (builder.KernelSpec(config, LINEAR_BF16) for config in configs)
cache = odd_caches.Forgetful(pathlib.Path(sys.argv[-1]), os.getpid())
for result in builder.compile_all(specs, cache, 2):
    print(result, flush=True)
"""
"""Prints to whoever reads until nobody does; its workers compile nothing."""


def test_however_a_process_ends_its_workers_end_too(tmp_path: Path) -> None:
    ends = {end: COMMAND for end in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)}
    processes = {
        end: subprocess.Popen(
            [sys.executable, *arguments, "--cache", str(tmp_path / str(end))],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            # Not as inherited: whoever runs the tests in the background has it ignored.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        for end, arguments in {**ends, "closed pipe": ("-c", SCRIPT)}.items()
    }
    begun: set[int] = set()
    try:
        for end, process in processes.items():
            while not any(map(_is_worker, children := _children(process.pid))):
                assert process.poll() is None
                time.sleep(0.02)
            begun |= children
            if isinstance(end, signal.Signals):
                process.send_signal(end)
            else:
                assert process.stdout
                process.stdout.close()
        for process in processes.values():
            assert process.wait(100) != 0
        until(lambda: not any(map(alive, begun)), 30)
    finally:
        for pid in (process.pid for process in processes.values() if process.poll() is None):
            os.kill(pid, signal.SIGKILL)
        for pid in filter(_is_worker, begun):
            os.kill(pid, signal.SIGKILL)
