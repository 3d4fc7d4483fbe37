"""Where tests collect: a store, a log of what was run, and collections that use both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fake_session import CONFIGS, PROBLEMS, WORKLOAD, FakeFactory, microseconds
from thread_engine import ThreadEngine

from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.scheduler import Progress, Scheduler
from tilecast.data_collection.timing.protocol import HEAT_ROUNDS, VERIFY_BATCHES
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.spec import KernelSpec

ENTRANTS = len(CONFIGS) + 1

T = TypeVar("T")


class Row(NamedTuple):
    """A row of the store's measurements."""

    m: int
    n: int
    k: int
    batch: int
    operands: str
    config: str
    regime: str
    stage: str
    microseconds: float | None
    spread: float | None
    rounds: int
    failure: str | None
    device: str
    run: int


@dataclass
class Bed:
    """A store, a log of what was run, and collections that use both; on threads, unless told."""

    folder: Path
    progress: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.path, self.log = self.folder / "store", self.folder / "log"
        self.log.touch()

    def factory(self, **changes: Any) -> FakeFactory:
        return FakeFactory(self.log, **changes)

    def collect(self, *factories: FakeFactory, workload=WORKLOAD, store=None, **changes) -> None:
        own = store or MeasurementStore(self.path)
        options = {"engine": ThreadEngine(), "report": self.progress.append} | changes
        try:
            own.begin_run({"gpu": "none"})
            scheduler = Scheduler(own, factories or [self.factory()], **options)
            scheduler.collect(list(workload), workload.__getitem__)
        finally:
            if store is None:
                own.close()

    def ask(self, question: Callable[[MeasurementStore], T]) -> T:
        with closing(MeasurementStore(self.path)) as store:
            return question(store)

    def rows(self) -> list[Row]:
        rows = self.ask(lambda s: s._database.execute("SELECT * FROM measurements").fetchall())
        return [Row(*row) for row in rows]

    def checks(self) -> dict[str, str | None]:
        return self.ask(lambda store: store.checks())

    def failing(self) -> set[str]:
        """Keys of the kernels that failed a check or were blamed."""
        return {key for key, why in self.checks().items() if why}

    def troubles(self) -> list[tuple[str, str]]:
        """Cards and reasons, as noted with the runs."""
        runs = self.ask(lambda store: store.runs())
        return [(one["card"], one["reason"]) for run in runs for one in run.get("troubles", ())]

    def logged(self) -> list[tuple]:
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]

    def verified(self) -> set[int]:
        """m of every problem that was verified."""
        return {row.m for row in self.rows() if row.stage == "verify"}

    def make_raced(self, card: str) -> None:
        """Make a store in which two problems wait for their verification."""
        with closing(MeasurementStore(self.path)) as store:
            store.begin_run({"gpu": "none"})
            for problem in PROBLEMS[:2]:
                times = {entrant: microseconds(problem, entrant) for entrant in (*CONFIGS, None)}
                store.add(
                    [
                        Measurement(problem, entrant, regime, stage, time, None, 3)
                        for regime, stage in (("sustained", "screen"), ("burst", "race"))
                        for entrant, time in times.items()
                    ],
                    card,
                )
            store.add_checks({KernelSpec(config, LINEAR_BF16): None for config in CONFIGS})


ALL_VERIFIED = {problem.m for problem in PROBLEMS}
CHECKED_ONCE = Counter({("check", config.name): 1 for config in CONFIGS})
"""What `jobs` counts of the checks of a collection."""


def failed(rows: Iterable[Row]) -> dict[str, set[tuple]]:
    """Config to the problems (m, stage, failure) on which it failed."""
    found: dict[str, set[tuple]] = {}
    for row in rows:
        if row.failure:
            found.setdefault(row.config, set()).add((row.m, row.stage, row.failure))
    return found


def timed(rows: Iterable[Row], config: str) -> set[tuple]:
    """(m, stage) of each time of a config."""
    return {(row.m, row.stage) for row in rows if row.config == config and row.failure is None}


def cards(rows: Iterable[Row]) -> dict[int, tuple[set[str], set[str]]]:
    """For each problem's m, the cards that raced it and those that verified it."""
    found: dict[int, tuple[set[str], set[str]]] = {}
    for row in sorted(rows):
        raced, verified = found.setdefault(row.m, (set(), set()))
        if row.stage != "screen":
            (raced if row.stage == "race" else verified).add(row.device)
    return found


def jobs(lines: Iterable[tuple]) -> Counter:
    """How often each kernel was checked, or timed on a problem in a stage and regime."""
    return Counter(line[:-2] for line in lines)


def expected(rows: Iterable[Row]) -> Counter:
    """What a log holds if all these rows were measured once; a race is a heat and two batches."""
    found = Counter()
    for row in rows:
        entrant = "None" if row.config == "torch.mm" else row.config
        batches = 3 if row.stage == "race" and row.rounds > HEAT_ROUNDS[row.regime] else 1
        batches = VERIFY_BATCHES if row.stage == "verify" else batches
        found[row.stage, row.regime, str(GemmProblem(*row[:3])), entrant] += batches
    return found
