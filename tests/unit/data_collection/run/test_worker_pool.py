"""Who gets which job, and who is blamed: on threads around a fake GPU that fails in every way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from collection_bed import ALL_VERIFIED, ENTRANTS, Bed, cards, failed, jobs, timed
from fake_session import CONFIGS, FOR_EVER, PROBLEMS, FakeFactory, Fault, Turn, microseconds
from thread_engine import ThreadEngine, ThreadWorker

from tilecast.data_collection.jobs.jobs import Failed, Lost, Result
from tilecast.data_collection.run.worker_pool import MAX_STRIKES, MOST_LOSSES
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

CRASHED, KILLED = "crashed: exit code 139", "killed (out of memory?)"
THROTTLES = "the GPU throttles: hardware thermal"
FAILURES = {
    "exit": CRASHED,
    "report": "hung: not done after 5 s",
    "raise": "RuntimeError: an illegal memory access was encountered",
    "wrong": "relative error 0.5",
}
"""What a fault of a kernel does to it, by its action."""


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def _key(config: QuackConfig) -> str:
    return kernel_key(KernelSpec(config, LINEAR_BF16))


@pytest.mark.parametrize("action", FAILURES)
def test_a_kernel_that_fails_its_check_is_left_out_everywhere(bed: Bed, action: str) -> None:
    broken, reason = CONFIGS[3], FAILURES[action]
    bed.collect(bed.factory(faults=(Fault(broken, "check", action),)))
    rows = bed.rows()
    assert failed(rows) == {broken.name: {(p.m, "screen", reason) for p in PROBLEMS}}
    assert timed(rows, broken.name) == set()
    assert sum(row.stage == "screen" for row in rows) == len(PROBLEMS) * ENTRANTS
    assert {key: why for key, why in bed.checks().items() if why} == {_key(broken): reason}
    assert len(bed.checks()) == len(CONFIGS)
    assert not any(line[3] == broken.name for line in bed.logged() if line[0] != "check")
    failures = [row for row in rows if row.failure]
    assert {(row.microseconds, row.spread, row.rounds) for row in failures} == {(None, None, 0)}


@pytest.mark.parametrize("action", ["exit", "raise"])
def test_a_kernel_that_fails_only_when_timed_is_found_by_running_one_by_one(
    bed: Bed, action: str
) -> None:
    # In the middle of the field, so that neither the first nor the last announced is to blame.
    broken = CONFIGS[2]
    bed.collect(bed.factory(faults=(Fault(broken, "time", action),)))
    rows = bed.rows()
    assert failed(rows) == {broken.name: {(p.m, "screen", FAILURES[action]) for p in PROBLEMS}}
    assert timed(rows, broken.name) == set()
    screened = {(problem.m, "screen") for problem in PROBLEMS}
    for config in set(CONFIGS) - {broken}:
        assert screened <= timed(rows, config.name)


def test_a_problem_is_timed_without_pauses_once_its_bad_kernel_is_known(bed: Bed) -> None:
    factory = bed.factory(faults=(Fault(CONFIGS[2], "screen", "exit"),))
    bed.collect(factory, workload={PROBLEMS[0]: CONFIGS})
    assert len(timed(bed.rows(), CONFIGS[1].name)) > 0
    assert not bed.log.with_name("card.paused").exists()


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("stage", ["check", "time"])
def test_a_kernel_is_blamed_and_not_its_namesake_of_other_operands(
    bed: Bed, stage: str, batched: bool
) -> None:
    plain, batch = PROBLEMS[0], replace(PROBLEMS[0], batch=3)
    broken = CONFIGS[2]
    fault = Fault(broken, stage, "exit", batched=batched)
    bed.collect(bed.factory(faults=(fault,)), workload={plain: CONFIGS, batch: CONFIGS})
    assert bed.failing() == {kernel_key(KernelSpec(broken, LINEAR_BF16, batched=batched))}
    rows = [row for row in bed.rows() if row.config == broken.name]
    assert {row.batch == 3 for row in rows if row.failure} == {batched}
    assert {"screen", "race"} <= {row.stage for row in rows if (row.batch == 3) != batched}


@pytest.mark.parametrize("stage", ["race", "verify"])
def test_a_kernel_that_fails_in_a_later_stage_is_the_only_one_blamed(bed: Bed, stage: str) -> None:
    problem, broken = PROBLEMS[0], CONFIGS[0]
    bed.collect(bed.factory(faults=(Fault(broken, stage, "exit"),)), workload={problem: CONFIGS})
    assert bed.checks() == {_key(c): CRASHED if c == broken else None for c in CONFIGS}
    rows = bed.rows()
    if stage == "race":
        assert failed(rows) == {broken.name: {(problem.m, "screen", CRASHED)}}
        assert timed(rows, broken.name) == set()
    else:
        assert failed(rows) == {broken.name: {(problem.m, "verify", CRASHED)}}
        assert timed(rows, broken.name) == {(problem.m, "screen"), (problem.m, "race")}
    assert (problem.m, stage) in timed(rows, CONFIGS[3].name)


def test_a_kernel_that_is_wrong_on_the_timed_tensors_is_not_raced(bed: Bed) -> None:
    broken, reason = CONFIGS[2], "7 wrong elements, on the tensors that were timed"
    bed.collect(bed.factory(faults=(Fault(broken, "use", "wrong"),)))
    assert bed.failing() == {_key(broken)}
    assert failed(bed.rows()) == {broken.name: {(p.m, "screen", reason) for p in PROBLEMS}}
    assert timed(bed.rows(), broken.name) == set()
    assert {p.m for p in PROBLEMS} == {m for m, stage in timed(bed.rows(), CONFIGS[3].name)}


def test_results_that_are_wrong_once_on_the_only_card_are_left_out_by_this_run_alone(
    bed: Bed,
) -> None:
    broken = CONFIGS[3]
    workload = {PROBLEMS[0]: CONFIGS}
    bed.collect(bed.factory(faults=(Fault(broken, "check", "wrong", times=1),)), workload=workload)
    assert bed.failing() == set()
    assert _key(broken) not in bed.checks()
    assert jobs(bed.logged())["check", broken.name] == 2
    why = "wrong results once, and right ones once, on one card"
    assert failed(bed.rows()) == {broken.name: {(PROBLEMS[0].m, "screen", why)}}
    bed.collect(workload={PROBLEMS[1]: CONFIGS})
    assert _key(broken) in bed.checks()
    assert (PROBLEMS[1].m, "screen") in timed(bed.rows(), broken.name)


def test_a_card_that_is_wrong_alone_is_blamed_before_the_kernels_are(bed: Bed) -> None:
    wrong = tuple(Fault(config, "check", "wrong") for config in CONFIGS[1:4])
    bad = bed.factory(card="bad", faults=wrong)
    bed.collect(bad, bed.factory(card="good", start_after="bad.wrong"))
    assert bed.failing() == set()
    assert failed(bed.rows()) == {}
    assert len(bed.checks()) == len(CONFIGS)
    ((card, reason),) = bed.troubles()
    assert card == "bad"
    assert "which are right on another card" in reason


def test_results_that_are_wrong_on_two_cards_are_the_kernels_fault(bed: Bed) -> None:
    faults = (Fault(CONFIGS[2], "check", "wrong"),)
    bed.collect(*(bed.factory(card=card, faults=faults, together=2) for card in ("one", "two")))
    assert bed.failing() == {_key(CONFIGS[2])}
    assert bed.troubles() == []
    asked = {line[2] for line in bed.logged() if line[:2] == ("check", CONFIGS[2].name)}
    assert asked == {"one", "two"}


def test_several_bad_kernels_are_found_by_two_cards_which_are_both_kept(bed: Bed) -> None:
    faults = (
        *(Fault(config, "check", "exit") for config in CONFIGS[: MAX_STRIKES + 1]),
        Fault(CONFIGS[-1], "time", "report"),
    )
    bed.collect(*(bed.factory(card=card, faults=faults, together=2) for card in ("left", "right")))
    reasons = {name: {why for _, _, why in found} for name, found in failed(bed.rows()).items()}
    assert reasons == {
        **{config.name: {CRASHED} for config in CONFIGS[: MAX_STRIKES + 1]},
        CONFIGS[-1].name: {FAILURES["report"]},
    }
    assert all(len(found) == len(PROBLEMS) for found in failed(bed.rows()).values())
    assert bed.progress[-1].gpus == 2
    assert bed.troubles() == []


@pytest.mark.parametrize("stage", ["check", "screen"])
def test_no_kernel_is_blamed_for_what_one_bad_card_does_to_each(bed: Bed, stage: str) -> None:
    bad = bed.factory(card="bad", faults=tuple(Fault(c, stage, "report") for c in CONFIGS))
    # The first stretch has two problems. The bad card is given up after three strikes, one or two
    # of them in the next stretch, of which the other card holds one problem until then.
    turns = (Turn("screen", "bad.report"), Turn("screen", "bad.report", MAX_STRIKES, nth=3))
    turns = turns if stage == "screen" else ()
    bed.collect(bad, bed.factory(card="good", start_after="bad.report", turns=turns))
    assert bed.failing() == set()
    assert failed(bed.rows()) == {}
    assert {card for card, _ in bed.troubles()} == {"bad"}
    given_up = stage == "screen"  # there is one job of checks
    assert bed.progress[-1].gpus == 2 - given_up
    if given_up:
        assert {row.device for row in bed.rows()} == {"good"}


def test_one_card_that_blames_a_kernel_twice_is_one_card(bed: Bed) -> None:
    blames = bed.factory(card="blames", faults=(Fault(CONFIGS[2], "check", "report"),))
    killed = (Fault(CONFIGS[2], "check", "kill", times=1),)
    bed.collect(blames, bed.factory(card="killed", faults=killed, start_after="blames.report"))
    assert bed.failing() == set()
    assert Counter(card for card, _ in bed.troubles()) == {"blames": 1, "killed": 1}


def test_a_card_that_blamed_a_bad_kernel_first_is_kept(bed: Bed) -> None:
    """It did so on each problem of a stretch before the other card, which agrees, could."""
    bad = (Fault(CONFIGS[2], "screen", "exit"),)
    first = bed.factory(card="first", faults=bad, together=2)
    # At each problem first amid the others, then by itself.
    last = Turn("screen", "first.exit", 2)
    later = bed.factory(card="later", faults=bad, turns=(last,), together=2)
    bed.collect(first, later)
    assert bed.failing() == {_key(CONFIGS[2])}
    assert bed.progress[-1].gpus == 2
    assert bed.troubles() == []


@pytest.mark.parametrize("stage", ["screen", "verify"])
def test_what_never_fits_into_memory_is_left_to_another_run(bed: Bed, stage: str) -> None:
    big, small = PROBLEMS[0], PROBLEMS[1:]
    # The fastest at it, so that it is timed again.
    huge = min((QuackConfig(128, 128, 64, s) for s in range(2, 7)), key=partial(microseconds, big))
    workload = {big: (huge, *CONFIGS), **dict.fromkeys(small, CONFIGS)}
    faults = (Fault(huge, stage, "memory"),)
    both = [bed.factory(card=card, faults=faults, together=2) for card in ("left", "right")]
    bed.collect(*both, workload=workload)
    assert failed(bed.rows()) == {}
    assert bed.progress[-1].gpus == 2
    reasons = [why for _, why in bed.troubles()]
    assert len(reasons) == MAX_STRIKES
    assert str(big) in reasons[-1] and "CUDA out of memory" in reasons[-1]
    assert {row.m for row in bed.rows() if row.stage == stage} == {p.m for p in small}
    bed.collect(workload=workload)
    assert bed.verified() == ALL_VERIFIED


class LosingEngine(ThreadEngine):
    """Takes some failures for losses of the host."""

    def __init__(self, left: int):
        super().__init__()
        self.left = left

    def news(  # type: ignore[override]
        self, workers: Sequence[ThreadWorker], seconds: float
    ) -> Iterator[tuple[ThreadWorker, Result | Failed | Lost]]:
        for worker, news in super().news(workers, seconds):
            if isinstance(news, Failed) and self.left:
                self.left -= 1
                yield worker, Lost(news.reason)
            else:
                yield worker, news


def test_no_kernel_is_blamed_for_a_worker_that_is_lost_with_its_host(bed: Bed) -> None:
    engine = LosingEngine(MOST_LOSSES)
    bed.collect(bed.factory(faults=(Fault(CONFIGS[0], "check", "exit"),)), engine=engine)
    # Each time it was given to a new worker; the first failure after that is its own.
    assert engine.left == 0
    assert [card for card, _ in bed.troubles()] == ["card"] * MOST_LOSSES
    assert failed(bed.rows()).keys() == {CONFIGS[0].name}
    assert jobs(bed.logged())["check", CONFIGS[1].name] == 1


def test_workers_that_are_lost_again_and_again_end_the_run_in_one_line(bed: Bed) -> None:
    fault = Fault(CONFIGS[0], "check", "exit")
    with pytest.raises(TilecastError, match=f"^{MOST_LOSSES + 1} workers .*{CRASHED}") as caught:
        bed.collect(bed.factory(faults=(fault,)), engine=LosingEngine(99))
    assert "\n" not in str(caught.value)
    assert (bed.rows(), bed.checks()) == ([], {})


class ShortEngine(ThreadEngine):
    """Has no card for a worker that is slow to start, as a cluster whose node is gone."""

    def news(
        self, workers: Sequence[ThreadWorker], seconds: float
    ) -> Iterator[tuple[ThreadWorker, Result | Failed]]:
        for worker in workers:
            if isinstance(worker.factory, FakeFactory) and worker.factory.slow_start:
                worker.card = ""
        yield from super().news(workers, seconds)


def test_no_job_is_kept_for_a_card_that_may_never_come(bed: Bed) -> None:
    hot = Fault(None, "screen", "throttle", times=1)
    absent = bed.factory(card="absent", slow_start=FOR_EVER)
    bed.collect(bed.factory(card="here", faults=(hot,)), absent, engine=ShortEngine())
    # What the only card failed at is its own again.
    assert bed.troubles() == [("here", THROTTLES)]
    assert bed.verified() == ALL_VERIFIED
    assert bed.progress[-1].gpus == 1


@pytest.mark.parametrize("stage", ["check", "screen", "race", "verify"])
def test_no_kernel_is_blamed_when_somebody_kills_its_process(bed: Bed, stage: str) -> None:
    bed.collect(bed.factory(faults=(Fault(CONFIGS[2], stage, "kill", times=1),)))
    assert bed.troubles() == [("card", KILLED)]
    assert bed.failing() == set()
    undisturbed = Bed(bed.folder / "undisturbed")
    undisturbed.collect()
    assert bed.rows() == undisturbed.rows()


@pytest.mark.parametrize("stage", ["check", "screen"])
@pytest.mark.parametrize("action", ["memory", "disk", "pruned"])
def test_no_kernel_is_blamed_for_what_the_machine_lacks(bed: Bed, stage: str, action: str) -> None:
    # Each twice: the second time kernels may run one by one, each with its name.
    bed.collect(bed.factory(faults=(Fault(CONFIGS[2], stage, action, times=2),)))
    assert [card for card, _ in bed.troubles()] == ["card"] * 2
    assert bed.failing() == set()
    assert failed(bed.rows()) == {}
    assert (PROBLEMS[0].m, "screen") in timed(bed.rows(), CONFIGS[2].name)


def test_a_worker_that_is_killed_as_it_starts_gets_a_successor(bed: Bed) -> None:
    bed.collect(bed.factory(card="slow", killed_starts=2))
    assert [why for _, why in bed.troubles()] == [KILLED] * 2
    assert bed.verified() == ALL_VERIFIED
    with pytest.raises(TilecastError, match="no kernel to blame .*out of memory"):
        Bed(bed.folder / "again").collect(bed.factory(card="dead", killed_starts=MAX_STRIKES))


def test_a_worker_that_is_killed_again_and_again_ends_the_run(bed: Bed) -> None:
    with pytest.raises(TilecastError, match="no kernel to blame .*out of memory"):
        bed.collect(bed.factory(faults=(Fault(CONFIGS[2], "screen", "kill"),)))
    # The third time the problem is left for another run, which is no strike.
    assert len(bed.troubles()) == MAX_STRIKES + 1
    assert bed.failing() == set()
    bed.collect()
    assert bed.verified() == ALL_VERIFIED


@pytest.mark.parametrize("stage", ["screen", "race", "verify"])
def test_what_a_throttling_card_says_is_measured_again_elsewhere(bed: Bed, stage: str) -> None:
    # As cuBLAS's kernel runs, which is in every job; each card has one.
    hot = Fault(None, stage, "throttle", times=1)
    bed.collect(
        bed.factory(card="hot", faults=(hot,)),
        bed.factory(card="cool", turns=(Turn("screen", "hot.screen"),)),
    )
    rows = bed.rows()
    assert bed.troubles() == [("hot", THROTTLES)]
    undisturbed = Bed(bed.folder / "undisturbed")
    undisturbed.collect()
    assert [row[:12] for row in rows] == [row[:12] for row in undisturbed.rows()]
    # The job that it failed at is the other's, from its beginning.
    screened: dict[str, set[str]] = {}
    for line in bed.logged():
        if line[0] == "screen":
            screened.setdefault(line[2], set()).add(line[4])
    twice = [problem for problem, seen in screened.items() if len(seen) == 2]
    assert len(twice) == (stage == "race")
    assert {row.device for row in rows if str(GemmProblem(*row[:3])) in twice} <= {"cool"}
    moved = list(cards(rows).values()).count(({"hot"}, {"cool"}))
    assert moved == (stage == "verify")


def test_a_run_that_leaves_every_problem_to_another_run_says_so(bed: Bed) -> None:
    hot, workload = Fault(None, "screen", "throttle"), {PROBLEMS[0]: CONFIGS}
    for _ in range(2):  # with kernels to check, and without
        with pytest.raises(TilecastError, match="another run: the GPU throttles.*; allowed: "):
            bed.collect(bed.factory(faults=(hot,)), workload=workload)
    assert bed.rows() == []


@pytest.mark.parametrize("stage", ["screen", "verify"])
def test_a_card_that_is_gone_is_done_without(bed: Bed, stage: str) -> None:
    lost = Fault(CONFIGS[2], stage, "lose", times=1)
    # Enough is left to do when the other card does not come back for that to be heard.
    here = bed.factory(card="here", pace=0.05, turns=(Turn(stage, "lost.start", 2),))
    bed.collect(bed.factory(card="lost", faults=(lost,), together=2), here)
    assert bed.troubles() == [("lost", "RuntimeError: no CUDA-capable device is detected")]
    rows = bed.rows()
    assert failed(rows) == {}
    assert bed.verified() == ALL_VERIFIED
    found = Counter(row.device for row in rows)
    assert found["here"] > found["lost"]
    assert bed.progress[-1].gpus == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"broken": "CUDA out of memory"}, "RuntimeError: CUDA out of memory"),
        # Nobody could leave cuBLAS's kernel out.
        ({"faults": (Fault(None, "time", "exit"),)}, CRASHED),
    ],
)
def test_a_failure_with_no_kernel_to_blame_ends_the_run_in_one_line(
    bed: Bed, changes: dict, reason: str
) -> None:
    with pytest.raises(TilecastError, match=f"no kernel to blame .{reason}.*; allowed: ") as caught:
        bed.collect(bed.factory(**changes))
    assert "\n" not in str(caught.value)
    assert all(row.failure is None for row in bed.rows())
