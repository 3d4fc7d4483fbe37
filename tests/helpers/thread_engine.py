"""An engine whose workers are threads: what a scheduler does, without the start of a process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from fake_session import Ended, FakeFactory

from tilecast.data_collection.engines.worker import blamed, done
from tilecast.data_collection.jobs.jobs import Failed, Job, Ready, Result, SessionFactory, Worker
from tilecast.heuristics.errors import one_line
from tilecast.kernels.spec import KernelSpec


class ThreadWorker(Worker):
    """A worker that is a thread, around a session of a `FakeFactory`."""

    def __init__(self, factory: SessionFactory, news: SimpleQueue):
        super().__init__(factory)
        self.running: KernelSpec | None = None
        self._news = news
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def give(self, job: Job) -> None:
        self.job, self.running = job, None
        self._jobs.put(job)

    def stop(self) -> None:
        self._jobs.put(None)

    def _announce(self, spec: KernelSpec | None) -> None:
        self.running = spec

    def _work(self) -> None:
        """Say that it is ready, then what becomes of each job, until one fails."""
        assert isinstance(self.factory, FakeFactory)
        try:
            session = replace(self.factory, thread=True)(self._announce)
            self._news.put((self, Ready(session.card)))
            while (job := self._jobs.get()) is not None:
                outcome = done(job, session)
                self._news.put((self, outcome))
                if isinstance(outcome, Failed):
                    return
        except Ended as end:
            self._news.put((self, Failed(None, str(end), end.innocent)))
        except Exception as error:
            self._news.put((self, Failed(None, one_line(error))))


class ThreadEngine:
    """See `tilecast.data_collection.jobs.jobs.Engine`."""

    worker = ThreadWorker

    def __init__(self) -> None:
        self._news: SimpleQueue[tuple[ThreadWorker, Ready | Result | Failed]] = SimpleQueue()

    def start(self, factory: SessionFactory, silence: float) -> ThreadWorker:
        return self.worker(factory, self._news)

    def news(
        self, workers: Sequence[ThreadWorker], seconds: float
    ) -> Iterator[tuple[ThreadWorker, Result | Failed]]:
        try:
            found = [self._news.get(timeout=seconds)]
        except Empty:
            return
        while not self._news.empty():
            found.append(self._news.get())
        for worker, message in found:
            if worker not in workers:
                continue
            if isinstance(message, Ready):
                worker.card = worker.name = message.card
            elif isinstance(message, Failed):
                yield worker, blamed(message, worker.job, worker.running)
            else:
                yield worker, message
