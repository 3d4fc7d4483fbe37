"""Compiling missing kernels in worker processes while the caller goes on."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path

from tilecast.heuristics.errors import TilecastError
from tilecast.kernels.compiler import CompileResult, compile_into
from tilecast.kernels.object_cache import ObjectCache, default_root
from tilecast.kernels.spec import KernelSpec

DEADLINE_SECONDS = 120
"""For one kernel, which takes about a second: a compiler that hangs must not hang its caller."""
IDLE_SECONDS = 60
"""After which workers without work leave, and with them the memory that the compiler takes."""
MOST_WORKERS = 16
"""A shortlist and its neighbours keep no more busy; each takes half a gigabyte."""


class ObjectBuilder:
    """Brings kernels into an object cache. Any thread may call it."""

    def __init__(self, objects: ObjectCache, workers: int):
        """Take where objects go; the workers start with the first kernel that is missing.

        Args:
            objects: the cache.
            workers: processes at most, one core each.
        """
        self.objects = objects
        self._workers = workers
        self._lock = threading.Lock()
        self._pool: Executor | None = None
        self._jobs: dict[KernelSpec, Future[CompileResult]] = {}

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

    def wait(self, spec: KernelSpec) -> None:
        """Return once the cache holds a kernel, compiling it where it does not.

        Raises:
            TilecastError: it does not compile, or its worker died or took too long.
        """
        self.start(spec)
        job = self._jobs.get(spec)
        if job is None:
            return
        try:
            error = job.result(DEADLINE_SECONDS).error
        except FutureTimeout:
            error = f"no result after {DEADLINE_SECONDS} s"
        except BrokenProcessPool:
            error = "its worker process died (out of memory?)"
        if error:
            raise TilecastError(
                f"kernel {spec.config} for {spec.operands.dtype} {spec.operands.layout} did not "
                f"compile: {error}; see `tilecast compile --config {spec.config}`"
            )

    def _submit(self, spec: KernelSpec) -> Future[CompileResult]:
        try:
            return self._workers_pool().submit(compile_into, spec, self.objects)
        except BrokenProcessPool:
            # A worker died of something else: these start anew.
            self._pool = None
            return self._workers_pool().submit(compile_into, spec, self.objects)

    def _workers_pool(self) -> Executor:
        if self._pool is None:
            # Not multiprocessing: its spawned workers import the user's script again, which would
            # run it anew where nothing guards it.
            from joblib.externals.loky import ProcessPoolExecutor

            self._pool = ProcessPoolExecutor(
                self._workers, timeout=IDLE_SECONDS, initializer=_load_compiler
            )
        return self._pool


def _load_compiler() -> None:
    """Import what compiling needs, which takes longer than compiling a kernel."""
    import tilecast.kernels.cutlass_sm90.kernel  # noqa: F401


def object_builder() -> ObjectBuilder:
    """The builder of this process for the default object cache."""
    return _builder(default_root())


@cache
def _builder(root: Path) -> ObjectBuilder:
    return ObjectBuilder(ObjectCache(root), min(os.cpu_count() or 1, MOST_WORKERS))
