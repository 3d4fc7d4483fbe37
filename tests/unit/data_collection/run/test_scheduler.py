"""The collector, with real worker processes around a fake GPU, killed and broken in every way."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

# Spawned workers get this process's path, and find the module that their factories come from.
import fake_session
import odd_caches
import pytest
from fake_session import CONFIGS, PROBLEMS, WORKLOAD, FakeFactory, Fault, Turn, microseconds
from kill_and_resume_trial import kill_and_resume, undisturbed
from odd_caches import OddCache

from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.engines.worker import LocalEngine, LocalWorker
from tilecast.data_collection.jobs.jobs import (
    Failed,
    Job,
    Lost,
    MeasureJob,
    Result,
    SessionFactory,
    VerifyJob,
)
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run import scheduler
from tilecast.data_collection.run.cards import card_times
from tilecast.data_collection.run.progress import Progress
from tilecast.data_collection.run.scheduler import Collector
from tilecast.data_collection.run.worker_pool import MAX_STRIKES, MOST_LOSSES, Crew
from tilecast.data_collection.timing.protocol import HEAT_ROUNDS, VERIFY_BATCHES, regimes
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build import builder as builder_module
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.build.compiling import CompileResult
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

SILENCE = 1.5
"""Seconds after which a worker counts as hung; more than a stall of a busy machine."""
ENTRANTS = len(CONFIGS) + 1


Answer = TypeVar("Answer")


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
    """A store, a log of what was run, and collectors that use both."""

    folder: Path
    progress: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.path, self.log = self.folder / "store", self.folder / "log"
        self.log.touch()

    def factory(self, **changes) -> FakeFactory:
        return FakeFactory(self.log, **changes)

    def collect(self, *factories: FakeFactory, workload=WORKLOAD, store=None, **changes) -> None:
        own = store or MeasurementStore(self.path)
        try:
            own.begin_run({"gpu": "none"})
            Collector(
                own, factories or [self.factory()], report=self.progress.append, **changes
            ).collect(workload)
        finally:
            if store is None:
                own.close()

    def read(self, ask: Callable[[MeasurementStore], Answer]) -> Answer:
        store = MeasurementStore(self.path)
        try:
            return ask(store)
        finally:
            store.close()

    def rows(self) -> list[Row]:
        rows = self.read(lambda s: s._database.execute("SELECT * FROM measurements").fetchall())
        return [Row(*row) for row in rows]

    def checks(self) -> dict[str, str | None]:
        return self.read(lambda store: store.checks())

    def logged(self) -> list[tuple]:
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    # Another file's test may have left the processes of its compile pool on their way out.
    before = set(multiprocessing.active_children())
    yield Bed(tmp_path)
    assert set(multiprocessing.active_children()) <= before


def _failed(rows: list[Row]) -> dict[str, set[tuple]]:
    """Failure of each (config) with the problems (m, stage) that it is recorded for."""
    failed: dict[str, set[tuple]] = {}
    for row in rows:
        if row.failure:
            failed.setdefault(row.config, set()).add((row.m, row.stage, row.failure))
    return failed


def _timed(rows: list[Row], config: str) -> set[tuple]:
    return {(row.m, row.stage) for row in rows if row.config == config and row.failure is None}


def _jobs(lines: list[tuple]) -> Counter:
    """How often each kernel was checked, or timed on a problem in a stage and regime."""
    return Counter(line[:-2] for line in lines)


def _expected(rows: list[Row]) -> Counter:
    """What a log holds if all these rows were measured once; a race is a heat and two batches."""
    expected = Counter()
    for row in rows:
        entrant = "None" if row.config == "torch.mm" else row.config
        batches = 3 if row.stage == "race" and row.rounds > HEAT_ROUNDS[row.regime] else 1
        batches = VERIFY_BATCHES if row.stage == "verify" else batches
        expected[row.stage, row.regime, str(GemmProblem(*row[:3])), entrant] += batches
    return expected


def test_everything_is_checked_and_measured_once(bed: Bed) -> None:
    bed.collect()
    rows = bed.rows()
    assert {row.m for row in rows} == {problem.m for problem in PROBLEMS}
    for problem in PROBLEMS:
        stages = Counter((row.stage, row.regime) for row in rows if row.m == problem.m)
        assert stages["screen", "sustained"] == ENTRANTS
        for regime in regimes(problem):
            assert stages["race", regime] == ENTRANTS
            assert 2 <= stages["verify", regime] <= ENTRANTS
    for row in rows:
        config = (
            None if row.config == "torch.mm" else next(c for c in CONFIGS if c.name == row.config)
        )
        assert row.microseconds == pytest.approx(microseconds(GemmProblem(*row[:3]), config))
    log = _jobs(bed.logged())
    checks = Counter({("check", config.name): 1 for config in CONFIGS})
    assert log == _expected(rows) + checks
    assert set(bed.checks().values()) == {None}


def test_second_run_has_nothing_to_do(bed: Bed) -> None:
    bed.collect()
    rows, lines = bed.rows(), bed.logged()
    bed.progress.clear()
    bed.collect()
    assert bed.rows() == rows
    assert bed.logged() == lines
    assert bed.progress == []


def test_progress_counts_jobs_and_measurements(bed: Bed) -> None:
    bed.collect()
    by_phase = {phase: [p for p in bed.progress if p.phase == phase]
                for phase in ("check", "measure", "verify")}  # fmt: skip
    assert [len(by_phase[phase]) for phase in by_phase] == [1, 5, 5]
    for phase in by_phase.values():
        assert [p.done for p in phase] == list(range(1, len(phase) + 1))
        assert {p.total for p in phase} == {len(phase)}
        assert phase[-1].seconds_left == 0
    assert by_phase["measure"][0].seconds_left > 0
    for before, after in pairwise(bed.progress):
        assert after.seconds >= before.seconds
        assert after.measurements >= before.measurements
    assert bed.progress[-1].measurements == len(bed.rows())
    assert by_phase["check"][-1].measurements == 0


def _run(bed: Bed, *options: str, group: bool = False) -> subprocess.Popen[str]:
    """A collection in a process of its own, and in a group of its own where that is asked for."""
    command = [sys.executable, fake_session.__file__, str(bed.path), str(bed.log), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=group,
        # Tests that run in the background ignore it, and what they start would, too.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def _wait_for(bed: Bed, stage: str) -> None:
    """Return once something is logged of a stage."""
    deadline = time.monotonic() + 30
    while not any(line[0] == stage for line in bed.logged()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# The nth statement of each run, most rows being one: while the tables are made, amid the checks, at
# their commit and after it, amid the first measurements and after them, amid and at the commit of
# later ones, amid the first and a later verification.
DEATHS = (3, 8, 14, 17, 24, 27, 31, 34, 19, 21, 36, 30, 40, 47, 22, 28, 55, 26, 33, 32)


def test_killed_at_any_moment_nothing_is_lost_or_measured_twice(bed: Bed) -> None:
    seen = 0
    checked: set[str] = set()
    before: list[Row] = []
    for statements in (*DEATHS, 0):
        process = _run(bed, "--statements", str(statements))
        output, errors = process.communicate(timeout=60)
        assert process.returncode == (-9 if statements else 0), errors
        assert errors == ""
        lines = bed.logged()
        fresh, seen = lines[seen:], len(lines)
        rows = bed.rows()
        # Nothing lost: what was there, and what the run had told before it died.
        assert set(before) <= set(rows)
        told = [line.split() for line in output.splitlines()]
        assert len(rows) >= max([int(words[1]) for words in told], default=0)
        # Nothing twice: what was kept before this run is not run again.
        kept = {(*line[:2], line[2]) for line in _expected(before)}
        again = {(*line[:2], line[2]) for line in _jobs(fresh) if line[0] != "check"}
        assert kept & again == set()
        assert not checked & {line[1] for line in fresh if line[0] == "check"}
        # Nothing half: a problem has all rows of a job or none.
        for problem in PROBLEMS:
            stages = Counter(row.stage for row in rows if row.m == problem.m)
            raced = len(regimes(problem))
            assert (stages["screen"], stages["race"]) in {(0, 0), (ENTRANTS, raced * ENTRANTS)}
        done = bed.checks()
        checked = {c.name for c in CONFIGS if kernel_key(KernelSpec(c, LINEAR_BF16)) in done}
        assert len(checked) in (0, len(CONFIGS))
        before = rows
    undisturbed = Bed(bed.folder / "undisturbed")
    undisturbed.collect()
    assert {row[:12] for row in before} == {row[:12] for row in undisturbed.rows()}
    # The kills did hit: more was run than was kept.
    assert len(bed.logged()) > len(undisturbed.logged())


def test_killed_at_random_points_it_goes_on(tmp_path: Path) -> None:
    whole = undisturbed(tmp_path / "whole")
    assert len(whole.rows) > 100
    with ThreadPoolExecutor(2) as pool:  # each waits for its processes most of the time
        trials = [pool.submit(kill_and_resume, tmp_path / str(s), s, whole) for s in range(10)]
    found = [trial.result() for trial in trials]
    assert [one for one in found if not one.sound] == []
    # Some of the points are amid the measurements.
    assert any(0 < one.kept < len(whole.rows) for one in found)


def _alive(process: int) -> bool:
    """Whether it runs; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_do_not_outlive_a_collector_that_is_killed(bed: Bed) -> None:
    process = _run(bed, "--pace", "0.3")
    _wait_for(bed, "screen")
    worker = bed.logged()[0][-1]
    assert _alive(worker)
    process.kill()
    # The worker holds the other end of stderr: this returns when it is gone, and it says nothing.
    output, errors = process.communicate(timeout=20)
    assert errors == ""
    assert not _alive(worker)
    assert "finished" not in output


def test_a_worker_whose_collector_is_killed_as_it_starts_ends(bed: Bed) -> None:
    script = (
        "import os; from fake_session import FakeFactory, FOR_EVER; from pathlib import Path;"
        "from tilecast.data_collection.engines.worker import LocalWorker;"
        f"worker = LocalWorker(FakeFactory(Path({str(bed.log)!r}), slow_start=FOR_EVER), 60.0);"
        "print(worker._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    here = str(Path(__file__).parents[3] / "helpers")
    started = subprocess.run(
        [sys.executable, "-c", script], cwd=here, stdout=subprocess.PIPE, check=False
    )
    worker, deadline = int(started.stdout), time.monotonic() + 30
    while _alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_worker_amid_a_long_job_ends_with_a_collector_that_is_killed(bed: Bed) -> None:
    process = _run(bed, "--pace", "3600")
    _wait_for(bed, "check")
    deadline = time.monotonic() + 30
    while not (bed.folder / "card.screen").exists():  # the timing has begun
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker = bed.logged()[0][-1]
    process.kill()
    process.communicate(timeout=20)
    assert not _alive(worker)


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("hang", "hung: no sign of life for 1.5 s"),
        ("exit", "crashed: exit code 139"),
        ("report", "hung: not done after 5 s"),
        ("wrong", "relative error 0.5"),
        ("raise", "RuntimeError: an illegal memory access was encountered"),
    ],
)
def test_kernel_that_fails_its_check_is_left_out_everywhere(
    bed: Bed, action: str, reason: str
) -> None:
    broken = CONFIGS[3]
    factory = bed.factory(faults=(Fault(broken, "check", action),))
    bed.collect(factory, silence_seconds=SILENCE)
    rows = bed.rows()
    everywhere = {(problem.m, "screen", reason) for problem in PROBLEMS}
    assert _failed(rows) == {broken.name: everywhere}
    assert _timed(rows, broken.name) == set()
    assert sum(row.stage == "screen" for row in rows) == len(PROBLEMS) * ENTRANTS
    assert [why for why in bed.checks().values() if why] == [reason]
    assert len(bed.checks()) == len(CONFIGS)
    assert not any(line[3] == broken.name for line in bed.logged() if line[0] != "check")
    failed_rows = [row for row in rows if row.failure]
    assert {(row.microseconds, row.spread, row.rounds) for row in failed_rows} == {(None, None, 0)}


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("stage", ["check", "time"])
def test_kernel_is_blamed_and_not_its_namesake_of_other_operands(
    bed: Bed, stage: str, batched: bool
) -> None:
    plain, batch = PROBLEMS[0], replace(PROBLEMS[0], batch=3)
    broken = CONFIGS[2]
    fault = Fault(broken, stage, "exit", batched=batched)
    bed.collect(bed.factory(faults=(fault,)), workload={plain: CONFIGS, batch: CONFIGS})
    failed = {key for key, why in bed.checks().items() if why}
    assert failed == {kernel_key(KernelSpec(broken, LINEAR_BF16, batched=batched))}
    rows = [row for row in bed.rows() if row.config == broken.name]
    assert {row.batch == 3 for row in rows if row.failure} == {batched}
    sound = {row.stage for row in rows if (row.batch == 3) != batched}
    assert {"screen", "race"} <= sound


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("hang", "hung: no sign of life for 1.5 s"),
        ("exit", "crashed: exit code 139"),
        ("raise", "RuntimeError: an illegal memory access was encountered"),
    ],
)
def test_kernel_that_fails_only_when_timed_is_found_by_running_one_by_one(
    bed: Bed, action: str, reason: str
) -> None:
    # In the middle of the field, so that neither the first nor the last announced is to blame.
    broken = CONFIGS[2]
    factory = bed.factory(faults=(Fault(broken, "time", action),))
    bed.collect(factory, silence_seconds=SILENCE)
    rows = bed.rows()
    assert _failed(rows) == {broken.name: {(p.m, "screen", reason) for p in PROBLEMS}}
    assert _timed(rows, broken.name) == set()
    for config in CONFIGS:
        if config != broken:
            screened = {(problem.m, "screen") for problem in PROBLEMS}
            assert screened <= _timed(rows, config.name)


@pytest.mark.parametrize("stage", ["race", "verify"])
def test_kernel_that_fails_in_a_later_stage_is_the_only_one_blamed(bed: Bed, stage: str) -> None:
    problem, broken, why = PROBLEMS[0], CONFIGS[0], "crashed: exit code 139"
    bed.collect(workload={problem: CONFIGS})
    # There it is announced amid the others, and one of ours after all of them.
    order = [line[3] for line in bed.logged() if line[0] == stage]
    assert order[-1] == CONFIGS[3].name
    assert broken.name in order[1:-1]

    bed = Bed(bed.folder / stage)
    bed.collect(bed.factory(faults=(Fault(broken, stage, "exit"),)), workload={problem: CONFIGS})
    failures = {
        kernel_key(KernelSpec(c, LINEAR_BF16)): why if c == broken else None for c in CONFIGS
    }
    assert bed.checks() == failures
    rows = bed.rows()
    if stage == "race":
        assert _failed(rows) == {broken.name: {(problem.m, "screen", why)}}
        assert _timed(rows, broken.name) == set()
    else:
        assert _failed(rows) == {}
        assert _timed(rows, broken.name) == {(problem.m, "screen"), (problem.m, "race")}
    assert (problem.m, stage) in _timed(rows, CONFIGS[3].name)


def test_kernel_that_fails_late_keeps_its_earlier_times(bed: Bed) -> None:
    plan = dict.fromkeys(PROBLEMS[:2], CONFIGS)
    bed.collect(workload=dict.fromkeys(PROBLEMS[:1], CONFIGS))
    first = bed.rows()
    factory = bed.factory(faults=(Fault(CONFIGS[5], "time", "exit"),))
    bed.collect(factory, workload=plan)
    rows = bed.rows()
    assert set(first) <= set(rows)
    assert _failed(rows) == {CONFIGS[5].name: {(PROBLEMS[1].m, "screen", "crashed: exit code 139")}}


def test_several_bad_kernels_on_two_cards(bed: Bed) -> None:
    faults = (
        Fault(CONFIGS[0], "check", "exit"),
        Fault(CONFIGS[1], "check", "wrong"),
        Fault(CONFIGS[4], "time", "exit"),
        Fault(CONFIGS[5], "time", "report"),
    )
    bed.collect(bed.factory(card="left", faults=faults), bed.factory(card="right", faults=faults))
    failed = _failed(bed.rows())
    assert {name: {why for _, _, why in found} for name, found in failed.items()} == {
        CONFIGS[0].name: {"crashed: exit code 139"},
        CONFIGS[1].name: {"relative error 0.5"},
        CONFIGS[4].name: {"crashed: exit code 139"},
        CONFIGS[5].name: {"hung: not done after 5 s"},
    }
    assert all(len(found) == len(PROBLEMS) for found in failed.values())
    for config in CONFIGS[2:4]:
        assert {(p.m, "screen") for p in PROBLEMS} <= _timed(bed.rows(), config.name)


@pytest.mark.parametrize("stage", ["check", "screen"])
def test_no_kernel_is_blamed_for_what_one_bad_card_does_to_each(bed: Bed, stage: str) -> None:
    bad = bed.factory(card="bad", faults=tuple(Fault(c, stage, "report") for c in CONFIGS))
    # The first stretch has two problems. It is given up after three, one or two of the next
    # stretch, of which the other card holds one until then.
    turns = (Turn("screen", "bad.report"), Turn("screen", "bad.report", MAX_STRIKES, nth=3))
    turns = turns if stage == "screen" else ()
    bed.collect(bad, bed.factory(card="good", slow_start=3.0, turns=turns))
    assert set(bed.checks().values()) == {None}
    assert _failed(bed.rows()) == {}
    assert {card for card, _ in _troubles(bed)} == {"bad"}
    given_up = stage == "screen"  # there is one job of checks
    assert bed.progress[-1].gpus == 2 - given_up
    if given_up:
        assert {row.device for row in bed.rows()} == {"good"}


def test_one_card_that_blames_a_kernel_twice_is_one_card(bed: Bed) -> None:
    blames = bed.factory(card="blames", faults=(Fault(CONFIGS[2], "check", "report"),))
    killed = Fault(CONFIGS[2], "check", "kill", times=1)
    bed.collect(blames, bed.factory(card="killed", faults=(killed,), slow_start=3.0))
    assert set(bed.checks().values()) == {None}
    told = Counter(card for card, _ in _troubles(bed))
    assert told == {"blames": 1, "killed": 1}


def test_a_card_that_is_right_about_many_bad_kernels_is_kept(bed: Bed) -> None:
    many = CONFIGS[: MAX_STRIKES + 2]
    faults = tuple(Fault(config, "check", "exit") for config in many)
    bed.collect(*(bed.factory(card=card, faults=faults, together=2) for card in ("left", "right")))
    failed = {key for key, why in bed.checks().items() if why}
    assert failed == {kernel_key(KernelSpec(config, LINEAR_BF16)) for config in many}
    assert bed.progress[-1].gpus == 2


def test_a_card_that_blamed_a_bad_kernel_first_is_kept(bed: Bed) -> None:
    """It did so on four problems before the other card, which agrees on the fifth, could."""
    bad = (Fault(CONFIGS[2], "screen", "exit"),)
    # At each first amid the others, then by itself.
    last = Turn("screen", "first.exit", 2 * (len(PROBLEMS) - 1))
    first, later = (
        bed.factory(card="first", faults=bad),
        bed.factory(card="later", faults=bad, turns=(last,), together=2),
    )
    store = MeasurementStore(bed.path)
    store.begin_run({"gpu": "none"})
    crew = Crew(store, [replace(first, together=2), later], LocalEngine(), 60.0)
    waiting: list[Job] = [MeasureJob(problem, CONFIGS) for problem in PROBLEMS]
    done = []
    while waiting or crew.busy:
        done += [job.problem for job, _, _ in crew.finished(waiting) if isinstance(job, MeasureJob)]
    assert {(worker.name, worker.strikes) for worker in crew._workers} == {
        ("first", 0),
        ("later", 0),
    }
    crew.stop()
    store.close()
    assert sorted(done, key=str) == sorted(PROBLEMS, key=str)
    assert [*crew.failures] == [kernel_key(KernelSpec(CONFIGS[2], LINEAR_BF16))]
    assert _troubles(bed) == []


def test_a_problem_is_timed_without_pauses_once_its_bad_kernel_is_known(bed: Bed) -> None:
    factory = bed.factory(faults=(Fault(CONFIGS[2], "screen", "exit"),))
    bed.collect(factory, workload={PROBLEMS[0]: CONFIGS})
    assert len(_timed(bed.rows(), CONFIGS[1].name)) > 0
    assert not bed.log.with_name("card.paused").exists()


@pytest.mark.parametrize("stage", ["screen", "verify"])
def test_what_never_fits_into_memory_is_left_to_another_run(bed: Bed, stage: str) -> None:
    big, small, reason = PROBLEMS[0], PROBLEMS[1:], "RuntimeError: CUDA out of memory. Tried"
    # The fastest at it, so that it is timed again.
    huge = min((QuackConfig(128, 128, 64, s) for s in range(2, 7)), key=partial(microseconds, big))
    workload = {big: (huge, *CONFIGS), **dict.fromkeys(small, CONFIGS)}
    fault = Fault(huge, stage, "memory")
    cards = [bed.factory(card=card, faults=(fault,), together=2) for card in ("left", "right")]
    bed.collect(*cards, workload=workload)
    assert _failed(bed.rows()) == {}
    assert bed.progress[-1].gpus == 2
    told = [why for _, why in _troubles(bed)]
    assert len(told) == MAX_STRIKES
    assert told[-1].startswith(f"{big} is left to another run: {reason}")
    there = {row.m for row in bed.rows() if row.stage == stage}
    assert there == {problem.m for problem in small}
    bed.collect(workload=workload)
    assert {row.m for row in bed.rows() if row.stage == "verify"} == {p.m for p in workload}


def test_what_the_library_does_not_multiply_is_measured_without_it(bed: Bed) -> None:
    fp8, int8 = map(GemmOperands.parse, ("e4m3:rcr>bf16:row-scales", "int8:rcr>int32"))
    without = GemmProblem(64, 584, 1024, 1, fp8), GemmProblem(16, 512, 1024, 1, int8)
    beside = GemmProblem(64, 592, 1024, 1, fp8), GemmProblem(17, 512, 1024, 1, int8)
    bed.collect(bed.factory(), workload=dict.fromkeys((*without, *beside), CONFIGS))
    rows = bed.rows()
    assert _failed(rows) == {}
    names = {config.name for config in CONFIGS}
    for problems, expected in ((without, names), (beside, names | {"torch.mm"})):
        for p in problems:
            of_it = [row for row in rows if (row.m, row.n) == (p.m, p.n)]
            assert {row.config for row in of_it if row.stage == "screen"} == expected
            assert {row.stage for row in of_it} == {"screen", "race", "verify"}


def test_what_the_library_refuses_when_tried_is_noted_and_measured_without_it(bed: Bed) -> None:
    refused = Fault(None, "try", "refuse", times=1)
    bed.collect(bed.factory(faults=(refused,)), workload=dict.fromkeys(PROBLEMS[:2], CONFIGS))
    rows = bed.rows()
    (noted,) = [row for row in rows if row.failure]
    assert (noted.config, noted.stage) == ("torch.mm", "screen")
    assert noted.failure == "RuntimeError: not this one"
    without = [row for row in rows if row.m == noted.m and row is not noted]
    assert {row.config for row in without} == {config.name for config in CONFIGS}
    assert {row.stage for row in without} == {"screen", "race", "verify"}
    (other,) = {problem.m for problem in PROBLEMS[:2]} - {noted.m}
    assert {(other, stage) for stage in ("screen", "race")} <= _timed(rows, "torch.mm")


def test_problem_whose_kernels_all_fail_does_not_stop_the_rest(bed: Bed) -> None:
    plan = {PROBLEMS[0]: CONFIGS[:1], PROBLEMS[1]: CONFIGS}
    bed.collect(bed.factory(faults=(Fault(CONFIGS[0], "check", "exit"),)), workload=plan)
    rows = bed.rows()
    alone = {(row.config, row.stage) for row in rows if row.m == PROBLEMS[0].m}
    assert alone == {(CONFIGS[0].name, "screen"), ("torch.mm", "screen")}
    assert len(_failed(rows)[CONFIGS[0].name]) == 2
    assert {(PROBLEMS[1].m, stage) for stage in ("screen", "race")} <= _timed(rows, "torch.mm")


def test_a_check_job_of_one_bad_kernel_still_counts_as_done(bed: Bed) -> None:
    bed.collect(bed.factory(faults=(Fault(CONFIGS[0], "check", "exit"),)),
                workload={PROBLEMS[0]: CONFIGS[:1]})  # fmt: skip
    assert [(p.done, p.total) for p in bed.progress if p.phase == "check"] == [(1, 1)]


def test_deadline_lets_the_job_in_hand_finish_and_the_next_run_goes_on(bed: Bed) -> None:
    bed.collect(deadline=time.monotonic() - 1)
    assert (bed.rows(), bed.checks()) == ([], {})

    # Time for the workers to start and for some jobs of 0.4 s and 0.6 s.
    bed.collect(bed.factory(pace=0.2), deadline=time.monotonic() + 1.5)
    part = bed.rows()
    assert {row.m for row in part} < {problem.m for problem in PROBLEMS}
    jobs = Counter((row.m, row.stage) for row in part)
    assert all(count % ENTRANTS == 0 for (_, stage), count in jobs.items() if stage != "verify")
    bed.collect()
    assert set(part) <= set(bed.rows())
    assert _jobs(bed.logged()) == _expected(bed.rows()) + Counter(
        {("check", config.name): 1 for config in CONFIGS}
    )


def test_some_of_a_limited_time_is_left_to_time_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """Is 90 s ahead once something was measured."""

        @staticmethod
        def monotonic() -> float:
            measured = any(one.phase == "measure" for one in bed.progress)
            return time.monotonic() + 90 * measured

    monkeypatch.setattr("tilecast.data_collection.run.scheduler.time", Clock)
    bed.collect(deadline=time.monotonic() + 100)
    measured = {row.m for row in bed.rows() if row.stage == "race"}
    assert 1 <= len(measured) < len(PROBLEMS)
    assert {row.m for row in bed.rows() if row.stage == "verify"} == measured


@dataclass
class LosingEngine:
    """Takes some failures for losses of the host."""

    left: int
    start = staticmethod(LocalEngine().start)

    def news(
        self, workers: Sequence[LocalWorker], seconds: float
    ) -> Iterator[tuple[LocalWorker, Result | Failed | Lost]]:
        for worker, news in LocalEngine().news(workers, seconds):
            if isinstance(news, Failed) and self.left:
                self.left -= 1
                yield worker, Lost(news.reason)
            else:
                yield worker, news


def test_kernel_is_not_blamed_for_a_worker_that_is_lost_with_its_host(bed: Bed) -> None:
    fault = Fault(CONFIGS[0], "check", "exit")
    engine = LosingEngine(MOST_LOSSES)
    bed.collect(bed.factory(faults=(fault,)), engine=engine)
    # Each time it was given to a new worker; the first failure after that is its own.
    assert engine.left == 0
    assert _troubles(bed) == [("card", "lost with its host")] * MOST_LOSSES
    assert _failed(bed.rows()).keys() == {CONFIGS[0].name}
    # By then none had been checked, as it is the first.
    assert _jobs(bed.logged())["check", CONFIGS[1].name] == 1


def test_workers_that_are_lost_again_and_again_end_the_run_in_one_line(bed: Bed) -> None:
    fault = Fault(CONFIGS[0], "check", "exit")
    with pytest.raises(TilecastError) as caught:
        bed.collect(bed.factory(faults=(fault,)), engine=LosingEngine(99))
    message = str(caught.value)
    assert message.startswith(f"{MOST_LOSSES + 1} workers in a row were lost (crashed: exit code")
    assert "\n" not in message
    assert (bed.rows(), bed.checks()) == ([], {})


def test_losses_between_which_jobs_are_finished_are_forgiven(bed: Bed) -> None:
    # Every second problem, largest first, has the kernel that ends its worker.
    problems = [GemmProblem(16 * i, 4096, 4096) for i in range(2 * MOST_LOSSES + 2, 0, -1)]
    plan = {p: CONFIGS[:3] if i % 2 else CONFIGS[1:3] for i, p in enumerate(problems)}
    engine = LosingEngine(MOST_LOSSES + 1)
    faults = (Fault(CONFIGS[0], "screen", "exit"),)
    bed.collect(bed.factory(faults=faults), engine=engine, workload=plan)
    assert engine.left == 0
    assert {row.m for row in bed.rows() if row.stage == "verify"} == {p.m for p in problems}


class ShortEngine:
    """Has no card for a worker that is slow to start, as a cluster whose node is gone."""

    start = staticmethod(LocalEngine().start)

    def news(
        self, workers: Sequence[LocalWorker], seconds: float
    ) -> Iterator[tuple[LocalWorker, Result | Failed]]:
        for worker in workers:
            if isinstance(worker.factory, FakeFactory) and worker.factory.slow_start:
                worker.card = ""
        yield from LocalEngine().news(workers, seconds)


def test_no_job_is_kept_for_a_card_that_may_never_come(bed: Bed) -> None:
    hot = Fault(None, "screen", "throttle", times=1)
    absent = bed.factory(card="absent", slow_start=fake_session.FOR_EVER)
    bed.collect(bed.factory(card="here", faults=(hot,)), absent, engine=ShortEngine())
    # What the only card failed at is its own again.
    assert _troubles(bed) == [("here", "the GPU throttles: hardware thermal")]
    assert {row.m for row in bed.rows() if row.stage == "verify"} == {p.m for p in PROBLEMS}
    assert bed.progress[-1].gpus == 1


@dataclass
class Builder:
    """Stands in for the compiler; every kernel takes a while."""

    seconds: float = 0.0
    broken: QuackConfig | None = None
    passing: bool = False
    asked: list[list[KernelSpec]] = field(default_factory=list)
    built: int = 0

    def __call__(self, kernels: Sequence[KernelSpec], **_: object) -> Iterator[CompileResult]:
        self.asked.append(list(kernels))
        for spec in kernels:
            time.sleep(self.seconds)
            self.built += 1
            error = "no code" if spec.config == self.broken else None
            yield CompileResult(spec, 0.0, error, self.passing)


def test_budget_bounds_compiling_too(bed: Bed) -> None:
    builder = Builder(seconds=0.1)
    begun = time.monotonic()
    bed.collect(build=builder, deadline=begun + 0.25)
    assert time.monotonic() - begun < 2
    assert 1 <= builder.built < len(CONFIGS)
    assert (bed.rows(), bed.checks(), bed.logged()) == ([], {}, [])
    bed.collect(build=builder)
    assert {row.m for row in bed.rows() if row.stage == "verify"} == {p.m for p in PROBLEMS}


@pytest.mark.parametrize("ends", ["interrupted", "late"])
def test_no_compiler_that_hangs_holds_up_a_run_that_ends(
    bed: Bed, object_file: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    for step in ("prepare", "rehearse"):
        monkeypatch.setattr(builder_module, step, odd_caches.nothing)
    victim = KernelSpec(CONFIGS[-1], LINEAR_BF16)
    cache = OddCache(bed.folder / "objects", object_file(168, 0), victim, hangs=True)
    build, ended = partial(compile_all, cache=cache, workers=1), []

    def end(progress: Progress) -> None:
        if progress.done == len(CONFIGS) - 1:
            while not cache.tries():
                time.sleep(0.01)
            ended.append(time.monotonic())
            if ends == "interrupted":
                raise KeyboardInterrupt
            collecting._until = 0.0

    with closing(MeasurementStore(bed.path)) as store:
        store.begin_run({"gpu": "none"})
        collecting = Collector(store, [bed.factory()], build, report=end)
        with pytest.raises(KeyboardInterrupt) if ends == "interrupted" else nullcontext():
            collecting.collect({PROBLEMS[0]: CONFIGS})
    # Killed, but the system may take a moment to end it.
    while any(map(_alive, cache.tries())) and time.monotonic() - ended[0] < 5:
        time.sleep(0.01)
    assert not any(map(_alive, cache.tries()))
    assert time.monotonic() - ended[0] < 5
    assert bed.rows() == []


def test_no_worker_is_waited_for_before_all_are_ended(bed: Bed) -> None:
    """A driver takes a second to let go of a process, and a host may have eight of them."""
    met = threading.Barrier(3)

    class Lingering(LocalWorker):
        def stop(self) -> None:
            met.wait(30)
            super().stop()

    class Engine(LocalEngine):
        def start(self, factory: SessionFactory, silence: float) -> LocalWorker:
            return Lingering(factory, silence)

    before = set(multiprocessing.active_children())
    with closing(MeasurementStore(bed.path)) as store:
        store.begin_run({"gpu": "none"})
        factories = [bed.factory(card=name) for name in "abc"]
        Collector(store, factories, engine=Engine()).collect({PROBLEMS[0]: CONFIGS})
    assert set(multiprocessing.active_children()) <= before
    assert not met.broken


def test_what_the_next_problems_need_is_compiled_as_it_goes(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "STRETCH", 2)
    # The first stretch is of one problem, those behind it of two.
    candidates = (CONFIGS[:2], CONFIGS[1:4], CONFIGS[:4], CONFIGS[:2], CONFIGS)
    workload = dict(zip(PROBLEMS, candidates, strict=True))
    builder = Builder(broken=CONFIGS[1])
    bed.collect(workload=workload, build=builder)
    asked = [{spec.config for spec in kernels} for kernels in builder.asked]
    # What does not compile is not tried again; what is verified has been raced.
    sound = {*CONFIGS} - {CONFIGS[1]}
    assert asked == [{*CONFIGS[:2]}, {CONFIGS[0], *CONFIGS[2:4]}, sound, sound]
    phases = [name for name, _ in groupby(p.phase for p in bed.progress)]
    assert phases == ["compile", "check", "measure"] * 3 + ["compile", "verify"]
    measured = [(p.done, p.total) for p in bed.progress if p.phase == "measure"]
    assert measured == [(done, 5) for done in range(1, 6)]
    assert _failed(bed.rows()) == {CONFIGS[1].name: {(p.m, "screen", "no code") for p in PROBLEMS}}


def test_a_kernel_whose_compiler_hung_is_left_out_by_this_run_alone(bed: Bed) -> None:
    one, other = ({problem: CONFIGS} for problem in PROBLEMS[:2])
    bed.collect(workload=one, build=Builder(broken=CONFIGS[1], passing=True))
    assert _failed(bed.rows()) == {CONFIGS[1].name: {(PROBLEMS[0].m, "screen", "no code")}}
    assert kernel_key(KernelSpec(CONFIGS[1], LINEAR_BF16)) not in bed.checks()
    assert not any(line[3] == CONFIGS[1].name for line in bed.logged() if line[0] != "check")
    bed.collect(workload=other, build=Builder())
    assert (PROBLEMS[1].m, "screen") in _timed(bed.rows(), CONFIGS[1].name)


def test_candidates_are_asked_for_a_stretch_at_a_time(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "STRETCH", 1)
    chosen: list[tuple[GemmProblem, int]] = []

    class Watched(dict):
        def __getitem__(self, problem: GemmProblem) -> Sequence[QuackConfig]:
            chosen.append((problem, sum(line[0] == "race" for line in bed.logged())))
            return super().__getitem__(problem)

    bed.collect(workload=Watched(WORKLOAD))
    assert [problem for problem, _ in chosen] == list(PROBLEMS)
    raced = [count for _, count in chosen]
    # Two stretches are begun before the first is measured; each other once the last but one is.
    assert raced[:2] == [0, 0]
    assert all(before < after for before, after in pairwise(raced[1:]))
    chosen.clear()
    bed.collect(workload=Watched(WORKLOAD))
    assert chosen == []


def test_which_kernels_fail_is_read_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    failures = MeasurementStore.failures
    monkeypatch.setattr(
        MeasurementStore, "failures", lambda store: read.append(1) or failures(store)
    )
    bed.collect(bed.factory(faults=(Fault(CONFIGS[3], "check", "wrong"),)))
    assert len(read) == 1
    assert len(_failed(bed.rows())[CONFIGS[3].name]) == len(PROBLEMS)


def test_a_race_whose_kernels_have_all_failed_since_is_not_verified(bed: Bed) -> None:
    _raced_on("card", bed.path)
    store = MeasurementStore(bed.path)
    store.add_checks({KernelSpec(config, LINEAR_BF16): "wrong" for config in CONFIGS})
    store.close()
    pairs = [("card", problem) for problem in PROBLEMS[:2]]
    bed.collect(workload=dict.fromkeys(PROBLEMS[:2], CONFIGS), compared=pairs)
    assert bed.logged() == []
    assert not any(row.stage == "verify" for row in bed.rows())


def test_the_next_problems_kernels_compile_while_these_are_measured(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "STRETCH", 1)
    workload = {PROBLEMS[0]: CONFIGS[:2], PROBLEMS[1]: CONFIGS[2:4]}
    measured_when_asked = []

    def build(kernels: Sequence[KernelSpec], **_: object) -> Iterator[CompileResult]:
        measured_when_asked.append({line[2] for line in bed.logged() if line[0] == "race"})
        yield from (CompileResult(spec, 0.0, None) for spec in kernels)

    bed.collect(bed.factory(pace=0.2), workload=workload, build=build)
    # For the first problem, for the second while the first was not measured yet, to verify.
    assert measured_when_asked == [set(), set(), {str(problem) for problem in workload}]


def test_little_is_waited_for_before_the_first_measurement(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "STRETCH", 4)
    # Each problem has a kernel of its own.
    kernels = [replace(CONFIGS[0], stages=2 + i % 6, split_k=1 + i // 6) for i in range(23)]
    plan = {GemmProblem(m, 512, 512): (kernel,) for m, kernel in enumerate(kernels, 1)}
    compiled: list[int] = []

    def build(kernels: Sequence[KernelSpec], **_: object) -> Iterator[CompileResult]:
        compiled.append(len(kernels))
        yield from (CompileResult(spec, 0.0, None) for spec in kernels)

    bed.collect(*(bed.factory(card=card) for card in "ab"), workload=plan, build=build)
    # A problem a card, then twice as many each time, four a card at most; then all, to verify.
    assert compiled == [2, 4, 8, 8, 1, 23]


def test_the_longest_of_a_stretch_come_first(bed: Bed) -> None:
    bed.collect()
    screened = dict.fromkeys(line[2] for line in bed.logged() if line[0] == "screen")
    # Stretches of one, two and, of those that are left, two.
    largest_first = [PROBLEMS[place] for place in (0, 2, 1, 4, 3)]
    assert list(screened) == [str(problem) for problem in largest_first]


def test_what_compiling_raises_is_raised(bed: Bed) -> None:
    def build(kernels: Sequence[KernelSpec], **_: object) -> Iterator[CompileResult]:
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        bed.collect(build=build)
    assert bed.rows() == []


def test_run_that_has_nothing_to_do_starts_no_worker(bed: Bed) -> None:
    bed.collect()
    bed.collect(bed.factory(broken="CUDA out of memory"))


def test_verification_goes_to_the_card_that_raced(bed: Bed) -> None:
    # Neither is done with its first job before the other one has begun its own.
    cards = {"left": "right", "right": "left"}
    bed.collect(
        *(
            bed.factory(card=card, turns=(Turn("screen", f"{cards[card]}.screen"),))
            for card in cards
        )
    )
    cards = _cards(bed.rows())
    assert {card for race, _ in cards.values() for card in race} == {"left", "right"}
    assert all(race == verify and len(race) == 1 for race, verify in cards.values())


def _raced_on(card: str, path: Path) -> None:
    """Make a store in which two problems wait for their verification."""
    store = MeasurementStore(path)
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
    store.close()


def test_verification_waits_for_its_card_after_a_restart(bed: Bed) -> None:
    _raced_on("right", bed.path)
    right = bed.factory(card="right", slow_start=1.5)
    bed.collect(bed.factory(card="left"), right, workload=dict.fromkeys(PROBLEMS[:2], CONFIGS))
    assert list(_cards(bed.rows()).values()) == [({"right"}, {"right"})] * 2


def _cards(rows: list[Row]) -> dict[int, tuple[set[str], set[str]]]:
    """For each problem's m, the cards that raced it and those that verified it."""
    return {
        problem: (
            {row.device for row in rows if (row.m, row.stage) == (problem, "race")},
            {row.device for row in rows if (row.m, row.stage) == (problem, "verify")},
        )
        for problem in sorted({row.m for row in rows})
    }


def test_another_card_verifies_when_its_own_is_not_there(bed: Bed) -> None:
    _raced_on("gone", bed.path)
    bed.collect(bed.factory(card="here"), workload=dict.fromkeys(PROBLEMS[:2], CONFIGS))
    assert list(_cards(bed.rows()).values()) == [({"gone"}, {"here"})] * 2


def test_every_card_times_the_problems_by_which_cards_are_compared(bed: Bed) -> None:
    few = PROBLEMS[::2]
    both = [bed.factory(card=card, together=2) for card in ("left", "right")]
    pairs = [(card, problem) for problem in few for card in ("left", "right")]
    # One is not raced yet, and so has nobody to be timed.
    absent = ("left", GemmProblem(7, 8, 8))
    bed.collect(*both, compared=[*pairs, absent])
    found = card_times(bed.read(lambda store: store.runs()))
    assert Counter((one.card, one.problem) for one in found) == Counter(pairs)
    rows = bed.rows()
    for one in found:
        verified = {
            (row.regime, row.config) for row in rows
            if row.stage == "verify" and row.m == one.problem.m
        }  # fmt: skip
        assert one.microseconds.keys() == verified
        for (_, name), taken in one.microseconds.items():
            config = next((c for c in CONFIGS if c.name == name), None)
            assert taken == pytest.approx(microseconds(one.problem, config))
    # What was measured is what it is without a comparison, and one that was is not made again.
    assert [p.phase for p in bed.progress].count("compare") == len(pairs)
    alone = Bed(bed.folder / "alone")
    alone.collect()
    assert {row[:12] for row in rows} == {row[:12] for row in alone.rows()}


def test_no_card_is_compared_in_the_place_of_one_that_is_not_there(bed: Bed) -> None:
    pairs = [(card, problem) for problem in PROBLEMS[:2] for card in ("gone", "here")]
    bed.collect(bed.factory(card="here"), compared=pairs)
    found = card_times(bed.read(lambda store: store.runs()))
    assert [(o.card, o.problem) for o in found] == [pair for pair in pairs if pair[0] == "here"]


def test_a_comparison_that_fails_is_left_out(bed: Bed) -> None:
    sick = bed.factory(card="sick", faults=(Fault(None, "verify", "exit"),), together=2)
    well = bed.factory(card="well", together=2)
    _raced_on("well", bed.path)
    problems = PROBLEMS[:2]
    pairs = [(card, problem) for problem in problems for card in ("sick", "well")]
    bed.collect(sick, well, workload=dict.fromkeys(problems, CONFIGS), compared=pairs)
    found = card_times(bed.read(lambda store: store.runs()))
    assert {one.card for one in found} == {"well"}
    assert set(bed.checks().values()) == {None}


def test_comparisons_that_all_fail_end_no_run(bed: Bed) -> None:
    bed.collect()
    pairs = [("card", problem) for problem in PROBLEMS]
    bed.collect(bed.factory(faults=(Fault(None, "verify", "exit"),)), compared=pairs)
    assert len(_troubles(bed)) == len(PROBLEMS) > MAX_STRIKES
    assert card_times(bed.read(lambda store: store.runs())) == []


def test_noise_is_told_from_the_first_race_on(bed: Bed) -> None:
    bed.collect()
    told = {p.phase: p.noise for p in bed.progress}
    assert told == {"check": None, "measure": 0.0, "verify": 0.0}
    assert {p.gpus for p in bed.progress} == {1}


def test_a_second_timing_adds_nothing_to_the_noise_of_races(bed: Bed) -> None:
    store = MeasurementStore(bed.path)
    store.begin_run({"gpu": "none"})
    collector = Collector(store, [])
    problem = PROBLEMS[0]
    raced = Measurement(problem, CONFIGS[0], "burst", "race", 5.0, 0.01, 16)
    for job, row in (
        (MeasureJob(problem, CONFIGS[:1]), raced),
        (VerifyJob(problem, (raced,), "card"), replace(raced, stage="verify", spread=0.5)),
    ):
        collector._keep(job, [row], "card")
    store.close()
    assert collector._errors == [raced.error]


def test_worker_that_dies_between_two_jobs_is_replaced(bed: Bed) -> None:
    killed: list[int] = []

    def kill_the_worker(progress: Progress) -> None:
        if progress.phase == "measure" and progress.done == 2:
            for child in multiprocessing.active_children():
                child.kill()
                child.join()
                killed.append(child.pid or 0)

    store = MeasurementStore(bed.path)
    store.begin_run({"gpu": "none"})
    Collector(store, [bed.factory()], report=kill_the_worker).collect(WORKLOAD)
    store.close()
    assert len(killed) == 1
    assert _failed(bed.rows()) == {}
    assert {line[-1] for line in bed.logged()} > set(killed)
    assert {row.m for row in bed.rows() if row.stage == "verify"} == {p.m for p in PROBLEMS}


def _troubles(bed: Bed) -> list[tuple[str, str]]:
    """Cards and reasons, as noted with the runs."""
    runs = bed.read(lambda store: store.runs())
    return [(one["card"], one["reason"]) for run in runs for one in run.get("troubles", ())]


@pytest.mark.parametrize("stage", ["check", "screen", "race", "verify"])
def test_no_kernel_is_blamed_when_somebody_kills_its_process(bed: Bed, stage: str) -> None:
    bed.collect(bed.factory(faults=(Fault(CONFIGS[2], stage, "kill", times=1),)))
    assert _troubles(bed) == [("card", "killed (out of memory?)")]
    assert set(bed.checks().values()) == {None}
    undisturbed = Bed(bed.folder / "undisturbed")
    undisturbed.collect()
    assert bed.rows() == undisturbed.rows()


@pytest.mark.parametrize("stage", ["check", "screen"])
@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("memory", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("disk", "OSError: [Errno 28] No space left on device"),
        ("pruned", f"TilecastError: kernel {CONFIGS[2]} for bf16:rcr is not compiled"),
    ],
)
def test_no_kernel_is_blamed_for_what_the_machine_lacks(
    bed: Bed, stage: str, action: str, reason: str
) -> None:
    # Each twice: the second time kernels may run one by one, each with its name.
    bed.collect(bed.factory(faults=(Fault(CONFIGS[2], stage, action, times=2),)))
    assert _troubles(bed) == [("card", reason)] * 2
    assert set(bed.checks().values()) == {None}
    assert _failed(bed.rows()) == {}
    assert (PROBLEMS[0].m, "screen") in _timed(bed.rows(), CONFIGS[2].name)


def test_a_card_whose_process_is_killed_as_it_starts_gets_another(bed: Bed) -> None:
    bed.collect(bed.factory(card="slow", killed_starts=2))
    assert _troubles(bed) == [("one that starts", "killed (out of memory?)")] * 2
    assert {row.m for row in bed.rows() if row.stage == "verify"} == {p.m for p in PROBLEMS}
    with pytest.raises(TilecastError, match=r"no kernel to blame \(killed \(out of memory\?\)\)"):
        Bed(bed.folder / "again").collect(bed.factory(card="dead", killed_starts=MAX_STRIKES))


def test_interrupts_are_left_to_the_collector_from_the_first_moment(bed: Bed) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    worker = LocalWorker(bed.factory(slow_start=60), 60.0)
    status = Path(f"/proc/{worker._process.pid}/status").read_text()
    worker.stop()
    (blocked,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk"))
    assert int(blocked, 16) >> (signal.SIGINT - 1) & 1
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_process_that_is_killed_again_and_again_ends_the_run(bed: Bed) -> None:
    with pytest.raises(TilecastError, match=r"no kernel to blame \(killed \(out of memory\?\)\)"):
        bed.collect(bed.factory(faults=(Fault(CONFIGS[2], "screen", "kill"),)))
    # The third time the problem is left for another run, which is no strike.
    assert len(_troubles(bed)) == MAX_STRIKES + 1
    assert set(bed.checks().values()) == {None}
    bed.collect()
    assert {row.m for row in bed.rows() if row.stage == "verify"} == {p.m for p in PROBLEMS}


@pytest.mark.parametrize("stage", ["screen", "race", "verify"])
def test_what_a_throttling_card_says_is_measured_again_elsewhere(bed: Bed, stage: str) -> None:
    # As the library's kernel runs, which is in every job; each card has one.
    hot = Fault(None, stage, "throttle", times=1)
    bed.collect(
        bed.factory(card="hot", faults=(hot,)),
        bed.factory(card="cool", turns=(Turn("screen", "hot.screen"),)),
    )
    rows = bed.rows()
    assert _troubles(bed) == [("hot", "the GPU throttles: hardware thermal")]
    undisturbed = Bed(bed.folder / "undisturbed")
    undisturbed.collect()
    assert [row[:12] for row in rows] == [row[:12] for row in undisturbed.rows()]
    # The job that it failed at is the other's, from its beginning.
    screened: dict[str, set[str]] = {}
    for line in bed.logged():
        if line[0] == "screen":
            screened.setdefault(line[2], set()).add(line[4])
    twice = [problem for problem, cards in screened.items() if len(cards) == 2]
    assert len(twice) == (stage == "race")
    assert {row.device for row in rows if str(GemmProblem(*row[:3])) in twice} <= {"cool"}
    moved = list(_cards(rows).values()).count(({"hot"}, {"cool"}))
    assert moved == (stage == "verify")


def test_a_card_that_goes_on_throttling_is_given_up(bed: Bed) -> None:
    hot = Fault(CONFIGS[2], "screen", "throttle")
    # Of the first stretch, two problems, each card begins one. Of the other three the cool one
    # finishes none before the hot one is about to fail for the last time.
    last = Turn("screen", "hot.screen", MAX_STRIKES, nth=3)
    cool = bed.factory(card="cool", turns=(Turn("screen", "hot.screen"), last))
    bed.collect(bed.factory(card="hot", faults=(hot,)), cool)
    assert _troubles(bed) == [("hot", "the GPU throttles: hardware thermal")] * MAX_STRIKES
    assert {row.device for row in bed.rows()} == {"cool"}
    assert {row.m for row in bed.rows() if row.stage == "verify"} == {p.m for p in PROBLEMS}
    assert bed.progress[-1].gpus == 1


def test_a_run_all_of_whose_problems_are_left_says_so(bed: Bed) -> None:
    hot, workload = Fault(None, "screen", "throttle"), {PROBLEMS[0]: CONFIGS}
    for _ in range(2):  # with kernels to check, and without
        with pytest.raises(TilecastError, match="left to another run: the GPU throttles.*; allow"):
            bed.collect(bed.factory(faults=(hot,)), workload=workload)
    assert bed.rows() == []


@pytest.mark.parametrize("stage", ["screen", "verify"])
def test_a_card_that_is_gone_is_done_without(bed: Bed, stage: str) -> None:
    lost = Fault(CONFIGS[2], stage, "lose", times=1)
    # Enough is left to do when the other card does not come back for that to be heard.
    here = bed.factory(card="here", pace=0.05, turns=(Turn(stage, "lost.start", 2),))
    bed.collect(bed.factory(card="lost", faults=(lost,), together=2), here)
    assert _troubles(bed) == [("lost", "RuntimeError: no CUDA-capable device is detected")]
    rows = bed.rows()
    assert _failed(rows) == {}
    assert {row.m for row in rows if row.stage == "verify"} == {p.m for p in PROBLEMS}
    cards = Counter(row.device for row in rows)
    assert cards["here"] > cards["lost"]
    assert bed.progress[-1].gpus == 1


def test_a_full_disk_ends_the_run_in_one_line_and_the_next_one_goes_on(bed: Bed) -> None:
    store = MeasurementStore(bed.path)
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(TilecastError, match="cannot be used .*full.*; allowed: .*run again"):
        bed.collect(store=store)
    store.close()
    part = bed.rows()
    assert 0 < len({row.m for row in part}) < len(PROBLEMS)
    bed.collect()
    assert set(part) <= set(bed.rows())
    assert _jobs(bed.logged())["check", CONFIGS[0].name] == 1
    assert {row.m for row in bed.rows() if row.stage == "verify"} == {p.m for p in PROBLEMS}


def test_a_second_collector_on_a_store_leaves_the_first_alone(bed: Bed) -> None:
    first = _run(bed, "--pace", "0.05")
    _wait_for(bed, "screen")
    first.send_signal(signal.SIGSTOP)
    second = _run(bed)
    _, errors = second.communicate(timeout=30)
    assert second.returncode != 0
    assert "is in use; allowed: one run at a time" in errors.splitlines()[-1]
    first.send_signal(signal.SIGCONT)
    output, errors = first.communicate(timeout=60)
    assert (first.returncode, errors) == (0, "")
    assert output.splitlines()[-1].startswith("finished")
    assert _jobs(bed.logged()) == _expected(bed.rows()) + Counter(
        {("check", config.name): 1 for config in CONFIGS}
    )


@pytest.mark.parametrize("hangs", [False, True], ids=["measuring", "hanging"])
def test_ctrl_c_ends_it_within_seconds(bed: Bed, hangs: bool) -> None:
    process = _run(bed, "--pace", "3600" if hangs else "0.2", group=True)
    _wait_for(bed, "check" if hangs else "screen")
    worker, begun = bed.logged()[0][-1], time.monotonic()
    # As a terminal does it: to the collector and its workers alike.
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begun < 5
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert errors.count("Traceback") == 1
    assert not _alive(worker)
    part = bed.rows()
    whole = Counter(row.m for row in part if row.stage == "screen")
    assert set(whole.values()) <= {ENTRANTS}
    bed.collect()
    assert set(part) <= set(bed.rows())
    assert {row.m for row in bed.rows() if row.stage == "verify"} == {p.m for p in PROBLEMS}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"broken": "CUDA out of memory"}, "RuntimeError: CUDA out of memory"),
        ({"slow_start": fake_session.FOR_EVER}, "hung: no sign of life for 2 s"),
        # The library's kernel is nobody whom one could leave out.
        ({"faults": (Fault(None, "time", "exit"),)}, "crashed: exit code 139"),
    ],
)
def test_failure_with_nobody_to_blame_stops_the_run_in_one_line(
    bed: Bed, capfd: pytest.CaptureFixture[str], changes: dict, reason: str
) -> None:
    with pytest.raises(TilecastError) as caught:
        bed.collect(bed.factory(**changes), silence_seconds=0.5)
    message = str(caught.value)
    assert message.startswith(f"a worker failed with no kernel to blame ({reason}); allowed: ")
    assert "\n" not in message
    assert capfd.readouterr().err == ""
    assert all(row.failure is None for row in bed.rows())
