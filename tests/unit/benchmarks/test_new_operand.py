"""The simulation of new operands: what is known, what is held out, and how parts are pooled."""

from __future__ import annotations

import new_operand
import pytest

from tilecast.models.learning.labels import ProblemLabels


def test_new_operands_are_known_by_whole_families_and_scored_on_others(
    synthetic_table: list[ProblemLabels], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = synthetic_table[0].problem.operands.text
    monkeypatch.setattr(new_operand, "PARTS", 3)
    held_out: list[tuple] = []
    for part in range(3):
        pool, others, held = new_operand.dealt(synthetic_table, new_operand.Round(kind, part))
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
    assert len(held_out) == len(set(held_out)) == 6


def test_figures_pool_the_parts() -> None:
    def row(count: int, how: str, lost: list[float]) -> dict:
        regret = {str(k): lost for k in (1, 3, 5)}
        return {"kind": "a", "count": count, "known": count, "how": how, "regret": regret}

    rows = [row(0, "beside others", [0.1]), row(0, "beside others", [0.3])]
    found = new_operand.figures([*rows, row(15, "alone", [0.2])])["a"]
    assert found["scored"] == 2
    assert found["known"]["0"]["beside others"]["3"]["max"] == 0.3
    assert found["known"]["15"] == {
        "problems": 15,
        "minutes": 0.4,
        "alone": found["known"]["15"]["alone"],
    }
