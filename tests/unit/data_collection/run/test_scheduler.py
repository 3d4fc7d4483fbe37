"""What is compiled, checked, measured and verified in which order, on threads around a fake GPU."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from collection_bed import (
    ALL_VERIFIED,
    CHECKED_ONCE,
    ENTRANTS,
    Bed,
    cards,
    expected,
    failed,
    jobs,
    timed,
)
from fake_session import CONFIGS, PROBLEMS, Fault, Turn, microseconds

from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run import scheduler
from tilecast.data_collection.run.cards import card_times
from tilecast.data_collection.timing.protocol import regimes
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import CompileResult
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


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
    by_name = {config.name: config for config in CONFIGS}
    for row in rows:
        time_of_it = microseconds(GemmProblem(*row[:3]), by_name.get(row.config))
        assert row.microseconds == pytest.approx(time_of_it)
    lines = bed.logged()
    assert jobs(lines) == expected(rows) + CHECKED_ONCE
    assert set(bed.checks().values()) == {None}
    # The longest of a stretch come first: stretches of one, two and, of those that remain, two.
    screened = dict.fromkeys(line[2] for line in lines if line[0] == "screen")
    assert list(screened) == [str(PROBLEMS[place]) for place in (0, 2, 1, 4, 3)]
    # A second run has nothing to do, and starts no worker.
    bed.progress.clear()
    bed.collect(bed.factory(broken="CUDA out of memory"))
    assert (bed.rows(), bed.logged(), bed.progress) == (rows, lines, [])


def test_progress_counts_jobs_and_measurements(bed: Bed) -> None:
    bed.collect()
    by_phase = {phase: [p for p in bed.progress if p.phase == phase]
                for phase in ("check", "measure", "verify")}  # fmt: skip
    assert [len(found) for found in by_phase.values()] == [1, 5, 5]
    for found in by_phase.values():
        assert [p.done for p in found] == list(range(1, len(found) + 1))
        assert {p.total for p in found} == {len(found)}
        assert found[-1].seconds_left == 0
    assert by_phase["measure"][0].seconds_left > 0
    for before, after in pairwise(bed.progress):
        assert after.seconds >= before.seconds
        assert after.measurements >= before.measurements
    assert bed.progress[-1].measurements == len(bed.rows())
    assert by_phase["check"][-1].measurements == 0
    assert {p.gpus for p in bed.progress} == {1}


def test_what_cublas_does_not_multiply_is_measured_without_it(bed: Bed) -> None:
    fp8, int8 = map(GemmOperands.parse, ("e4m3:rcr>bf16:row-scales", "int8:rcr>int32"))
    without = GemmProblem(64, 584, 1024, 1, fp8), GemmProblem(16, 512, 1024, 1, int8)
    beside = GemmProblem(64, 592, 1024, 1, fp8), GemmProblem(17, 512, 1024, 1, int8)
    bed.collect(workload=dict.fromkeys((*without, *beside), CONFIGS))
    rows = bed.rows()
    assert failed(rows) == {}
    names = {config.name for config in CONFIGS}
    for problems, entrants in ((without, names), (beside, names | {"torch.mm"})):
        for p in problems:
            of_it = [row for row in rows if (row.m, row.n) == (p.m, p.n)]
            assert {row.config for row in of_it if row.stage == "screen"} == entrants
            assert {row.stage for row in of_it} == {"screen", "race", "verify"}


def test_what_cublas_refuses_when_tried_is_noted_and_measured_without_it(bed: Bed) -> None:
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
    assert {(other, stage) for stage in ("screen", "race")} <= timed(rows, "torch.mm")


def test_a_problem_whose_kernels_all_fail_does_not_stop_the_rest(bed: Bed) -> None:
    plan = {PROBLEMS[0]: CONFIGS[:1], PROBLEMS[1]: CONFIGS}
    bed.collect(bed.factory(faults=(Fault(CONFIGS[0], "check", "exit"),)), workload=plan)
    rows = bed.rows()
    alone = {(row.config, row.stage) for row in rows if row.m == PROBLEMS[0].m}
    assert alone == {(CONFIGS[0].name, "screen"), ("torch.mm", "screen")}
    assert len(failed(rows)[CONFIGS[0].name]) == 2
    assert {(PROBLEMS[1].m, stage) for stage in ("screen", "race")} <= timed(rows, "torch.mm")
    # The check of the first stretch, of one kernel that fails, counts as done.
    assert [(p.done, p.total) for p in bed.progress if p.phase == "check"][0] == (1, 1)


def test_a_race_whose_kernels_have_all_failed_since_is_not_verified(bed: Bed) -> None:
    bed.make_raced("card")
    bed.ask(lambda s: s.add_checks({KernelSpec(c, LINEAR_BF16): "wrong" for c in CONFIGS}))
    pairs = [("card", problem) for problem in PROBLEMS[:2]]
    bed.collect(workload=dict.fromkeys(PROBLEMS[:2], CONFIGS), compared=pairs)
    assert bed.logged() == []
    assert bed.verified() == set()


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], float]], None]:
    """Puts the scheduler's clock ahead by what a function says."""

    def put(seconds: Callable[[], float]) -> None:
        clock = type("Clock", (), {"monotonic": lambda: time.monotonic() + seconds()})
        monkeypatch.setattr(scheduler, "time", clock)

    return put


def test_a_deadline_lets_jobs_in_hand_finish_and_the_next_run_goes_on(
    bed: Bed, ahead: Callable[[Callable[[], float]], None]
) -> None:
    ahead(lambda: 900 * any(p.phase == "measure" for p in bed.progress))
    bed.collect(deadline=time.monotonic() - 1)
    assert (bed.rows(), bed.checks()) == ([], {})
    bed.collect(deadline=time.monotonic() + 600)
    part = bed.rows()
    assert {row.m for row in part} == {PROBLEMS[0].m}
    assert {row.stage for row in part} == {"screen", "race"}
    bed.progress.clear()
    bed.collect()
    assert set(part) <= set(bed.rows())
    assert jobs(bed.logged()) == expected(bed.rows()) + CHECKED_ONCE


def test_some_of_a_limited_time_is_kept_for_verification(
    bed: Bed, ahead: Callable[[Callable[[], float]], None]
) -> None:
    ahead(lambda: 900 * any(p.phase == "measure" for p in bed.progress))
    bed.collect(deadline=time.monotonic() + 1000)
    raced = {row.m for row in bed.rows() if row.stage == "race"}
    assert 1 <= len(raced) < len(PROBLEMS)
    assert bed.verified() == raced


@dataclass
class Builder:
    """Stands in for the compiler."""

    broken: QuackConfig | None = None
    passing: bool = False
    asked: list[list[KernelSpec]] = field(default_factory=list)
    built: int = 0

    def __call__(self, kernels: Sequence[KernelSpec], **_: object) -> Iterator[CompileResult]:
        self.asked.append(list(kernels))
        for spec in kernels:
            self.built += 1
            error = "no code" if spec.config == self.broken else None
            yield CompileResult(spec, 0.0, error, self.passing)


def test_a_deadline_bounds_compiling_too(
    bed: Bed, ahead: Callable[[Callable[[], float]], None]
) -> None:
    builder = Builder()
    ahead(lambda: 900 * (builder.built == 2))
    bed.collect(build=builder, deadline=time.monotonic() + 600)
    assert builder.built == 2
    assert (bed.rows(), bed.checks(), bed.logged()) == ([], {}, [])
    bed.collect(build=builder)
    assert bed.verified() == ALL_VERIFIED


def test_kernels_compile_for_a_stretch_of_problems_at_a_time(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "STRETCH", 2)
    # The first stretch is of one problem, those behind it of two.
    candidates = (CONFIGS[:2], CONFIGS[1:4], CONFIGS[:4], CONFIGS[:2], CONFIGS)
    builder = Builder(broken=CONFIGS[1])
    bed.collect(workload=dict(zip(PROBLEMS, candidates, strict=True)), build=builder)
    asked = [{spec.config for spec in kernels} for kernels in builder.asked]
    # What does not compile is not tried again; what is verified has been raced.
    sound = {*CONFIGS} - {CONFIGS[1]}
    assert asked == [{*CONFIGS[:2]}, {CONFIGS[0], *CONFIGS[2:4]}, sound, sound]
    phases = [name for name, _ in groupby(p.phase for p in bed.progress)]
    assert phases == ["compile", "check", "measure"] * 3 + ["compile", "verify"]
    measured = [(p.done, p.total) for p in bed.progress if p.phase == "measure"]
    assert measured == [(done, 5) for done in range(1, 6)]
    assert failed(bed.rows()) == {CONFIGS[1].name: {(p.m, "screen", "no code") for p in PROBLEMS}}


def test_stretches_begin_with_a_problem_for_each_card_and_double(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "STRETCH", 4)
    # Each problem has a kernel of its own.
    kernels = [replace(CONFIGS[0], stages=2 + i % 6, split_k=1 + i // 6) for i in range(23)]
    plan = {GemmProblem(m, 512, 512): (kernel,) for m, kernel in enumerate(kernels, 1)}
    builder = Builder()
    bed.collect(*(bed.factory(card=card) for card in "ab"), workload=plan, build=builder)
    # At most four problems a card; then all, to verify.
    assert [len(kernels) for kernels in builder.asked] == [2, 4, 8, 8, 1, 23]


def test_the_next_kernels_compile_while_these_are_measured(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "STRETCH", 1)
    compiling = threading.Event()
    raced_when_asked = []

    def build(kernels: Sequence[KernelSpec], **_: object) -> Iterator[CompileResult]:
        raced_when_asked.append({line[2] for line in bed.logged() if line[0] == "race"})
        if len(raced_when_asked) == 2:
            bed.folder.joinpath("second").write_text(".")
            compiling.set()
        yield from (CompileResult(spec, 0.0) for spec in kernels)

    workload = {PROBLEMS[0]: CONFIGS[:2], PROBLEMS[1]: CONFIGS[2:4]}
    # The first race waits until the second problem's kernels are asked for.
    factory = bed.factory(turns=(Turn("race", "second"),))
    bed.collect(factory, workload=workload, build=build)
    assert compiling.is_set()
    assert raced_when_asked == [set(), set(), {str(problem) for problem in workload}]


def test_a_kernel_whose_compiler_hung_is_left_out_by_this_run_alone(bed: Bed) -> None:
    one, other = ({problem: CONFIGS} for problem in PROBLEMS[:2])
    bed.collect(workload=one, build=Builder(broken=CONFIGS[1], passing=True))
    assert failed(bed.rows()) == {CONFIGS[1].name: {(PROBLEMS[0].m, "screen", "no code")}}
    assert kernel_key(KernelSpec(CONFIGS[1], LINEAR_BF16)) not in bed.checks()
    bed.collect(workload=other, build=Builder())
    assert (PROBLEMS[1].m, "screen") in timed(bed.rows(), CONFIGS[1].name)


def test_what_compiling_raises_is_raised(bed: Bed) -> None:
    def build(kernels: Sequence[KernelSpec], **_: object) -> Iterator[CompileResult]:
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        bed.collect(build=build)
    assert bed.rows() == []


def test_every_card_times_the_problems_by_which_cards_are_compared(bed: Bed) -> None:
    few = PROBLEMS[::2]
    both = [bed.factory(card=card, together=2) for card in ("left", "right")]
    pairs = [(card, problem) for problem in few for card in ("left", "right")]
    # Neither a problem that was not raced nor a card that is not there is compared.
    absent = [("left", GemmProblem(7, 8, 8)), ("gone", few[0])]
    bed.collect(*both, compared=[*pairs, *absent])
    found = card_times(bed.ask(lambda store: store.runs()))
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
    assert [p.phase for p in bed.progress].count("compare") == len(pairs)
    # What was measured is what it is without a comparison.
    alone = Bed(bed.folder / "alone")
    alone.collect()
    assert {row[:12] for row in rows} == {row[:12] for row in alone.rows()}


def test_comparisons_that_fail_are_left_out(bed: Bed) -> None:
    bed.collect(bed.factory(card="well"))
    pairs = [(card, problem) for problem in PROBLEMS for card in ("sick", "well")]
    sick = bed.factory(card="sick", faults=(Fault(None, "verify", "exit"),), together=2)
    bed.collect(sick, bed.factory(card="well", together=2), compared=pairs)
    assert len(bed.troubles()) == len(PROBLEMS)
    assert {one.card for one in card_times(bed.ask(lambda store: store.runs()))} == {"well"}
    assert bed.failing() == set()


def test_verification_goes_to_the_card_that_raced(bed: Bed) -> None:
    # Neither is done with its first job before the other one has begun its own.
    other = {"left": "right", "right": "left"}
    turns = {card: (Turn("screen", f"{other[card]}.screen"),) for card in other}
    bed.collect(*(bed.factory(card=card, turns=turns[card]) for card in other))
    found = cards(bed.rows())
    assert {card for raced, _ in found.values() for card in raced} == {"left", "right"}
    assert all(raced == verified and len(raced) == 1 for raced, verified in found.values())


@pytest.mark.parametrize("comes", [True, False])
def test_verification_waits_for_its_card_unless_that_is_not_there(bed: Bed, comes: bool) -> None:
    bed.make_raced("right")
    right = [bed.factory(card="right", slow_start=0.3)] if comes else []
    left = bed.factory(card="left")
    bed.collect(left, *right, workload=dict.fromkeys(PROBLEMS[:2], CONFIGS))
    assert list(cards(bed.rows()).values()) == [({"right"}, {"right" if comes else "left"})] * 2


def test_a_full_disk_ends_the_run_in_one_line_and_the_next_one_goes_on(bed: Bed) -> None:
    with closing(MeasurementStore(bed.path)) as store:
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(TilecastError, match="cannot be used .*full.*; allowed: "):
            bed.collect(store=store)
    part = bed.rows()
    assert 0 < len({row.m for row in part}) < len(PROBLEMS)
    bed.collect()
    assert set(part) <= set(bed.rows())
    assert jobs(bed.logged())["check", CONFIGS[0].name] == 1
    assert bed.verified() == ALL_VERIFIED
