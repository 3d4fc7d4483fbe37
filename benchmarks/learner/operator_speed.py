"""How fast is the fastest measured kernel beside PyTorch's operator, by kind of operands?

``python benchmarks/learner/operator_speed.py``; no GPU. PyTorch's time over that of a kernel in
the shipped data, where both are launches back to back in a CUDA graph. The kernels were chosen by
their times, so a first choice is somewhat slower.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import library_operator
from tilecast.models.learning.labels import ProblemLabels, label_table

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from runner import Row, ratios

FEWEST = 20
"""Problems that a kind needs for a figure."""


def figures(table: Sequence[ProblemLabels]) -> Row:
    """PyTorch's time over the fastest kernel's, by operands and regime."""
    kinds: dict[GemmOperands, list[ProblemLabels]] = {}
    for labels in table:
        if all(np.isfinite(labels.reference[regime]) for regime in REGIMES):
            kinds.setdefault(labels.problem.operands, []).append(labels)
    return {
        operands.text: library(operands) | {regime: _speed(found, regime) for regime in REGIMES}
        for operands, found in sorted(kinds.items(), key=lambda kind: kind[0].text)
        if len(found) >= FEWEST
    }


def library(operands: GemmOperands) -> Row:
    """The operator that PyTorch begins with, and whether it takes others, too."""
    operator, steps = library_operator(operands)
    scaled = bool(operands.scales) and operator != "_scaled_mm"
    others = scaled or operands.converted or steps < len(operands.epilogue)
    return {"operator": operator, "others": others}


def _speed(table: Sequence[ProblemLabels], regime: str) -> Row:
    theirs = [one.reference[regime] for one in table]
    return ratios(theirs, [one.truth[regime].min() for one in table])


if __name__ == "__main__":
    options = runner.parser(__file__, __doc__).parse_args()
    dataset = read_dataset(runner.DATA)
    settings = {"dataset": runner.facts(dataset), "fewest": FEWEST}
    runner.write(options, settings, figures(label_table(dataset)))
