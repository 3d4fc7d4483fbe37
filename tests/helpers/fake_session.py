"""A GPU that is none: sessions with known times and faults, and a collection in its own process.

Worker processes import this module by its name, so the tests put its folder on the path.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.scheduler import Progress, Scheduler
from tilecast.data_collection.timing.protocol import (
    VERIFY_ROUNDS,
    CardFailure,
    Entrant,
    KernelFailure,
)
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import spec_for
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

PROBLEMS = tuple(GemmProblem(m, 4096, 4096) for m in (16, 24, 64, 512, 1024))
"""Three that are raced in one power regime, two in both."""
CONFIGS = tuple(QuackConfig(64, 128, 64, stages=2 + i) for i in range(6))
WORKLOAD = dict.fromkeys(PROBLEMS, CONFIGS)
FOR_EVER = 3600.0


def microseconds(problem: GemmProblem, entrant: Entrant) -> float:
    """A run time that is always the same; all of a problem lie within 4.5%."""
    return 20.0 + zlib.crc32(f"{problem} {entrant}".encode()) % 900 / 1000


@dataclass(frozen=True)
class Fault:
    """What a kernel does when it should run."""

    config: Entrant
    """The kernel."""
    stage: str
    """``check``, ``screen``, ``use``, ``race`` or ``verify``; or ``time`` for all but ``check`` and
    ``use``; or ``try``, the library before it is timed."""
    action: str
    """``hang``: for ever; ``exit``: takes the process with it; ``raise``: an error without a name;
    ``report``: a hang that the session noticed; ``wrong``: bad results; ``refuse``: the library
    does not take the problem; ``kill``: somebody kills the process; ``throttle``: the card does;
    ``lose``: the card is gone, for good; ``memory``, ``disk``, ``pruned``: the machine is short of
    what it takes."""
    batched: bool | None = None
    """Only in the kernel with a batch, or only in the one without."""
    times: int = 10**9
    """How often at most."""


@dataclass(frozen=True)
class Turn:
    """Until when a card waits with a timing and all behind it."""

    stage: str
    """Of the timing."""
    after: str
    """What is waited for, such as ``hot.screen``, a timing of another card, or ``hot.start``."""
    times: int = 1
    """How often that must have happened."""
    nth: int = 1
    """Which timing of the stage it is."""


class Ended(BaseException):
    """In a thread, what the end of the process is in a worker process."""

    def __init__(self, reason: str, innocent: bool):
        super().__init__(reason)
        self.innocent = innocent


@dataclass(frozen=True)
class FakeFactory:
    """Makes a fake session in a worker process, or in a thread."""

    log: Path
    """A line for each time that a kernel is checked or timed."""
    card: str = "card"
    faults: tuple[Fault, ...] = ()
    pace: float = 0.0
    """Seconds that one timing of all kernels takes."""
    slow_start: float = 0.0
    """Seconds until the session is ready."""
    together: int = 0
    """Cards that all wait for each other before the first is ready."""
    turns: tuple[Turn, ...] = ()
    broken: str = ""
    """Error with which the session does not start."""
    killed_starts: int = 0
    """How often the process is killed as it starts."""
    slower: float = 1.0
    """What all times of the card are multiplied by."""
    start_after: str = ""
    """What is waited for before the session is ready, such as ``hot.screen``."""
    thread: bool = False
    """Whether the worker is a thread, which ends by `Ended`."""

    def __call__(self, announce: Callable[[KernelSpec | None], None]) -> FakeSession:
        time.sleep(self.slow_start)
        if self.count("start") <= self.killed_starts:
            self.end("kill")
        while self.start_after and not _dots(self.log.with_name(self.start_after)):
            time.sleep(0.01)
        while len(list(self.log.parent.glob("*.start"))) < self.together:
            time.sleep(0.01)
        if self.broken:
            raise RuntimeError(self.broken)
        if self.log.with_name(f"{self.card}.lost").exists():
            raise RuntimeError("no CUDA-capable device is detected")
        return FakeSession(self, announce)

    def end(self, action: str) -> NoReturn:
        """End the worker: ``exit`` by itself, ``kill`` by somebody."""
        killed = action == "kill"
        if self.thread:
            raise Ended("killed (out of memory?)" if killed else "crashed: exit code 139", killed)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(139)

    def count(self, what: str) -> int:
        """How often it has happened on the card, in a file, as processes come and go."""
        tally = self.log.with_name(f"{self.card}.{what}")
        with tally.open("a") as file:
            file.write(".")
        return _dots(tally)

    def wait(self, stage: str) -> None:
        """Begin a timing, when it is this card's turn."""
        timing = self.count(stage)
        for turn in self.turns:
            tally = self.log.with_name(turn.after)
            while turn.stage == stage and turn.nth <= timing and _dots(tally) < turn.times:
                time.sleep(0.01)


def _dots(tally: Path) -> int:
    return tally.stat().st_size if tally.exists() else 0


@dataclass(frozen=True)
class NodeFactory(FakeFactory):
    """Makes a session that must find every kernel, compiled, in the cache of its own node."""

    def __call__(self, announce: Callable[[KernelSpec | None], None]) -> FakeSession:
        def found(spec: KernelSpec | None) -> None:
            if spec and not ObjectCache(default_root()).code(spec):
                raise RuntimeError(f"{spec} is not in {default_root()}")
            announce(spec)

        return super().__call__(found)


def card_session(
    log: Path,
    objects: object,
    card: str,
    announce: Callable[[KernelSpec | None], None],
    faults: Mapping[str, tuple[Fault, ...]] = MappingProxyType({}),
) -> FakeSession:
    """In the place of `card_session`: of the cards card0 and card1 the second is 10% slower.

    Faults are given by the card that has them.
    """
    slower = 1 + 0.1 * (card == "card1")
    return FakeFactory(log, card, faults.get(card, ()), slower=slower, together=2)(announce)


def wrong_session(
    log: Path, objects: object, card: str, announce: Callable[[KernelSpec | None], None]
) -> FakeSession:
    """The same card, on which all kernels compute something else."""
    session = card_session(log, objects, card, announce)
    session.check = lambda spec: "relative error 0.5"  # type: ignore[method-assign]
    return session


class FakeSession:
    """See `tilecast.data_collection.jobs.jobs.Session`."""

    def __init__(self, factory: FakeFactory, announce: Callable[[KernelSpec | None], None]):
        self.card = factory.card
        self._factory = factory
        self.slower = factory.slower
        self.announce = announce
        self.wait = factory.wait

    def check(self, spec: KernelSpec) -> str | None:
        self.announce(spec)
        fault = self.fault(spec, "check")
        self.note(["check", spec.config.name])
        return "relative error 0.5" if fault == "wrong" else None

    def refusal(self, problem: GemmProblem) -> str | None:
        return "RuntimeError: not this one" if self.fault(None, "try") else None

    def bench(self, problem: GemmProblem, careful: bool) -> FakeBench:
        return FakeBench(self, problem, careful)

    def fault(self, spec: KernelSpec | None, stage: str) -> str | None:
        """Do what a fault says; what is to be returned for it."""
        for fault in self._factory.faults:
            stages = ("screen", "race", "verify") if fault.stage == "time" else (fault.stage,)
            mine = fault.config == (spec and spec.config)
            meant = mine and stage in stages and fault.batched in (None, spec and spec.batched)
            if meant and self._factory.count(fault.action) <= fault.times:
                if fault.action == "hang":
                    time.sleep(FOR_EVER)
                if fault.action in ("exit", "kill"):
                    self._factory.end(fault.action)
                if fault.action == "raise":
                    raise RuntimeError("an illegal memory access\nwas encountered")
                if fault.action == "memory":
                    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
                if fault.action == "disk":
                    raise OSError(errno.ENOSPC, "No space left on device")
                if fault.action == "pruned":
                    raise TilecastError(f"kernel {spec} is not compiled")
                if fault.action == "throttle":
                    raise CardFailure("the GPU throttles: hardware thermal")
                if fault.action == "lose":
                    self._factory.log.with_name(f"{self.card}.lost").touch()
                    raise RuntimeError("unspecified launch failure")
                if fault.action == "report":
                    raise KernelFailure(spec, "hung: not done after 5 s")
                return fault.action
        return None

    def note(self, *lines: list[str]) -> None:
        """Append lines to the log, all at once."""
        text = "".join(json.dumps([*line, self.card, os.getpid()]) + "\n" for line in lines)
        with self._factory.log.open("a") as file:
            file.write(text)

    def paused(self) -> None:
        """Count a timing that was done with a pause after each kernel."""
        self._factory.count("paused")

    def spend(self) -> None:
        """Take the time that a GPU would."""
        time.sleep(self._factory.pace)


class FakeBench:
    """See `tilecast.data_collection.timing.protocol.Bench`."""

    def __init__(self, session: FakeSession, problem: GemmProblem, careful: bool):
        self._session = session
        self._problem = problem
        self._careful = careful

    def screen(
        self, entrants: Sequence[Entrant], rounds: int, give_up: Sequence[float]
    ) -> list[list[float]]:
        return self._time(entrants, "sustained", rounds, "screen")

    def time(self, entrants: Sequence[Entrant], regime: str, rounds: int) -> list[list[float]]:
        stage = "verify" if rounds == VERIFY_ROUNDS[regime] else "race"
        return self._time(entrants, regime, rounds, stage)

    def _time(
        self, entrants: Sequence[Entrant], regime: str, rounds: int, stage: str
    ) -> list[list[float]]:
        # As on a GPU: every kernel is announced when it is captured, long before it is waited for.
        specs = [e and spec_for(e, self._problem) for e in entrants]
        for spec in specs:
            self._session.announce(spec)
        self._session.wait(stage)
        for spec in specs:
            if self._careful:
                self._session.announce(spec)
            self._session.fault(spec, stage)
        self._session.spend()
        if self._careful:
            self._session.paused()
        self._session.note(*([stage, regime, str(self._problem), str(e)] for e in entrants))
        slower = self._session.slower
        return [[slower * microseconds(self._problem, e)] * rounds for e in entrants]

    def check(self, configs: Sequence[KernelConfig]) -> None:
        for config in configs:
            spec = spec_for(config, self._problem)
            self._session.announce(spec)
            if self._session.fault(spec, "use") == "wrong":
                raise KernelFailure(spec, "7 wrong elements, on the tensors that were timed")


class DyingStore(MeasurementStore):
    """Takes its process with it, by SIGKILL, when it is about to run its nth SQL statement."""

    def __init__(self, path: Path, statements: int):
        self._left = statements
        super().__init__(path)

    def _lock(self) -> None:
        def count(statement: str) -> None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        self._database.set_trace_callback(count)
        super()._lock()


def main() -> None:
    """Collect `WORKLOAD`; one line of output per job that is finished and kept.

    The last one also says how many SQL statements were run.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--statements", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0)
    arguments = parser.parse_args()
    store = DyingStore(arguments.store, arguments.statements)
    store.begin_run({"gpu": "none"})

    def tell(progress: Progress) -> None:
        print(progress.phase, store.count(), len(store.checks()), flush=True)

    factory = FakeFactory(arguments.log, pace=arguments.pace)
    Scheduler(store, [factory], report=tell).collect(PROBLEMS, WORKLOAD.__getitem__)
    print("finished", store.count(), len(store.checks()), -store._left, flush=True)
    store.close()


if __name__ == "__main__":
    main()
