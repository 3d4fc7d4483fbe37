"""The problems that kernel speed is measured on are new to the shipped model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import held_out_problems
import pytest

from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.problems.language_models import DEEPSEEK_V3, MODELS
from tilecast.data_collection.problems.suites import suite
from tilecast.heuristics.problem import GemmProblem

ROOT = Path(__file__).parents[3]
DATA = ROOT / "data_collection" / "data" / "h200.parquet"


@pytest.fixture(scope="module")
def problems() -> tuple[GemmProblem, ...]:
    return held_out_problems.PROBLEMS


@pytest.fixture(scope="module")
def random_problems() -> tuple[GemmProblem, ...]:
    return held_out_problems.RANDOM


def _size(problem: GemmProblem) -> str:
    limits = (16, 64, 256, 1024)
    return next((f"<= {limit}" for limit in limits if problem.m <= limit), "larger")


def test_no_family_was_trained_on(
    problems: tuple[GemmProblem, ...], random_problems: tuple[GemmProblem, ...]
) -> None:
    rows = read_dataset(DATA).rows
    trained = set(zip(rows["n"].tolist(), rows["k"].tolist(), strict=True))
    assert len(trained) > 90
    assert not {problem.family for problem in (*problems, *random_problems)} & trained


def test_no_random_family_is_one_that_is_collected(
    random_problems: tuple[GemmProblem, ...],
) -> None:
    assert not {problem.family for problem in random_problems} & {p.family for p in suite("random")}


def test_random_problems_are_of_all_sizes_alike(random_problems: tuple[GemmProblem, ...]) -> None:
    assert len({problem.family for problem in random_problems}) == len(random_problems) == 65
    assert set(Counter(map(_size, random_problems)).values()) == {13}
    for extents in ([p.n for p in random_problems], [p.k for p in random_problems]):
        assert all(256 <= extent <= 32768 and extent % 8 == 0 for extent in extents)


def test_no_family_is_of_a_model_that_training_drew_from(
    problems: tuple[GemmProblem, ...],
) -> None:
    known = {family for model in MODELS for family in model.families()} | set(DEEPSEEK_V3)
    assert not {problem.family for problem in problems} & known


def test_at_least_sixty_problems_of_as_many_families(problems: tuple[GemmProblem, ...]) -> None:
    assert len(problems) >= 60
    assert len({problem.family for problem in problems}) == len(problems)


def test_every_size_has_its_share(problems: tuple[GemmProblem, ...]) -> None:
    counts = Counter(map(_size, problems))
    assert len(counts) == 5
    assert min(counts.values()) >= len(problems) // 6
    assert min(p.m for p in problems) == 1
    assert max(p.m for p in problems) == 8192


def test_any_five_in_a_row_are_of_five_sizes(problems: tuple[GemmProblem, ...]) -> None:
    for start in range(len(problems) - 4):
        assert len({_size(problem) for problem in problems[start : start + 5]}) == 5
