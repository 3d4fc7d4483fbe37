"""The measured truth of one problem, read from the data set without pandas, which loads slowly."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from tilecast.data_collection.dataset import (
    COLUMNS,
    DATASET_VERSION,
    METADATA_KEY,
    read_dataset,
)
from tilecast.data_collection.measurement import PASSES, REFERENCE
from tilecast.heuristics.problem import GemmProblem

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Truth:
    """What was measured for one problem in one power regime, in microseconds."""

    times: Mapping[str, float]
    """Config name to run time in the latest pass. The card is warmer or cooler from pass to pass,
    so the times of those that only an earlier one timed are brought to its level, as labels are."""
    best: str
    """The oracle: the fastest."""
    reference: float | None
    """Run time of the library's own kernel."""

    def slowdown(self, config: str) -> float | None:
        """Run time over the oracle's, less 1; None for a config without a time."""
        time = self.times.get(config)
        return None if time is None else time / self.times[self.best] - 1


def measured(path: Path, problem: GemmProblem) -> dict[str, Truth]:
    """Look a problem up in a data set.

    Args:
        path: Parquet file that `tilecast collect` exported.
        problem: what to look for.

    Returns:
        Regime to what was measured in it; empty when the data set does not have the problem.

    Raises:
        TilecastError: the file is absent, damaged or of another version.
    """
    passes: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(
        lambda: {stage: defaultdict(list) for stage in PASSES}
    )
    for config, regime, stage, microseconds in _rows(path, problem):
        passes[regime][stage][config].append(microseconds)
    found = {regime: _truth(by_stage) for regime, by_stage in passes.items()}
    return {regime: truth for regime, truth in found.items() if truth}


def _truth(by_stage: Mapping[str, Mapping[str, list[float]]]) -> Truth | None:
    times: dict[str, float] = {}
    for stage in reversed(PASSES):
        timed = {config: median(values) for config, values in by_stage[stage].items()}
        ratios = [times[c] / timed[c] for c in timed if c in times and c != REFERENCE]
        level = median(ratios) if ratios else 1.0
        times = {config: level * time for config, time in timed.items()} | times
    reference = times.pop(REFERENCE, None)
    return Truth(times, min(times, key=times.__getitem__), reference) if times else None


def _rows(path: Path, problem: GemmProblem) -> Iterator[tuple[str, str, str, float]]:
    """Config, regime, pass and microseconds of every measurement of the problem that succeeded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    extents = {"m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch}
    stored = problem.operands
    types = {"dtype": stored.dtype, "out_dtype": stored.out_dtype, "layout": stored.layout}
    try:
        file = pq.ParquetFile(path)
        facts = json.loads((file.schema_arrow.metadata or {})[METADATA_KEY])
        sound = facts["version"] == DATASET_VERSION and set(COLUMNS) <= set(file.schema_arrow.names)
        table = file.read(columns=[*extents, *types, *_VALUES, "failure"])
    except (OSError, pa.ArrowInvalid, KeyError, ValueError, TypeError):
        sound, table = False, None
    if table is None or not sound:
        # Slow, and knows how to say what is wrong.
        table = pa.Table.from_pandas(read_dataset(path).rows)
    table = table.combine_chunks()
    mine = np.logical_and.reduce(
        [_integers(table[name]) == value for name, value in extents.items()]
    )
    for start, stop in _runs(mine):
        for row in table.slice(start, stop - start).to_pylist():
            if row["failure"] is None and all(row[name] == types[name] for name in types):
                if not row["microseconds"] > 0:
                    read_dataset(path)
                yield tuple(row[name] for name in _VALUES)


_VALUES = ("config", "regime", "stage", "microseconds")


def _integers(column: pa.ChunkedArray) -> np.ndarray:
    """An int32 column without nulls; ``to_numpy`` would import pandas to say the same."""
    parts = [
        np.frombuffer(chunk.buffers()[1], np.int32, len(chunk), 4 * chunk.offset)
        for chunk in column.chunks
    ]
    return np.concatenate([np.empty(0, np.int32), *parts])


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """First and one after the last index of every run of true values."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
