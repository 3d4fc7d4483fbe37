"""Bringing kernels into an object cache: other processes compile, the caller goes on."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from weakref import WeakSet

from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.build.workers import ServerDied, WorkerDied, Workers
from tilecast.kernels.families import FAMILIES, family_of
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.objects.keys import kernel_symbol
from tilecast.kernels.spec import KernelSpec

DEADLINE_SECONDS = 120
"""For one kernel, which takes about a second: a compiler that hangs must not hang its caller."""
STOP_SECONDS = 0.25
"""How often whoever wants kernels is asked whether they are still wanted."""
MOST_WORKERS = 16
"""A shortlist and its neighbours keep no more busy; each takes 0.1 GB beside what all share."""


@dataclass(frozen=True)
class CompileResult:
    """What became of one spec."""

    spec: KernelSpec
    """The kernel asked for."""
    seconds: float
    """Time its worker spent; 0 when the cache had it, or it came with tilecast."""
    error: str | None = None
    """Why it failed, in one line; None when it is in the cache."""
    passing: bool = False
    """Whether it may compile another time: its compiler hung or died, and did not refuse it."""


def _never() -> bool:
    """Whether kernels are no longer wanted: they are."""
    return False


class ObjectBuilder:
    """Brings kernels into an object cache. Any thread may call it, and a forked child too."""

    def __init__(self, objects: ObjectCache, workers: int | None = None):
        """Take where objects go; processes start with the first kernel that is missing.

        So many compile at a time, or one per core, `MOST_WORKERS` at most, of which each rank of a
        job on this host has its part.
        """
        self.objects = objects
        self._most = workers
        self._begin()
        _builders.add(self)

    def start(self, spec: KernelSpec) -> None:
        """Begin to compile a kernel unless the cache holds it or a worker is at it already.

        The cache is read once for each kernel that it holds; `ready` and `wait` read it each time.
        """
        with self._lock:
            job = self._jobs.get(spec)
            if spec in self._seen or (job is not None and not job.done()):
                return
            if self.objects.resources(spec) is None:
                self._jobs[spec] = self._submit(spec)
            else:
                self._jobs.pop(spec, None)
                self._seen.add(spec)

    def ready(self, spec: KernelSpec) -> bool:
        """Whether the cache holds a kernel, which begins to be compiled where it does not.

        Raises:
            TilecastError: it did not compile, or its worker died; asked again, it is tried again.
        """
        with self._lock:
            job = self._jobs.get(spec)
            if job is None or not job.done():
                self._look_and_start(spec)
                return spec not in self._jobs
            del self._jobs[spec]
        error = _result(spec, job).error
        if error:
            raise _not_compiled(spec, error)
        return True

    def wait(self, spec: KernelSpec) -> None:
        """Return once the cache holds a kernel, compiling it where it does not.

        Raises:
            TilecastError: it does not compile, or its worker died or took too long.
        """
        # In one step: `ready` takes a failure along when it tells that, and `close` all.
        with self._lock:
            self._look_and_start(spec)
            job = self._jobs.get(spec)
        error = job and _result(spec, job).error
        if error:
            raise _not_compiled(spec, error)

    def _look_and_start(self, spec: KernelSpec) -> None:
        """Start, whatever the cache held before."""
        self._seen.discard(spec)
        self.start(spec)

    def settle(self) -> None:
        """Return once no kernel that was begun before is in work, whatever became of it."""
        with self._lock:
            jobs = list(self._jobs.values())
        wait(jobs)

    def build(
        self, specs: Iterable[KernelSpec], stop: Callable[[], bool] = _never
    ) -> Iterator[CompileResult]:
        """Bring every spec into the cache, and yield each as it is done.

        A spec that fails to compile is reported and the others go on. What was in work when all
        processes ended, as somebody killed the one that begins them, is compiled once more. Once
        ``stop`` says so, what is in work is given up and nothing more is begun.

        Raises:
            TilecastError: the cache cannot be written, or others may write it.
        """
        missing: list[KernelSpec] = []
        for spec in dict.fromkeys(specs):
            if self.objects.resources(spec) is None:
                missing.append(spec)
            else:
                yield CompileResult(spec, 0.0)
        following = iter(missing)
        jobs: dict[Future[CompileResult], KernelSpec] = {}
        again: set[KernelSpec] = set()
        while True:
            # One a process, so that the next is chosen when there is one for it.
            for spec in itertools.islice(following, self._size() - len(jobs)):
                jobs[self._submit(spec)] = spec
            if not jobs:
                return
            done = wait(jobs, STOP_SECONDS, FIRST_COMPLETED).done
            if stop():
                self.close()
                return
            for job in done:
                spec = jobs.pop(job)
                if isinstance(job.exception(), ServerDied) and spec not in again:
                    again.add(spec)
                    jobs[self._submit(spec)] = spec
                else:
                    yield _result(spec, job)

    def close(self) -> None:
        """End the processes; kernels that they are at are given up."""
        with self._lock:
            if self._workers is not None:
                self._workers.close()
                self._workers = None
                self._jobs.clear()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._workers: Workers | None = None
        self._jobs: dict[KernelSpec, Future[CompileResult]] = {}
        self._seen: set[KernelSpec] = set()
        """Kernels that the cache held when it was asked."""

    def _size(self) -> int:
        from joblib import cpu_count

        return self._most or max(1, min(cpu_count(), MOST_WORKERS) // _ranks())

    def _submit(self, spec: KernelSpec) -> Future[CompileResult]:
        asked = DEADLINE_SECONDS, compile_into, spec, self.objects
        with self._lock:
            if self._workers is None:
                self.objects.tidy()
            else:
                with contextlib.suppress(WorkerDied):
                    return self._workers.submit(*asked)
            self._workers = Workers(
                self._size(),
                partial(prepare, spec.config.family),
                partial(rehearse, spec.config.family),
                environment(),
            )
            try:
                return self._workers.submit(*asked)
            except WorkerDied as died:
                failed: Future[CompileResult] = Future()
                failed.set_exception(died)
                return failed


def _ranks() -> int:
    """Ranks of a job on this host, as ``torchrun`` and other launchers say; 1 where none does."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(said)) if said.isascii() and said.isdigit() else 1


def compile_into(spec: KernelSpec, cache: ObjectCache) -> CompileResult:
    """Compile one kernel in this process and store it; what the DSL raises is in the result.

    Where another process compiles the same kernel, this one waits and takes what that one stored.

    Raises:
        TilecastError: the cache cannot be written, or others may write it; or the machine lacks
            what a compiler takes, such as free space for temporary files.
    """
    start = time.perf_counter()
    with cache.exclusive(spec):
        if cache.resources(spec) is not None:
            return CompileResult(spec, 0.0)
        try:
            code = family_of(spec.config).compile(spec, kernel_symbol(spec))
        except TilecastError:
            raise
        except (OSError, MemoryError) as error:
            raise TilecastError(
                f"kernel {spec} cannot be compiled ({one_line(error)}); allowed: a machine with "
                f"free memory and space in {tempfile.gettempdir()}; free some and run again"
            ) from error
        except Exception as error:
            # The DSL raises whatever it meets; one bad config must not stop the rest.
            return CompileResult(spec, time.perf_counter() - start, one_line(error))
        cache.put(spec, code)
    return CompileResult(spec, time.perf_counter() - start)


def environment() -> dict[str, str]:
    """Variables of the environment in which kernels compile."""
    return {name: v for family in FAMILIES.values() for name, v in family.environment.items()}


def prepare(family: str) -> None:
    """Load a family's compiler."""
    with contextlib.suppress(Exception):  # compiling tells
        import_module(FAMILIES[family].compiler)


def rehearse(family: str) -> None:
    """Have a family's compiler do what it does with its first kernel alone."""
    with contextlib.suppress(Exception):  # compiling tells
        FAMILIES[family].compile(KernelSpec(FAMILIES[family].rehearsal, LINEAR_BF16), "rehearsal")


def _result(spec: KernelSpec, job: Future[CompileResult]) -> CompileResult:
    """What became of a kernel, once that is known.

    Raises:
        TilecastError: the cache cannot be written.
    """
    try:
        return job.result()
    except WorkerDied as died:
        return CompileResult(spec, 0.0, str(died), passing=True)


def _not_compiled(spec: KernelSpec, error: str) -> TilecastError:
    return TilecastError(
        f"kernel {spec} did not compile: {error}; allowed: one that does; `tilecast space --why "
        f"{spec.config} --operands '{spec.operands}'` says whether it should"
    )


def compile_all(
    specs: Iterable[KernelSpec],
    cache: ObjectCache,
    workers: int,
    *,
    stop: Callable[[], bool] = _never,
) -> Iterator[CompileResult]:
    """`ObjectBuilder.build`, some kernels at a time, in processes that end with it."""
    with contextlib.closing(ObjectBuilder(cache, workers)) as builder:
        yield from builder.build(specs, stop)


def object_builder() -> ObjectBuilder:
    """The builder of this process for the default object cache.

    Raises:
        TilecastError: there is no folder for it.
    """
    return _builder(default_root())


@cache
def _builder(root: Path) -> ObjectBuilder:
    return ObjectBuilder(ObjectCache(root))


_builders: WeakSet[ObjectBuilder] = WeakSet()


def _forget_workers() -> None:
    """In a forked child, whose builders have their parent's workers and perhaps a lock held."""
    for builder in list(_builders):
        builder._begin()


os.register_at_fork(after_in_child=_forget_workers)
