"""What the locked set says of a model, and that each time that it is asked is written down."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import learner_tables
import locked_set
import numpy as np
import pytest
from measure_locked_set import CHANCE, VERY_FIRST, Chosen, lacking

from tilecast.data_collection.dataset.dataset import read_dataset, write_dataset
from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.problems.suites import suite
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.candidates import candidates
from tilecast.models.features.features import leading
from tilecast.models.learning.labels import label_table
from tilecast.models.runtime.learned import LearnedHeuristic
from tilecast.models.runtime.nearest_gpu import shipped_for
from tilecast.models.runtime.ranker import ENTRANTS

GPU = hardware("H200")
PROBLEMS = [problem for problem in suite("locked") if problem.operands == LINEAR_BF16][:4]
SECOND, FIRST, REST, LIBRARY = 10.0, 11.0, 15.0, 12.1
PASSES = (("sustained", "screen"), ("burst", "race"), ("sustained", "race"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each problem the second choice is the fastest, and of one the first was not measured."""
    folder = tmp_path_factory.mktemp("locked")
    model = LearnedHeuristic(shipped_for(GPU), "burst")
    with closing(MeasurementStore(folder / "store")) as store:
        run = {"gpu": "H200", "date": "2026-11-27", "command": "test", "gpus": [], "versions": {}}
        store.begin_run(run)
        for problem in PROBLEMS:
            every = candidates(problem, GPU)
            chosen = Chosen(PROBLEMS, GPU)(problem, every)
            first, second, *others = model.rank(problem, every, limit=5)
            times = dict.fromkeys([*chosen, *others], REST) | {first: FIRST, second: SECOND}
            if problem == PROBLEMS[0]:
                del times[first]
            found = {**times, None: LIBRARY}
            rows = [
                Measurement(problem, config, regime, stage, time, None, 3)
                for regime, stage in PASSES
                for config, time in found.items()
            ]
            store.add(rows, "card")
        write_dataset(store.export(), folder / "locked.parquet")
    return folder / "locked.parquet"


def test_only_problems_are_measured_that_the_data_lack(data: Path) -> None:
    known, choose = read_dataset(data), Chosen(PROBLEMS, GPU)
    every = lacking(replace(known, rows=known.rows.iloc[:0]), choose)
    assert [*every[: len(PROBLEMS)]] == PROBLEMS
    assert lacking(known, choose) == every[len(PROBLEMS) :]


def test_problems_are_measured_anew_of_which_a_chosen_family_has_no_time(data: Path) -> None:
    known, choose = read_dataset(data), Chosen(PROBLEMS, GPU)
    apart = known.rows["config"].str.startswith("memory_").fillna(False)
    grown = {*replace(known, rows=known.rows[apart]).problems()}
    assert 0 < len(grown) < len(PROBLEMS)
    without = replace(known, rows=known.rows[~apart])
    assert {*lacking(without, choose)} == {*lacking(known, choose), *grown}


def test_no_model_chooses_what_is_measured_and_few_kernels_are_compiled() -> None:
    choose, found = Chosen(PROBLEMS, GPU), set()
    for problem in PROBLEMS:
        every = candidates(problem, GPU)
        order = every.take(leading(problem, every, GPU, len(every))[0])
        chosen = set(choose(problem, every))
        found |= chosen
        assert set(order[:VERY_FIRST]) <= chosen
        assert len(chosen - set(order[:ENTRANTS])) <= CHANCE
    assert len(found) == len(choose.kernels) <= VERY_FIRST * len(PROBLEMS)


def test_choices_are_scored_among_all_candidates_and_beside_cublas(data: Path) -> None:
    table = label_table(read_dataset(data))
    found = locked_set.scored(None, table, GPU)
    every = found["regret and speed"]["burst"]["all"]
    assert every["problems"] == 4
    assert every["regret"]["1"]["geomean"] == pytest.approx(1.1**0.75 - 1, abs=1e-5)
    assert every["regret"]["1"]["max"] == pytest.approx(0.1, abs=1e-5)
    assert every["regret"]["3"]["geomean"] == 0
    assert every["best over cuBLAS"]["geomean"] == pytest.approx(1.21, abs=1e-5)
    assert every["best over cuBLAS"]["error"] == 0
    assert every["first or cuBLAS over cuBLAS"]["problems"] == 4
    assert found["not measured of the first five"]["burst"] == 1
    assert found["best was drawn by chance"] == 0
    reached = found["bars"]["burst"]
    assert reached["regret@3 at most 0.2%"] and not reached["regret@1 at most 0.7%"]
    assert reached["best at least 1.08x cuBLAS"] and not reached["worst at k = 1 at most 8%"]
    shown = learner_tables.locked({"locked_set": found | {"asked": 1}}).splitlines()
    assert shown[2].startswith("| burst, all | 4 | 7.4 ± ")


def test_each_time_that_it_is_asked_is_written_down(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["locked_set.py", "--data", str(data), "--out", str(out)])
    for times in (1, 2):
        locked_set.main()
        result = json.loads(out.read_text())
        assert result["figures"]["asked"] == len(result["rows"]) == times
    first, again = result["rows"]
    assert first["model"] == again["model"] == shipped_for(GPU).digest
    assert first["commit"] and first["date"] <= again["date"]
    assert np.shape(first["regret"]["robust"]) == (3,)
