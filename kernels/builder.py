"""Bringing kernels into an object cache: worker processes compile, the caller goes on."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.kernels.compiling import CompileResult, compile_into
from tilecast.kernels.object_cache import ObjectCache, default_root
from tilecast.kernels.spec import KernelSpec
from tilecast.kernels.workers import end_workers, new_pool

DEADLINE_SECONDS = 120
"""For one kernel, which takes about a second: a compiler that hangs must not hang its caller."""
STOP_SECONDS = 0.25
"""How often whoever wants kernels is asked whether they are still wanted."""
MOST_WORKERS = 16
"""A shortlist and its neighbours keep no more busy; each takes half a gigabyte."""


def _never() -> bool:
    """Whether kernels are no longer wanted: they are."""
    return False


class ObjectBuilder:
    """Brings kernels into an object cache. Any thread may call it, and a forked child too.

    A worker that dies takes all kernels in work with it: each of them is then compiled once more,
    alone, so that only the one that ends its worker again is told to have failed.
    """

    def __init__(self, objects: ObjectCache, workers: int | None = None):
        """Take where objects go; the workers start with the first kernel that is missing.

        Where their number is left out, there is one per core, `MOST_WORKERS` at most.
        """
        self.objects = objects
        self._workers = workers
        self._begin()
        _builders.add(self)

    def start(self, spec: KernelSpec) -> None:
        """Begin to compile a kernel unless the cache holds it or a worker is at it already."""
        with self._lock:
            job = self._jobs.get(spec)
            if job is not None and not job.done():
                return
            if self.objects.resources(spec) is None:
                self._jobs[spec] = self._submit(spec)
            else:
                self._jobs.pop(spec, None)

    def ready(self, spec: KernelSpec) -> bool:
        """Whether the cache holds a kernel, which begins to be compiled where it does not.

        Raises:
            TilecastError: it did not compile, or its worker died; asked again, it is tried again.
        """
        with self._lock:
            job = self._jobs.get(spec)
            if job is None or not job.done():
                self.start(spec)
                return spec not in self._jobs
            del self._jobs[spec]
        try:
            error = job.result().error
        except BrokenProcessPool as broken:
            error = one_line(broken)
        if error:
            raise _not_compiled(spec, error)
        return True

    def wait(self, spec: KernelSpec) -> None:
        """Return once the cache holds a kernel, compiling it where it does not.

        Raises:
            TilecastError: it does not compile, or its worker died or took too long.
        """
        self.start(spec)
        job = self._jobs.get(spec)
        error = job and self._result(spec, job).error
        if error:
            raise _not_compiled(spec, error)

    def settle(self) -> None:
        """Return once no kernel that was begun before is in work, whatever became of it."""
        with self._lock:
            jobs = dict(self._jobs)
        for spec, job in jobs.items():
            # Whoever needs the kernel is told why the cache cannot be written.
            with contextlib.suppress(TilecastError):
                self._result(spec, job)

    def build(
        self, specs: Iterable[KernelSpec], stop: Callable[[], bool] = _never
    ) -> Iterator[CompileResult]:
        """Compile different kernels that the cache lacks, and yield each as it is done.

        Once ``stop`` says so, what is in work is given up and nothing more is begun.

        Raises:
            TilecastError: the cache cannot be written.
        """
        missing = iter(specs)
        jobs: dict[Future[CompileResult], tuple[KernelSpec, float]] = {}
        while True:
            # One a worker: no other is lost when one dies, and none is timed while it waits.
            for spec in itertools.islice(missing, self._size() - len(jobs)):
                jobs[self._submit(spec)] = spec, time.monotonic()
            if not jobs:
                return
            oldest = min(begun for _, begun in jobs.values())
            left = oldest + DEADLINE_SECONDS - time.monotonic()
            done = wait(jobs, min(max(0.0, left), STOP_SECONDS), FIRST_COMPLETED).done
            if stop():
                self._end(self._pool)
                return
            for job in done:
                spec, _ = jobs.pop(job)
                yield self._result(spec, job, stop)
            late = time.monotonic() - DEADLINE_SECONDS
            if not done and oldest <= late:
                self._end(self._pool)
                again = [spec for spec, begun in jobs.values() if begun > late]
                missing = itertools.chain(again, missing)
                for spec, begun in jobs.values():
                    if begun <= late:
                        yield _no_result(spec)
                jobs = {}

    def close(self) -> None:
        """End the workers; kernels that they are at are given up."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, kill_workers=True)
                self._pool = None

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._one = threading.Lock()
        self._pool: Any = None
        self._jobs: dict[KernelSpec, Future[CompileResult]] = {}

    def _size(self) -> int:
        from joblib import cpu_count

        return self._workers or min(cpu_count(), MOST_WORKERS)

    def _submit(self, spec: KernelSpec) -> Future[CompileResult]:
        with self._lock:
            if self._pool is None:
                self.objects.tidy()
                self._pool = new_pool(self._size())
                # A process that multiprocessing forked would wait until they are idle for long.
                Finalize(None, _close_all, exitpriority=10)
            try:
                return self._pool.submit(compile_into, spec, self.objects)
            except BrokenProcessPool:
                self._pool = new_pool(self._size())
                return self._pool.submit(compile_into, spec, self.objects)

    def _result(
        self, spec: KernelSpec, job: Future[CompileResult], stop: Callable[[], bool] = _never
    ) -> CompileResult:
        self._wait_for(job)
        try:
            return job.result()
        except BrokenProcessPool:
            result = self._alone(spec, stop)
            with self._lock:
                if result.error is None and self._jobs.get(spec) is job:
                    del self._jobs[spec]
            return result

    def _wait_for(self, job: Future[CompileResult]) -> None:
        """Wait until a job is done, or broken as all workers are ended when none did any in time.

        A job may wait behind others, which is no compile time.
        """
        while not job.done():
            with self._lock:
                pool = self._pool
                begun = {job, *(one for one in self._jobs.values() if not one.done())}
            if not wait(begun, DEADLINE_SECONDS, FIRST_COMPLETED).done and pool is not None:
                self._end(pool)
                wait([job], DEADLINE_SECONDS)

    def _end(self, pool: Any) -> None:
        """End the workers of a pool; what they are at is broken, and the next job has others."""
        with self._lock:
            if pool is self._pool:
                self._pool = None
        end_workers(pool)

    def _alone(self, spec: KernelSpec, stop: Callable[[], bool]) -> CompileResult:
        """Compile what was in work when a worker died, perhaps of another kernel."""
        with self._one:
            if self.objects.resources(spec) is not None:
                return CompileResult(spec, 0.0)
            pool, begun = new_pool(1), time.monotonic()
            try:
                job = pool.submit(compile_into, spec, self.objects)
                while not wait([job], STOP_SECONDS).done:
                    if stop():
                        reason = "given up, as nobody waits for it"
                        return CompileResult(spec, 0.0, reason, passing=True)
                    if time.monotonic() > begun + DEADLINE_SECONDS:
                        return _no_result(spec)
                return job.result()
            except BrokenProcessPool:
                reason = "its worker process died twice, the second time with no other beside it"
                return CompileResult(spec, 0.0, f"{reason} (out of memory?)", passing=True)
            finally:
                pool.shutdown(wait=False, kill_workers=True)


def _no_result(spec: KernelSpec) -> CompileResult:
    return CompileResult(spec, 0.0, f"no result after {DEADLINE_SECONDS} s", passing=True)


def _not_compiled(spec: KernelSpec, error: str) -> TilecastError:
    return TilecastError(
        f"kernel {spec} did not compile: {error}; see `tilecast compile --config {spec.config} "
        f"--operands {spec.operands}`"
    )


def compile_all(
    specs: Iterable[KernelSpec],
    cache: ObjectCache,
    workers: int,
    *,
    stop: Callable[[], bool] = _never,
) -> Iterator[CompileResult]:
    """Bring every spec into the cache, in a pool of processes, and yield each as it is done.

    A spec that fails to compile is reported and the others go on; those that the cache holds are
    not compiled again. Each worker is a process and takes a core. Once ``stop`` says so, what is in
    work is given up, whatever its compiler is doing.

    Raises:
        TilecastError: the cache cannot be written, or others may write it.
    """
    missing = []
    for spec in dict.fromkeys(specs):
        if cache.resources(spec) is None:
            missing.append(spec)
        else:
            yield CompileResult(spec, 0.0)
    if missing:
        with contextlib.closing(ObjectBuilder(cache, min(workers, len(missing)))) as builder:
            yield from builder.build(missing, stop)


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
_inherited: list[object] = []


def _close_all() -> None:
    for builder in list(_builders):
        builder.close()


def _forget_workers() -> None:
    """In a forked child, whose builders have their parent's workers and perhaps a lock held."""
    for builder in list(_builders):
        # Kept, as to delete a pool takes one of its locks.
        _inherited.append((builder._pool, builder._jobs))
        builder._begin()


os.register_at_fork(after_in_child=_forget_workers)
