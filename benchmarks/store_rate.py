"""How many cards can one store keep up with? Jobs and rows that it takes a second.

``python benchmarks/store_rate.py`` writes what an H100 measured to a fresh store, a problem at a
time, as the collector does when a card has done a job: each is on disk before the next begins. A
store that is nearly empty is compared with one that holds so much already.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import runner
from runner import Row

from tilecast.data_collection.dataset.dataset import read_dataset, shipped_data
from tilecast.data_collection.dataset.measurement import REFERENCE, Measurement
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.families import parse_config

RESULTS = ("regime", "stage", "microseconds", "spread", "rounds", "failure")
PASSES = 12  # over all problems, each time of other batches: some 140,000 rows


def jobs(rows: pd.DataFrame, batch: int) -> Iterator[list[Measurement]]:
    """What was measured, problem by problem, as if of another batch."""
    for _, group in rows.groupby(list(PROBLEM_FIELDS)):
        yield [
            Measurement(
                GemmProblem(row["m"], row["n"], row["k"], batch),
                None if row["config"] == REFERENCE else parse_config(row["config"]),
                *(row[name] for name in RESULTS),
            )
            for row in group.to_dict("records")
        ]


def write(store: MeasurementStore, work: Iterator[list[Measurement]]) -> Row:
    """Write all jobs, and say how long they took."""
    before, seconds = store.count(), []
    for job in work:
        start = time.perf_counter()
        store.add(job, "card")
        seconds.append(time.perf_counter() - start)
    milliseconds = runner.quantiles(1e3 * np.array(seconds), p50=0.5, p99=0.99)
    return {
        "rows_there": before,
        "jobs_per_second": len(seconds) / sum(seconds),
        "rows_per_second": (store.count() - before) / sum(seconds),
        "milliseconds": milliseconds,
    }


def main() -> None:
    """Write, and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    path = shipped_data(hardware("H100"))
    assert path is not None
    rows = read_dataset(path).rows
    rows = rows.astype(object).where(rows.notna(), None)
    with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
        store = MeasurementStore(Path(folder) / "store")
        store.begin_run({"gpu": "H100"})
        found = [write(store, jobs(rows, batch)) for batch in range(1, PASSES + 1)]
        store.close()
    runner.write(options, {"passes": PASSES}, {"first": found[0], "last": found[-1]})


if __name__ == "__main__":
    main()
