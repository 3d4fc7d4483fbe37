"""Which problems the learner's benchmarks train on, ask about and leave out, and their figures."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import invariant_regret
import learn_on_gpu
import new_operand
import numpy as np
import operator_speed
import pytest
import simulation
from operand_transfer import compared
from selection_regret import kinds

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import config_table
from tilecast.kernels.families import parse_config
from tilecast.models.learning.labels import ProblemLabels

OTHER = GemmOperands.parse("bf16:crr")


def _labels(problem: GemmProblem) -> Any:
    return SimpleNamespace(problem=problem, elsewhere=None)


@pytest.fixture
def table() -> list[Any]:
    """Labels of ten (n, k) with three m each, of which nothing but the problem is known."""
    families = [(64 * i, 128 * i) for i in range(1, 11)]
    return [_labels(GemmProblem(m, *nk)) for nk in families for m in (16, 64, 256)]


@pytest.fixture
def mixed(table: list[Any]) -> list[Any]:
    """The same, every third of other operands."""
    return [
        one if i % 3 else _labels(replace(one.problem, operands=OTHER))
        for i, one in enumerate(table)
    ]


def test_every_problem_is_production_once_and_unseen_once(table: list[Any]) -> None:
    parts = simulation.parts(table)
    assert len(parts) == 5
    for which in ("production", "unseen"):
        problems = [labels.problem for part in parts for labels in getattr(part, which)]
        assert len(problems) == len(set(problems)) == len(table)
    for part in parts:
        families = [{labels.problem.family for labels in one} for one in part]
        assert sum(map(len, families)) == len(set.union(*families)) == 10
        assert sum(map(len, part)) == len(table)


def test_production_is_what_inductor_multiplies_by_a_gemm(table: list[Any]) -> None:
    first = table[0].problem
    changes: list[dict[str, Any]] = [{"m": 1}, {"batch": 2}, {"operands": OTHER}]
    others = [_labels(replace(first, **change)) for change in changes]
    found = learn_on_gpu.production([*others, *table])
    asked = [labels.problem for labels in table]
    assert set(found) == set(asked)
    assert found != asked
    assert found == learn_on_gpu.production([*others, *table])


def test_new_operands_are_known_by_whole_families_and_scored_on_others(
    table: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_operand, "PARTS", 3)
    held_out: list[tuple] = []
    for part in range(3):
        asked = new_operand.Round(LINEAR_BF16.text, part)
        pool, others, held = new_operand.dealt(table, asked)
        assert not others  # the table has one kind
        known = new_operand.first(pool, 5)
        families = {labels.problem.family for labels in known}
        assert len(known) >= 5
        assert known == [labels for labels in pool if labels.problem.family in families]
        assert new_operand.first(pool, 1000) == pool
        assert not new_operand.first(pool, 0)
        unseen = {labels.problem.family for labels in held}
        assert not unseen & {labels.problem.family for labels in pool}
        held_out += unseen
    assert len(held_out) == len(set(held_out)) == 10


def test_each_model_is_asked_about_every_problem_once_and_knows_none_of_its_family(
    mixed: list[Any],
) -> None:
    by_kind, arms = kinds(mixed), compared(mixed)
    assert list(by_kind) == sorted([OTHER.text, LINEAR_BF16.text])
    assert all(sum(masks) == 1 for masks in zip(*by_kind.values(), strict=True))
    assert list(arms) == ["all", "without", LINEAR_BF16.text]
    for splits in arms.values():
        assert sorted(np.concatenate([asked for _, asked in splits])) == list(range(len(mixed)))
        for seen, asked in splits:
            families = [{mixed[i].problem.family for i in places} for places in (seen, asked)]
            assert not set.intersection(*families)
    texts = np.array([labels.problem.operands.text for labels in mixed])
    assert all(len({*texts[seen]}) == 2 for seen, _ in arms["all"])
    assert all({*texts[seen]} == {LINEAR_BF16.text} for seen, _ in arms[LINEAR_BF16.text])
    for seen, asked in arms["without"]:
        (kind,) = {*texts[asked]}
        assert kind not in texts[seen]


@pytest.mark.parametrize(
    ("text", "operator", "others"),
    [
        ("bf16:rcr", "matmul", False),
        ("bf16:rcr:bias", "addmm", False),
        ("bf16:rcr:bias+gelu", "addmm", True),
        ("bf16:rcr:bias+gelu-tanh", "_addmm_activation", False),
        ("bf16xint8:rcr:column-scales", "matmul", True),
        ("int8:rcr>bf16:row-scales", "_int_mm", True),
        ("e4m3:rcr>bf16:row-scales", "_scaled_mm", False),
    ],
)
def test_operator_and_whether_it_takes_others(text: str, operator: str, others: bool) -> None:
    found = operator_speed.library(GemmOperands.parse(text))
    assert found == {"operator": operator, "others": others}


def test_regret_is_counted_among_the_kernels_that_agree() -> None:
    names = ("64x64x64_c1x1x2_s12_coop_o1_rm8", "64x64x64_c1x1x1_s12_coop_o1_rm8")
    configs = tuple(map(parse_config, (*names, "64x64x64_c1x1x4_s12_coop_o1_rm8")))
    times = {regime: np.array([1.0, 2.0, 3.0]) for regime in ("burst", "sustained")}
    library = {"burst": 4.0, "sustained": 4.0}
    problem, gpu = GemmProblem(16, 64, 4096), hardware("H200")
    every = config_table(configs, LINEAR_BF16).all()
    labels = ProblemLabels(problem, configs, times, times, library, every)
    own = invariant_regret.agreeing(labels, gpu)
    assert own.configs == tuple(own.candidates) == configs[1:]
    found = invariant_regret.figures([labels], [own], [(1, 0)])["m 1 to 16"]
    assert found["burst"]["best over best of all"]["geomean"] == 2.0
    assert found["burst"]["cuBLAS over best"]["geomean"] == 2.0
    assert found["burst"]["cuBLAS over first"]["geomean"] == pytest.approx(4 / 3, abs=1e-3)
    assert [found["regret"][k]["geomean"] for k in "13"] == [0.5, 0.0]
