"""What do shorter pauses save where whole problems are measured, and what do they cost?

``python benchmarks/protocol_pace.py`` on one GPU. Problems with random extents are measured whole,
screen, races and verification, with the model's first `CONFIGS` kernels and the library, by turns
in three ways: as protocol 3 did at first (`BEFORE`: 1 ms before each replay in burst, 0.1 s of
warming up before each timing under load), as `tilecast.data_collection.timing.gpu_session` does now, and
with 0.2 ms before each replay. Told of each way: rows a second; how well labels repeat (the race
against the verification); and its times against those of the first turn. The second turn of
`BEFORE` tells how far these repeat.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from unittest.mock import patch

import numpy as np
import pandas as pd
from held_out_problems import RANDOM
from inductor_timing import built
from label_noise import noise
from runner import Row, Sweep, quantiles

from tilecast.data_collection.dataset.measurement import REFERENCE, Measurement
from tilecast.data_collection.timing import gpu_session, protocol
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.runtime.learned import load_heuristic
from tilecast.reporting.noise import repeats

CONFIGS, PROBLEMS = 48, 10
BEFORE, NOW, SHORT = "before", "now", "short gaps"
WAYS = {
    BEFORE: {"GAP_PER_BUSY": float("inf"), "WARM_UP_PER_IDLE": float("inf")},
    NOW: {},
    SHORT: {"GAP_SECONDS": 2e-4},
}
TURNS = (*WAYS, *WAYS)


def measure(problem: GemmProblem) -> list[Row]:
    """A row for each turn: its seconds, and what was measured."""
    gpu = hardware("H200")
    heuristic = load_heuristic(gpu, problem.operands)
    configs = list(heuristic.rank(problem, candidates(problem, gpu), limit=CONFIGS))
    session = built(problem, configs)
    entrants = [*configs, None]
    session.bench(problem, careful=False).time(entrants, "burst", 1)  # kernels are loaded
    found = []
    for way in TURNS:
        with ExitStack() as stack:
            for name, value in WAYS[way].items():
                stack.enter_context(patch.object(gpu_session, name, value))
            start = time.perf_counter()
            rows = protocol.measure(session.bench(problem, careful=False), problem, entrants)
            raced = [row for row in rows if row.stage == "race"]
            rows += protocol.verify(session.bench(problem, careful=False), problem, raced)
            seconds = time.perf_counter() - start
        found.append({"way": way, "seconds": seconds, "rows": [_told(row) for row in rows]})
    return found


def _told(row: Measurement) -> list:
    name = row.config.name if row.config else REFERENCE
    return [name, row.regime, row.stage, row.microseconds]


def figures(rows: Sequence[Row]) -> Row:
    """Rows a second, label noise and times against the first turn, by way."""
    turns = [rows[turn :: len(TURNS)] for turn in range(len(TURNS))]
    found: Row = {}
    for way in WAYS:
        own = [row for row in rows if row["way"] == way]
        seconds = sum(row["seconds"] for row in own)
        found[way] = {
            "rows_per_second": sum(len(row["rows"]) for row in own) / seconds,
            "seconds_per_problem": seconds / len(own),
            "noise": noise(repeats(pd.concat([frame(row, n) for n, row in enumerate(own)]))),
        }
    for name, turn in ((NOW, 1), (SHORT, 2), ("repeated", len(WAYS))):
        found[f"{name} against before"] = against(turns[turn], turns[0])
    return found


def frame(row: Row, number: int) -> pd.DataFrame:
    """What one turn measured, as a data set has it; ``number`` tells turns of a problem apart."""
    columns = ("config", "regime", "stage", "microseconds")
    problem = ITEMS[row["problem"]]
    told = {"m": problem.m, "n": problem.n, "k": problem.k, "batch": number}
    found = pd.DataFrame(row["rows"], columns=columns)
    return found.assign(**told, operands=problem.operands.text)


def against(rows: Sequence[Row], others: Sequence[Row]) -> Row:
    """How far raced times are from those of another turn: of all at once, and of each beside that.

    Returns:
        By regime ``level``, the mean of each problem's; and quantiles of the sizes of the rest.
    """
    levels: dict[str, list[float]] = {}
    rest: dict[str, list[float]] = {}
    for row, other in zip(rows, others, strict=True):
        mine, theirs = _raced(row), _raced(other)
        for regime in sorted({regime for _, regime in mine}):
            keys = [key for key in mine if key in theirs and key[1] == regime]
            logs = np.log([mine[key] for key in keys]) - np.log([theirs[key] for key in keys])
            levels.setdefault(regime, []).append(float(np.median(logs)))
            rest.setdefault(regime, []).extend(abs(logs - np.median(logs)).tolist())
    return {
        regime: {
            "level": float(np.expm1(np.mean(levels[regime]))),
            **quantiles(rest[regime], p50=0.5, p90=0.9),
        }
        for regime in levels
    }


def _raced(row: Row) -> dict[tuple[str, str], float]:
    return {(name, regime): us for name, regime, stage, us in row["rows"] if stage == "race"}


ITEMS = {str(problem): problem for problem in RANDOM[:PROBLEMS]}
SETTINGS = {"configs": CONFIGS, "turns": TURNS}
SWEEP = Sweep("problem", ITEMS, lambda: nullcontext(measure), figures, 8.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
