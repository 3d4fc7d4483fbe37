"""The pace that `benchmarks/label_noise.py` tells: of a GPU, whatever the sessions of a store."""

from __future__ import annotations

from dataclasses import replace

import label_noise
import pytest

from tilecast.data_collection.dataset.dataset import Dataset


def _run(cards: str, seconds: float | None = None) -> dict:
    end = {} if seconds is None else {"end": {"seconds": seconds}}
    return {"gpus": [{"uuid_hash": card} for card in cards], **end}


def test_a_gpu_has_the_rows_and_the_seconds_of_its_own_runs(synthetic_dataset: Dataset) -> None:
    rows = synthetic_dataset.rows.iloc[:900].copy()
    # A and B have 200 each in two runs of one session, C 400 in another, D 100 in an untimed one.
    rows["device"] = ["A"] * 200 + ["B"] * 200 + ["C"] * 400 + ["D"] * 100
    rows["rounds"] = rows["rounds"].where(rows["device"] == "D", 3)
    runs = [_run("AB", 4.0), _run("AB", 6.0), _run("C", 20.0), _run("D")]
    dataset = replace(synthetic_dataset, rows=rows, provenance={"runs": runs})
    assert label_noise.pace(dataset) == {
        "measurements": 800,
        "gpus": 3,
        "gpu_seconds": 40.0,
        "measurements_per_second_per_gpu": 20.0,
        "replays_per_second_per_gpu": pytest.approx(60.0),
    }


def test_more_sessions_of_one_pace_are_no_slower_gpus(synthetic_dataset: Dataset) -> None:
    rows = synthetic_dataset.rows.iloc[:600].copy()
    rows["device"] = [f"card{place // 100}" for place in range(600)]
    runs = [{**_run("", 5.0), "gpus": [{"uuid_hash": f"card{card}"}]} for card in range(6)]
    dataset = replace(synthetic_dataset, rows=rows, provenance={"runs": runs})
    assert label_noise.pace(dataset)["measurements_per_second_per_gpu"] == 20.0


def test_each_protocol_has_the_rows_of_its_own_cards(synthetic_dataset: Dataset) -> None:
    rows = synthetic_dataset.rows.iloc[:900].copy()
    rows["device"] = ["A"] * 200 + ["B"] * 300 + ["C"] * 400
    runs = [{**_run("AB", 5.0), "protocol_version": 1}, {**_run("BC", 4.0), "protocol_version": 2}]
    dataset = replace(synthetic_dataset, rows=rows, provenance={"runs": runs})
    parts = label_noise.by_protocol(dataset)
    # B measured by both, and its rows do not say when.
    assert {version: len(part.rows) for version, part in parts.items()} == {1: 200, 2: 400}
    assert label_noise.pace(parts[2])["measurements_per_second_per_gpu"] == 100.0
