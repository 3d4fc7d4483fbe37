"""Which problems rankers know, and are asked about, where operands are held out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from operand_transfer import compared
from selection_regret import kinds

from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.models.learning.labels import ProblemLabels

OTHER = GemmOperands.parse("bf16:crr")


def test_each_arm_asks_about_every_problem_once_and_knows_none_of_its_family(
    synthetic_table: list[ProblemLabels],
) -> None:
    table = [
        labels if i % 3 else replace(labels, problem=replace(labels.problem, operands=OTHER))
        for i, labels in enumerate(synthetic_table)
    ]
    by_kind, arms = kinds(table), compared(table)
    assert list(by_kind) == sorted([OTHER.text, LINEAR_BF16.text])
    assert all(sum(masks) == 1 for masks in zip(*by_kind.values(), strict=True))
    assert list(arms) == ["all", "without", LINEAR_BF16.text]
    for splits in arms.values():
        assert sorted(np.concatenate([asked for _, asked in splits])) == list(range(len(table)))
        for seen, asked in splits:
            families = [{table[i].problem.family for i in places} for places in (seen, asked)]
            assert not set.intersection(*families)
    texts = np.array([labels.problem.operands.text for labels in table])
    assert all(len({*texts[seen]}) == 2 for seen, _ in arms["all"])
    assert all({*texts[seen]} == {LINEAR_BF16.text} for seen, _ in arms[LINEAR_BF16.text])
    for seen, asked in arms["without"]:
        (kind,) = {*texts[asked]}
        assert kind not in texts[seen]
