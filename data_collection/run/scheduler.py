"""What a collection compiles, checks, measures and verifies, and in which order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

from tilecast.data_collection.engines.worker import LocalEngine
from tilecast.data_collection.jobs.jobs import (
    Build,
    CheckJob,
    CompareJob,
    Engine,
    Job,
    MeasureJob,
    Result,
    SessionFactory,
    VerifyJob,
)
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.cards import comparison
from tilecast.data_collection.run.worker_pool import WorkerPool
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import CompileResult
from tilecast.kernels.candidates import spec_for
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.spec import KernelSpec

STRETCH = 16
"""Problems per GPU that are compiled, checked and measured before the next: some two minutes. The
kernels of a stretch compile while the stretch before is measured. The first stretch has one problem
per GPU and each next one twice as many, so that the GPUs have work early."""

MEASURING_SHARE = 0.7
"""Share of a limited time for measuring; the rest is for verification."""

CHECKS_PER_JOB = 16
"""Kernels of one check job, 0.1 s: little to wait for when the others are done, and to repeat after
a hang."""


@dataclass(frozen=True)
class Progress:
    """How far a collection is."""

    phase: str
    """``compile``, ``check``, ``measure``, ``verify`` or ``compare``."""
    done: int
    """Jobs of the phase that are finished."""
    total: int
    """Jobs of the phase: all problems to measure or verify, or the kernels of the next ones."""
    measurements: int
    """Measurements taken by this run."""
    seconds: float
    """Time since the run began."""
    seconds_left: float
    """Time that the rest of the phase will take at the pace so far."""
    gpus: int
    """GPUs at work."""


@dataclass
class _Phase:
    name: str
    total: int
    done: int = 0
    seconds: float = 0.0
    """What the finished jobs took together."""


@dataclass(frozen=True)
class _Build:
    """Kernels that a thread compiles, and their results so far."""

    kernels: list[KernelSpec]
    results: SimpleQueue[CompileResult | BaseException | None] = field(default_factory=SimpleQueue)
    """The last one is None, or what the compiler raised."""


@dataclass(eq=False)
class Scheduler:
    """Checks, measures and verifies problems on one or more GPUs, and compares the GPUs.

    Every finished job is stored before the next one starts, so a run that is killed goes on where
    it was. A kernel that hangs, crashes or computes wrong results is recorded and not run from then
    on. When a card throttles, or a worker is killed or lost with its host, that is noted with the
    run, and the job is done again, if need be on another card. A card that is gone is not waited
    for.
    """

    store: MeasurementStore
    """Where results go, and what says which jobs are done."""
    factories: Sequence[SessionFactory]
    """One session factory per GPU."""
    build: Build = lambda kernels, /, *, stop: ()
    """Compiles kernels; does nothing where all are compiled."""
    engine: Engine = field(default_factory=LocalEngine)
    """What the workers run on."""
    report: Callable[[Progress], None] = lambda progress: None
    """Called after every job."""
    compared: Iterable[tuple[str, GemmProblem]] = ()
    """Cards and problems whose best kernels that card times too, once the problem is raced."""
    silence_seconds: float = 60.0
    """A worker without a message for so long is killed; `START_FACTOR` times as long as it
    starts."""
    deadline: float = math.inf
    """`time.monotonic` after which no further job starts."""
    _until: float = field(default=math.inf, init=False)
    """The same for the current phases."""
    _taken: int = field(default=0, init=False)
    _ended: bool = field(default=False, init=False)

    def collect(
        self,
        problems: Sequence[GemmProblem],
        candidates: Callable[[GemmProblem], Sequence[KernelConfig]],
    ) -> None:
        """Run what the store does not hold yet, in this order of problems.

        ``candidates`` gives those of a problem when they are about to be compiled.

        Raises:
            TilecastError: jobs fail with no kernel to blame, on every card, or all of them.
        """
        self._begun = time.monotonic()
        measuring = self._begun + MEASURING_SHARE * (self.deadline - self._begun)
        self._pool = WorkerPool(self.store, self.factories, self.engine, self.silence_seconds)
        try:
            with self._compiling(measuring) as compiler:
                self._measure(problems, candidates, compiler)
            with self._compiling(self.deadline) as compiler:
                self._verify(problems, compiler)
                self._compare(compiler)
            self._pool.settle()
        finally:
            self._pool.stop()

    @contextmanager
    def _compiling(self, until: float) -> Iterator[ThreadPoolExecutor]:
        """A thread that compiles for the phases inside, which start no job after ``until``."""
        self._until, self._ended = until, False
        with ThreadPoolExecutor(1) as compiler:
            try:
                yield compiler
            finally:
                self._ended = True
                compiler.shutdown(cancel_futures=True)

    def _measure(
        self,
        problems: Sequence[GemmProblem],
        candidates: Callable[[GemmProblem], Sequence[KernelConfig]],
        compiler: ThreadPoolExecutor,
    ) -> None:
        """Stretch by stretch, so that a run that ends early has measured its problems whole."""
        measured = self.store.measured("screen")
        todo = [problem for problem in problems if problem not in measured]
        phase = _Phase("measure", len(todo))
        # Candidates are read stretch by stretch: to rank all problems first would take minutes.
        stretches = (
            {problem: tuple(candidates(problem)) for problem in todo[start:stop]}
            for start, stop in _stretches(len(todo), len(self.factories))
        )
        begun = ((stretch, self._begin(compiler, stretch)) for stretch in stretches)
        following = next(begun, None)
        while following and not self._late():
            stretch, build = following
            kernels = self._built(build)
            following = next(begun, None)
            self._check(kernels)
            # The longest first, so that no card waits long for the last of a stretch.
            longest = sorted(stretch, key=lambda problem: problem.flops, reverse=True)
            self._run(phase, [MeasureJob(problem, stretch[problem]) for problem in longest])

    def _check(self, kernels: Sequence[KernelSpec]) -> None:
        todo = [spec for spec in kernels if kernel_key(spec) not in self._pool.checks]
        starts = range(0, len(todo), CHECKS_PER_JOB)
        jobs = [CheckJob(tuple(todo[start : start + CHECKS_PER_JOB])) for start in starts]
        self._run(_Phase("check", len(jobs)), jobs)

    def _verify(self, problems: Sequence[GemmProblem], compiler: ThreadPoolExecutor) -> None:
        verified, raced = self.store.measured("verify"), self.store.measured("race")
        todo = (problem for problem in problems if problem in raced and problem not in verified)
        self._time_again("verify", [VerifyJob(p, *self.store.raced(p)) for p in todo], compiler)

    def _compare(self, compiler: ThreadPoolExecutor) -> None:
        raced = self.store.measured("race")
        pairs = ((card, problem) for card, problem in self.compared if problem in raced)
        jobs = [CompareJob(problem, self.store.raced(problem)[0], card) for card, problem in pairs]
        self._time_again("compare", jobs, compiler)

    def _time_again(
        self, phase: str, jobs: Sequence[VerifyJob], compiler: ThreadPoolExecutor
    ) -> None:
        # Nothing can be timed again where all kernels have failed since.
        jobs = [job for job in jobs if job.without(self._pool.checks).kernels]
        if jobs:
            configs = {job.problem: [r.config for r in job.raced if r.config] for job in jobs}
            self._built(self._begin(compiler, configs))
            self._run(_Phase(phase, len(jobs)), jobs)

    def _begin(
        self, compiler: ThreadPoolExecutor, stretch: Mapping[GemmProblem, Sequence[KernelConfig]]
    ) -> _Build:
        """Have a thread compile the kernels of some problems, except those known to fail."""
        specs = dict.fromkeys(spec_for(c, problem) for problem, cs in stretch.items() for c in cs)
        build = _Build([spec for spec in specs if not self._pool.checks.get(kernel_key(spec))])
        compiler.submit(self._compile, build)
        return build

    def _compile(self, build: _Build) -> None:
        try:
            for result in self.build(build.kernels, stop=self._unwanted):
                build.results.put(result)
                if self._unwanted():
                    break
            build.results.put(None)
        except BaseException as error:  # raised by `_built`
            build.results.put(error)

    def _built(self, build: _Build) -> list[KernelSpec]:
        """Wait until a build has ended; all its kernels.

        A kernel that the compiler refused is left out by all runs, and one that the compiler hung
        or died at by this run alone.
        """
        phase, since = _Phase("compile", len(build.kernels)), time.monotonic()
        while (result := build.results.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            if result.error and result.passing:
                self._pool.leave_out(result.spec, result.error)
            elif result.error:
                self._pool.record({result.spec: result.error})
            since = self._tell(phase, since)
        return build.kernels

    def _unwanted(self) -> bool:
        """Whether nobody waits for kernels any more, or there is no time to run them."""
        return self._ended or self._late()

    def _late(self) -> bool:
        return time.monotonic() > self._until

    def _run(self, phase: _Phase, jobs: Sequence[Job]) -> None:
        if not jobs or self._late():
            return
        waiting, since = list(jobs), time.monotonic()
        while waiting or self._pool.busy:
            if self._late():
                waiting.clear()
            for done in self._pool.finished(waiting):
                self._keep(*done)
                since = self._tell(phase, since)

    def _keep(self, job: Job, result: Result, card: str) -> None:
        if isinstance(result, dict):
            self._pool.record(result)
            return
        self._taken += len(result)
        if isinstance(job, CompareJob):
            self.store.note("compared", comparison(job.problem, result, card))
        else:
            self.store.add(result, card)

    def _tell(self, phase: _Phase, since: float) -> float:
        """Count one more job, begun at some time, and report; the time now."""
        now = time.monotonic()
        phase.done += 1
        phase.seconds += now - since
        self.report(
            Progress(
                phase=phase.name,
                done=phase.done,
                total=phase.total,
                measurements=self._taken,
                seconds=now - self._begun,
                seconds_left=phase.seconds / phase.done * (phase.total - phase.done),
                gpus=self._pool.gpus,
            )
        )
        return now


def _stretches(problems: int, gpus: int) -> Iterator[tuple[int, int]]:
    """Place of each stretch's first problem, and of the first one behind it."""
    start, size = 0, gpus
    while start < problems:
        yield start, min(start + size, problems)
        start, size = start + size, min(2 * size, STRETCH * gpus)
