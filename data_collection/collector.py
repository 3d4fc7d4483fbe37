"""The collector: hands jobs to one worker per GPU and survives whatever a kernel does to it."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from tilecast.data_collection.measurement import Measurement
from tilecast.data_collection.protocol import Entrant, Settings
from tilecast.data_collection.store import MeasurementStore
from tilecast.data_collection.worker import (
    CheckJob,
    Job,
    MeasureJob,
    SessionFactory,
    VerifyJob,
    work,
)
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.spec import KernelSpec

CHECKS_PER_JOB = 64
"""Kernels of one check job: enough to keep its overhead small, few to repeat after a hang."""

START_FACTOR = 4
"""A worker that starts loads libraries and makes a GPU context, and may be silent longer."""

Plan = dict[GemmProblem, tuple[KernelConfig, ...]]
"""What to measure: each problem with its candidates."""


@dataclass(frozen=True)
class Progress:
    """How far a collection is."""

    phase: str
    """``check``, ``measure`` or ``verify``."""
    done: int
    """Jobs of the phase that are finished."""
    total: int
    """Jobs of the phase."""
    measurements: int
    """Measurements taken by this run."""
    seconds: float
    """Time since the run began."""
    seconds_left: float | None
    """Time that the rest of the phase will take at the pace so far; None before the first job."""


@dataclass
class _Worker:
    """One child process and what it is doing."""

    factory: SessionFactory
    process: BaseProcess
    connection: Connection
    card: str | None = None
    job: Job | None = None
    left_out: dict[KernelConfig, str] = field(default_factory=dict)
    running: Entrant = None
    heard: float = field(default_factory=time.monotonic)


class Collector:
    """Checks, measures and verifies a plan on one or more GPUs.

    Every finished job is in the store before the next one starts, so a run that is killed goes on
    where it was. A kernel that hangs, crashes or is wrong is recorded and left out from then on.
    """

    def __init__(
        self,
        store: MeasurementStore,
        factories: Sequence[SessionFactory],
        settings: Settings | None = None,
        report: Callable[[Progress], None] = lambda progress: None,
        silence_seconds: float = 60.0,
        deadline: float = float("inf"),
    ):
        """Prepare a run; nothing starts yet.

        Args:
            store: where results go and what is done already is read from.
            factories: one session factory per GPU.
            settings: the protocol's numbers.
            report: told of progress after every job.
            silence_seconds: a worker that says nothing for so long is killed; one that starts may
                take `START_FACTOR` times as long.
            deadline: `time.monotonic` after which no further job starts.
        """
        self._store = store
        self._factories = list(factories)
        self._settings = settings or Settings()
        self._report = report
        self._silence = silence_seconds
        self._deadline = deadline
        self._workers: list[_Worker] = []
        self._taken = 0

    def collect(self, plan: Plan) -> None:
        """Run what the store does not hold yet.

        Raises:
            TilecastError: a job fails with no kernel to blame.
        """
        self._begun = time.monotonic()
        try:
            self._workers = [self._spawn(factory) for factory in self._factories]
            self._run("check", self._check_jobs(plan))
            self._run("measure", self._measure_jobs(plan))
            self._run("verify", self._verify_jobs(plan))
        finally:
            for worker in self._workers:
                _stop(worker)

    def _check_jobs(self, plan: Plan) -> list[Job]:
        checked = self._store.checks()
        specs = dict.fromkeys(
            KernelSpec.for_problem(config, problem)
            for problem, configs in plan.items()
            for config in configs
        )
        todo = [spec for spec in specs if spec.key not in checked]
        return [
            CheckJob(tuple(todo[start : start + CHECKS_PER_JOB]))
            for start in range(0, len(todo), CHECKS_PER_JOB)
        ]

    def _measure_jobs(self, plan: Plan) -> list[Job]:
        measured = self._store.measured("screen")
        return [MeasureJob(p, configs) for p, configs in plan.items() if p not in measured]

    def _verify_jobs(self, plan: Plan) -> list[Job]:
        verified, measured = self._store.measured("verify"), self._store.measured("race")
        todo = [problem for problem in plan if problem in measured and problem not in verified]
        raced = {problem: self._store.raced(problem) for problem in todo}
        return [VerifyJob(problem, tuple(rows), card) for problem, (rows, card) in raced.items()]

    def _run(self, phase: str, jobs: list[Job]) -> None:
        """Work through the jobs of one phase on all workers."""
        waiting, total, done = list(jobs), len(jobs), 0
        start = time.monotonic()
        while waiting or any(worker.job for worker in self._workers):
            if time.monotonic() > self._deadline:
                waiting.clear()
            for worker in self._workers:
                if worker.job is None and worker.card and waiting:
                    self._send(worker, waiting)
            for worker, message in self._messages():
                if message[0] == "done" and worker.job:
                    self._keep(worker, message[1])
                    worker.job, done = None, done + 1
                    spent = time.monotonic() - start
                    self._report(
                        Progress(
                            phase,
                            done,
                            total,
                            self._taken,
                            time.monotonic() - self._begun,
                            spent / done * (total - done),
                        )  # fmt: skip
                    )
                elif message[0] == "failed":
                    waiting[:0] = self._recover(worker, message[1], message[2])

    def _send(self, worker: _Worker, waiting: list[Job]) -> None:
        """Give a worker its next job; a verification is left to the card that raced."""
        others = {other.card for other in self._workers if other is not worker}
        job = next((job for job in waiting if _may_do(worker.card, job, others)), None)
        if job is None:
            return
        waiting.remove(job)
        worker.job, worker.running, worker.heard = job, None, time.monotonic()
        if isinstance(job, MeasureJob):
            worker.left_out = self._failures(job)
            job = replace(job, configs=tuple(c for c in job.configs if c not in worker.left_out))
        with contextlib.suppress(OSError):  # it has died; `_messages` will find out
            worker.connection.send(job)

    def _messages(self) -> Iterator[tuple[_Worker, tuple]]:
        """What the workers say within a second, and a failure for each that died or went silent."""
        ready = wait([worker.connection for worker in self._workers], timeout=1.0)
        for worker in list(self._workers):
            if worker.connection in ready:
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    worker.process.join(timeout=5)
                    reason = f"crashed: exit code {worker.process.exitcode}"
                    yield worker, ("failed", None, reason)
                    continue
                worker.heard = time.monotonic()
                if message[0] == "running":
                    worker.running = message[1]
                elif message[0] == "ready":
                    worker.card = message[1]
                else:
                    yield worker, message
            elif time.monotonic() - worker.heard > (allowed := self._allowed_silence(worker)):
                yield worker, ("failed", None, f"hung: no sign of life for {allowed:g} s")

    def _allowed_silence(self, worker: _Worker) -> float:
        if worker.card is None:
            return START_FACTOR * self._silence
        return self._silence if worker.job else float("inf")

    @staticmethod
    def _suspect(worker: _Worker) -> Entrant:
        """The kernel to blame if a worker failed and named none: known when they ran one by one."""
        one_by_one = isinstance(worker.job, CheckJob) or (worker.job and worker.job.careful)
        return worker.running if one_by_one else None

    def _recover(self, worker: _Worker, culprit: Entrant, reason: str) -> list[Job]:
        """Replace a worker; return what is left of its job.

        Raises:
            TilecastError: no kernel can be blamed.
        """
        job, culprit = worker.job, culprit or self._suspect(worker)
        _stop(worker)
        self._workers[self._workers.index(worker)] = self._spawn(worker.factory)
        if culprit is None and isinstance(job, (MeasureJob, VerifyJob)) and not job.careful:
            return [replace(job, careful=True)]
        if culprit is None or job is None:
            raise TilecastError(
                f"a worker failed with no kernel to blame ({reason}); allowed: a GPU with free "
                "memory and a working driver; see `tilecast doctor`, then run again: it goes on "
                "where it was"
            )
        if isinstance(job, CheckJob):
            broken = next(spec for spec in job.specs if spec.config == culprit)
            self._store.add_checks({broken: reason})
            rest = tuple(spec for spec in job.specs if spec != broken)
            return [CheckJob(rest)]
        self._store.add_checks({KernelSpec.for_problem(culprit, job.problem): reason})
        if isinstance(job, VerifyJob):
            return [replace(job, raced=tuple(row for row in job.raced if row.config != culprit))]
        return [job]

    def _keep(self, worker: _Worker, result: Any) -> None:
        """Put a finished job's result into the store."""
        job, card = worker.job, worker.card or ""
        if isinstance(job, CheckJob):
            self._store.add_checks(result)
            return
        rows = list(result)
        if isinstance(job, MeasureJob):
            rows += [
                Measurement(job.problem, config, "sustained", "screen", None, None, 0, reason)
                for config, reason in worker.left_out.items()
            ]
        self._store.add(rows, card)
        self._taken += len(rows)

    def _failures(self, job: MeasureJob) -> dict[KernelConfig, str]:
        checks = self._store.checks()
        specs = {config: KernelSpec.for_problem(config, job.problem) for config in job.configs}
        failures = {config: checks.get(spec.key) for config, spec in specs.items()}
        return {config: reason for config, reason in failures.items() if reason}

    def _spawn(self, factory: SessionFactory) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, factory, self._settings), daemon=True)
        process.start()
        theirs.close()
        return _Worker(factory, process, ours)


def _may_do(card: str | None, job: Job, others: set[str | None]) -> bool:
    """Whether a card may take a job, given the others; None is one that still starts."""
    return not isinstance(job, VerifyJob) or job.card == card or not others & {job.card, None}


def _stop(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join(timeout=10)
    worker.connection.close()
