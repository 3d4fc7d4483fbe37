"""Training: the same bytes again, held-out metrics that hold, and data that is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.data_collection.dataset.measurement import REFERENCE
from tilecast.data_collection.problems.suites import suite
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.learning.folds import folds
from tilecast.models.learning.labels import label_table
from tilecast.models.learning.targets import problem_features
from tilecast.models.learning.training import train
from tilecast.models.learning.training_sets import by_gpu, dataset_hardware
from tilecast.models.runtime.artifact import Artifact
from tilecast.models.runtime.learned import LearnedHeuristic
from tilecast.models.runtime.manifest import learned_families
from tilecast.models.runtime.objectives import OBJECTIVES


def test_each_data_set_that_was_joined_is_known_by_its_own_digest(
    few_dataset: Dataset, synthetic_dataset: Dataset, other_dataset: Dataset
) -> None:
    rows = other_dataset.rows.assign(rounds=other_dataset.rows["rounds"] + 1)
    other = Dataset(rows.astype(other_dataset.rows.dtypes), other_dataset.provenance)
    measured = by_gpu([few_dataset, other, synthetic_dataset, few_dataset])
    wanted = (few_dataset.digest, synthetic_dataset.digest, other.digest)
    assert measured.digests == wanted
    assert measured.dataset.digest not in wanted


def test_a_gpu_is_the_same_whose_rates_were_measured_anew(
    few_dataset: Dataset, synthetic_dataset: Dataset
) -> None:
    """What is added of it is its own: scored by, and decided on."""
    new = replace(hardware("H200"), name="H20", device_names=("NVIDIA H20",), sm_count=78)
    again = replace(new, dram_bytes_per_second=new.dram_bytes_per_second * 1.003)
    first, second = (
        Dataset(one.rows, one.provenance | _runs({"gpu": "H20", "hardware": gpu.facts()}))
        for one, gpu in ((few_dataset, new), (synthetic_dataset, again))
    )
    measured = by_gpu([first, second])
    assert measured.gpu == new
    assert measured.others == ()
    assert len(measured.dataset.rows) == len(few_dataset.rows) + len(synthetic_dataset.rows)


def test_what_failed_on_the_gpu_itself_is_never_chosen(
    few_dataset: Dataset, other_dataset: Dataset, few_trained: Artifact
) -> None:
    rows = few_dataset.rows
    failed = rows[rows["failure"].notna()]
    names = {config.name for config in few_trained.failing[LINEAR_BF16]}
    assert names == set(failed["config"])
    assert set(few_trained.failing) == {LINEAR_BF16}
    heuristic = LearnedHeuristic(few_trained)
    for problem in few_dataset.problems()[:3]:
        every = candidates(problem, hardware("H200"))
        assert names.isdisjoint(config.name for config in heuristic.rank(problem, every))
    measured = by_gpu([few_dataset, other_dataset])
    assert measured.others == (other_dataset,)
    assert measured.failing == few_trained.failing


def test_a_kernel_that_failed_stays_out_whatever_was_measured_later(few_dataset: Dataset) -> None:
    sound = few_dataset.rows.query("failure.isna()").reset_index(drop=True)
    later = Dataset(sound, {**few_dataset.provenance, "protocol_version": 9})
    measured = by_gpu([later, few_dataset])
    assert not measured.dataset.failing()
    assert measured.failing == few_dataset.failing() != {}


def test_what_was_trained_on_is_recorded(few_trained, few_dataset: Dataset) -> None:
    assert (few_trained.hardware, few_trained.operands) == (hardware("H200"), (LINEAR_BF16,))
    assert few_trained.name == "H200"
    assert few_trained.families == {"quack_sm90"}
    assert few_trained.facts["dataset"] == {
        "sha256": few_dataset.digest,
        "rows": len(few_dataset.rows),
        "problems": 12,
        "families": 6,
        "operands": {"bf16:rcr": 12},
        "dates": ["2026-11-21T00:00:00+00:00"],
    }
    assert {"numpy", "scikit-learn", "tilecast"} <= set(few_trained.facts["versions"])


def test_a_library_is_recorded_and_gets_nothing_where_it_was_never_timed(
    few_dataset: Dataset,
) -> None:
    run = few_dataset.provenance["runs"][0]
    gpus = [{"name": "NVIDIA H200", "driver_version": version} for version in ("581.2", "580.1")]
    known = run | {"gpus": gpus, "versions": {"torch": "2.11.0", "nvidia-cublas": "13.1"}}
    provenance = {**few_dataset.provenance, "runs": [run, known]}
    ours = few_dataset.rows.query(f"config != {REFERENCE!r}").reset_index(drop=True)
    learned = train(by_gpu([Dataset(ours, provenance)]), jobs=2)
    assert learned.deferral is None
    assert learned.facts["beside_library"] == {}
    problem = GemmProblem(512, 4096, 4096)
    choice = LearnedHeuristic(learned).first(problem, candidates(problem, hardware("H200")))
    assert not choice.deferred
    assert learned.facts["library"] == {"cuBLAS": ["13.1"], "driver": ["580.1", "581.2"]}


def test_held_out_metrics_are_those_of_a_model_that_learned(few_trained) -> None:
    held_out = few_trained.facts["held_out"]
    assert set(held_out) == {"tilecast"}
    for power in OBJECTIVES:
        metrics = held_out["tilecast"][power]
        assert metrics["regret@1"]["geomean"] < 0.15
        assert metrics["regret@5"]["geomean"] <= metrics["regret@1"]["geomean"]
        assert ("time_error" in metrics) == (power != "robust")
        intercept, slope = few_trained.calibration[power]
        assert 0 <= intercept < 0.15
        assert 0 < slope < 2


def test_another_gpu_teaches_and_decides_nothing(
    few_dataset: Dataset, other_dataset: Dataset, few_trained: Artifact
) -> None:
    rows = other_dataset.rows.copy()
    rows["operands"] = np.where(rows["n"] >= 4096, "bf16:rrr", "bf16:rcr")
    other = Dataset(rows.astype({"operands": "category"}), other_dataset.provenance)
    artifact = train(by_gpu([few_dataset, other]))
    assert artifact.facts["learned_from"] == [few_dataset.digest, other.digest]
    learned = {p.family for dataset in (few_dataset, other) for p in dataset.problems()}
    assert learned_families(artifact.facts) == learned
    assert "4096x4096" in artifact.facts["seen_families"]  # type: ignore[operator]
    assert artifact.hardware == hardware("H200")
    assert [*map(str, artifact.operands)] == ["bf16:rcr", "bf16:rrr"]
    assert [*map(str, artifact.measured)] == ["bf16:rcr"]
    assert artifact.facts["dataset"] == few_trained.facts["dataset"]
    assert artifact.facts["noise_floor"] == few_trained.facts["noise_floor"]
    assert artifact.facts["elsewhere"] == {
        "problems": len(other.problems()), "gpus": ["H100"], "sha256": [other.digest],
    }  # fmt: skip
    assert artifact.ranker.forest.pack() != few_trained.ranker.forest.pack()


def _with_configs(dataset: Dataset, allowed: Callable[[GemmProblem], int]) -> Dataset:
    """Of each problem so many of the configs that did not fail."""
    kept = {
        (*labels.problem.row(), config.name)
        for labels in label_table(dataset)
        for config in labels.configs[: allowed(labels.problem)]
    }
    keys = dataset.rows[[*PROBLEM_FIELDS, "config"]].itertuples(index=False, name=None)
    rows = dataset.rows.loc[[key in kept for key in keys]]
    return Dataset(rows.reset_index(drop=True), dataset.provenance)


def test_held_out_problems_of_one_config_give_a_slope(few_dataset: Dataset) -> None:
    table = label_table(few_dataset)
    asked = {table[i].problem for i in folds(table)[0][1]}
    some = _with_configs(few_dataset, lambda problem: 1 if problem in asked else 4)
    assert train(by_gpu([some])).calibration == dict.fromkeys(OBJECTIVES, (0.0, 1.0))


def test_problems_without_a_choice_are_refused(few_dataset: Dataset) -> None:
    alone = _with_configs(few_dataset, lambda problem: 1)
    with pytest.raises(TilecastError, match="none of the 12 problems has two configs with times; "):
        train(by_gpu([alone]))
    one = alone.problems()[0]
    train(by_gpu([_with_configs(few_dataset, lambda problem: 1 + (problem == one))]))


def test_nothing_is_learned_from_the_locked_suite(few_dataset: Dataset) -> None:
    by_chance = _as_locked(few_dataset, 8)
    assert by_gpu([by_chance]).parts == (by_chance,)
    with pytest.raises(TilecastError, match="9 problems of the locked suite, from which nothing "):
        by_gpu([few_dataset, _as_locked(few_dataset, 9)])


def _as_locked(dataset: Dataset, count: int) -> Dataset:
    """The same times, of which some are said to be of problems of the locked suite."""
    other = dict(zip(dataset.problems(), suite("locked")[:count], strict=False))
    rows, fields = dataset.rows, list(PROBLEM_FIELDS)
    problems = map(GemmProblem.from_row, rows[fields].itertuples(index=False))
    extents = [other.get(one, one) for one in problems]
    moved = rows.assign(**{name: [getattr(p, name) for p in extents] for name in "mnk"})
    return Dataset(moved.astype(rows.dtypes), dataset.provenance)


def test_features_are_those_of_the_gpu_that_was_measured(few_dataset: Dataset) -> None:
    ours, theirs = hardware("H200"), hardware("H100")
    here, there = label_table(few_dataset)[0], label_table(few_dataset, theirs)[0]
    assert np.array_equal(problem_features(there, ours), problem_features(here, theirs))
    assert not np.array_equal(problem_features(there, ours), problem_features(here, ours))


def _runs(*runs: object) -> dict:
    return {"runs": list(runs)}


@pytest.mark.parametrize(
    ("provenance", "message"),
    [
        (_runs(), r"names 0 GPU models \(\); allowed: one"),
        (
            _runs({"gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H100 80GB HBM3"}]}),
            "names 2 GPU models .*; allowed: one",
        ),
        (_runs({"gpu": "H200"}, {"gpu": "H100"}), "names 2 GPU models .*; allowed: one"),
        (_runs({"gpus": [{"name": "TPU"}]}), "gpu 'TPU' is not known; allowed: H200"),
        ({}, "does not say which GPU .*; allowed: runs that name theirs"),
        (_runs({"gpus": 3}), "does not say which GPU .*; allowed: runs that name theirs"),
        (_runs("H200"), "does not say which GPU .*; allowed: runs that name theirs"),
    ],
)
def test_a_data_set_must_name_one_known_gpu(
    provenance: dict, message: str, synthetic_dataset: Dataset
) -> None:
    with pytest.raises(TilecastError, match=message):
        dataset_hardware(Dataset(synthetic_dataset.rows, provenance))


def test_a_gpu_that_the_runs_describe_is_known(synthetic_dataset: Dataset) -> None:
    """Of two descriptions, whose rates were measured, the first one counts."""
    new = replace(hardware("H200"), name="H20", device_names=("NVIDIA H20",), sm_count=78)
    again = replace(new, dram_bytes_per_second=4.1e12)
    runs: list[dict] = [{"gpu": "H20", "hardware": gpu.facts()} for gpu in (new, again)]
    measured = Dataset(synthetic_dataset.rows, synthetic_dataset.provenance | _runs(*runs))
    assert dataset_hardware(measured) == new
    runs[0]["hardware"] |= {"sm_count": "many"}
    with pytest.raises(TilecastError, match=r"gpu 'H20' is not described \(wrong: sm_count\)"):
        dataset_hardware(Dataset(synthetic_dataset.rows, _runs(*runs)))
