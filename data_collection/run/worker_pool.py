"""The workers of a collection: who gets which job, and what follows when a worker fails or is lost.

A kernel that ends a worker or computes wrong results is recorded and not run again once a second
card confirms it, or the only card a second time. The job is done again; by another card, where it
failed with no kernel to blame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from tilecast.data_collection.jobs.jobs import (
    CheckJob,
    Checks,
    CompareJob,
    Engine,
    Failed,
    Job,
    Lost,
    MeasureJob,
    Result,
    SessionFactory,
    VerifyJob,
    Worker,
)
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.heuristics.errors import TilecastError
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.spec import KernelSpec

MAX_STRIKES = 3
"""Failures in a row with no kernel to blame, or with one that another card has run, after which a
card is given up; also of one job, after which the job is left to another run."""

MOST_LOSSES = 3
"""Workers per GPU that may be lost with their hosts while no job is finished."""


@dataclass(eq=False)
class WorkerPool:
    """One worker per GPU, started with the first job."""

    store: MeasurementStore
    """Keeps the checks of kernels, which are read once, and what happens to workers."""
    factories: Sequence[SessionFactory]
    """One session factory per GPU."""
    engine: Engine
    """What the workers run on."""
    silence_seconds: float
    """See `tilecast.data_collection.jobs.jobs.Engine`."""
    _workers: list[Worker] = field(default_factory=list, init=False)
    _losses: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)
    _left: str = field(default="", init=False)
    """Which problem was left to another run last, and why."""
    checks: dict[str, str | None] = field(init=False)
    """What is wrong with each kernel that was checked or is left out, or None, by its key."""

    def __post_init__(self) -> None:
        """Read what is known of kernels."""
        self.checks = self.store.checks()

    def record(self, checks: Mapping[KernelSpec, str | None]) -> None:
        """Store for each kernel what is wrong with it, or None, for this run and all others."""
        self.store.add_checks(checks)
        self.checks |= {kernel_key(spec): reason for spec, reason in checks.items()}

    def leave_out(self, spec: KernelSpec, reason: str) -> None:
        """Do not run a kernel in this run; another run may."""
        self.checks[kernel_key(spec)] = reason

    @property
    def gpus(self) -> int:
        """GPUs at work, or those that will be."""
        if not self._workers:
            return len(self.factories)
        return sum(worker.card != "" for worker in self._workers)

    @property
    def busy(self) -> bool:
        """Whether a job is in work."""
        return any(worker.job for worker in self._workers)

    def finished(self, waiting: list[Job]) -> Iterator[tuple[Job, Result, str]]:
        """Give waiting jobs to workers; yield those done within a second, and on which card.

        A job that is to be tried again is put back.

        Raises:
            TilecastError: no card is left, or too many workers are lost and nothing gets done.
        """
        if not self._workers:
            self._workers = [
                self.engine.start(factory, self.silence_seconds) for factory in self.factories
            ]
        self._hand_out(waiting)
        for worker, news in self.engine.news(tuple(self._workers), 1.0):
            if worker not in self._workers:  # given up since
                continue
            if isinstance(news, Failed):
                self._recover(worker, news, waiting)
            elif isinstance(news, Lost):
                self._lose(worker, news, waiting)
            else:
                job, worker.job, worker.strikes, self._losses = worker.job, None, 0, 0
                assert job and worker.card
                self._done += not isinstance(job, CheckJob)
                self._refute(job, worker.card, waiting)
                if isinstance(job, CheckJob) and isinstance(news, dict):
                    news = self._confirmed(job, news, worker.card, waiting)
                if news is not None:
                    yield job, news, worker.card

    def settle(self) -> None:
        """Check that a run was not in vain.

        Raises:
            TilecastError: nothing was timed, and one or more problems were left to another run.
        """
        if self._left and not self._done:
            raise TilecastError(
                f"{self._left}; allowed: what fits into the memory of a card that does not "
                "throttle; see `tilecast doctor`, then run again"
            )

    def stop(self) -> None:
        """End all workers, whatever they are doing."""
        # Side by side: a GPU's driver takes a second to let go of a process.
        with ThreadPoolExecutor() as threads:
            for ended in [threads.submit(worker.stop) for worker in self._workers]:
                ended.result()

    def _hand_out(self, waiting: list[Job]) -> None:
        there = {worker.name for worker in self._workers if worker.card != ""}
        # A worker that starts may turn out to be any card.
        if there and "" not in there:
            waiting[:] = [j for j in waiting if not isinstance(j, CompareJob) or j.card in there]
        for worker in self._workers:
            others = self._others(worker)
            job = next((job for job in waiting if _may_do(worker.card, job, others)), None)
            if job and worker.card and not worker.job:
                waiting.remove(job)
                known = job.suspect and self.checks.get(kernel_key(job.suspect))
                worker.give((job.afresh() if known else job).without(self.checks))

    def _others(self, worker: Worker) -> set[str | None]:
        """Cards of the other workers; None for a worker that starts."""
        # A worker that waits for a GPU is not counted: the GPU may never come.
        return {other.card for other in self._workers if other is not worker} - {""}

    def _recover(self, worker: Worker, failed: Failed, waiting: list[Job]) -> None:
        """Record the culprit, and have the job tried again; replace the worker, or give it up."""
        job, strikes = worker.job, worker.strikes
        if isinstance(job, CompareJob):  # no other card can do it, and nothing depends on it
            self._note(worker, failed.reason)
        elif job and failed.culprit and self._is_sure(worker, job, failed.culprit):
            self.record({failed.culprit: failed.reason})
            waiting.insert(0, job.afresh())
        elif job and failed.culprit and job.suspect in (None, failed.culprit):
            waiting.insert(0, job.with_suspect(failed.culprit, worker.name))
        elif job and not (failed.culprit or job.careful or failed.innocent):
            waiting.insert(0, replace(job, careful=True))
        elif isinstance(job, MeasureJob | VerifyJob) and job.unexplained + 1 >= MAX_STRIKES:
            # No strike for the card: the problem may need more memory than there is.
            self._left = f"{job.problem} is left to another run: {failed.reason}"
            self._note(worker, self._left)
        else:
            strikes += 1
            self._note(worker, failed.reason)
            if job:  # behind the others, which may do better
                waiting.append(job.failed_unexplained(worker.name, cleared=bool(failed.culprit)))
        self._dismiss(worker)
        # A worker that fails by itself as it starts has no card, and gets no successor.
        there = worker.card or (worker.card is None and failed.innocent)
        if there and strikes < MAX_STRIKES:
            successor = self._succeed(worker)
            successor.name, successor.strikes = worker.name, strikes
        elif not self._workers:
            raise TilecastError(
                f"a worker failed with no kernel to blame ({failed.reason}); allowed: a GPU with "
                "free memory and a working driver; see `tilecast doctor`, then run again: it goes "
                "on where it was"
            )

    def _is_sure(self, worker: Worker, job: Job, culprit: KernelSpec) -> bool:
        """Whether two cards blame a kernel, or the only card does a second time."""
        again = job.suspect == culprit
        return again and (job.accuser != worker.name or not self._others(worker))

    def _confirmed(
        self, job: CheckJob, found: Checks, card: str, waiting: list[Job]
    ) -> Checks | None:
        """What is known of kernels; None while the results of some were wrong once alone."""
        wrong = tuple(spec for spec, reason in found.items() if reason)
        if not job.doubted_by:
            if not wrong:
                return found
            self.record({spec: None for spec in found if spec not in wrong})
            waiting.insert(0, CheckJob(wrong, doubted_by=card, not_on=card))
            return None
        right = [spec for spec in found if spec not in wrong]
        if right and card != job.doubted_by:
            reason = f"wrong results of {right[0]}, which are right on another card"
            self._strike(job.doubted_by, reason, waiting)
            return found
        for spec in right:
            self.leave_out(spec, "wrong results once, and right ones once, on one card")
        return {spec: found[spec] for spec in wrong}

    def _refute(self, job: Job, card: str, waiting: list[Job]) -> None:
        """A strike for the card that blamed a kernel which another card has run."""
        if job.suspect and job.accuser != card:
            reason = f"failed with {job.suspect}, which another card has run"
            self._strike(job.accuser, reason, waiting)

    def _strike(self, card: str | None, reason: str, waiting: list[Job]) -> None:
        """Count a failure of a card, which is given up once these are too many."""
        for worker in tuple(self._workers):
            if worker.name == card:
                worker.strikes += 1
                self._note(worker, reason)
                if worker.strikes >= MAX_STRIKES:
                    waiting += [worker.job] if worker.job else []
                    self._dismiss(worker)

    def _lose(self, worker: Worker, lost: Lost, waiting: list[Job]) -> None:
        """Replace a worker that is lost with its host; its job waits again."""
        self._losses += 1
        self._note(worker, "lost with its host")  # Ray's own words have addresses
        if self._losses > MOST_LOSSES * len(self.factories):
            raise TilecastError(
                f"{self._losses} workers in a row were lost ({lost.reason}); allowed: hosts with "
                "free memory that stay; mend them, then run again: it goes on where it was"
            )
        waiting += [worker.job] if worker.job else []
        self._dismiss(worker)
        self._succeed(worker)  # on whichever card

    def _note(self, worker: Worker, reason: str) -> None:
        card = worker.name or "one that starts"
        self.store.note("troubles", {"card": card, "reason": reason})

    def _dismiss(self, worker: Worker) -> None:
        worker.stop()
        self._workers.remove(worker)

    def _succeed(self, worker: Worker) -> Worker:
        successor = self.engine.start(worker.factory, self.silence_seconds)
        self._workers.append(successor)
        return successor


def _may_do(card: str | None, job: Job, others: set[str | None]) -> bool:
    """Whether a card may take a job, given the other cards; None is a worker that starts.

    A verification goes to the card that raced, where that is there.
    """
    if isinstance(job, CompareJob):
        return job.card == card
    if job.not_on == card:
        return not others
    if not isinstance(job, VerifyJob):
        return True
    return job.card in (card, job.not_on) or not others & {job.card, None}
