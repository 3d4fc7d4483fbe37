"""`tilecast report`: what is in the file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tilecast.cli.commands import evaluate, report
from tilecast.cli.options.output_paths import DATA
from tilecast.data_collection.dataset.dataset import COLUMNS, Dataset, write_dataset
from tilecast.models.runtime.artifact import SHIPPED, load, save
from tilecast.reporting.page import Section, page
from tilecast.reporting.table import Table

Answer = Callable[..., dict]
Refused = Callable[..., str]

MOST_BYTES = 5_000_000
MODEL = SHIPPED / "H200"
TITLES = [
    "What was measured",
    "Coverage",
    "Winners by region, robust",
    "The best config beside cuBLAS",
    "Label noise",
    "Drift by card",
    "Cards beside each other",
]


def _figures(text: str) -> list[dict]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return list(map(json.loads, found))


def test_report_of_a_data_set(answer: Answer, data: str, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    asked = ("report", data, "--out", str(out), "--model", str(MODEL), "--no-scores")
    document = answer(*asked)
    assert document["sections"] == [*TITLES, "Where the model is unsure"]
    assert document["problems"] == 24
    text = out.read_text()
    assert document["bytes"] == len(text.encode()) <= MOST_BYTES
    assert "24 problems of 6 (n, k) families" in text
    coverage = _figures(text)[0]
    assert len(coverage["data"][0]["x"]) == 24
    assert not re.search(r'(src|href)="(?!#)', text)
    again = tmp_path / "again.html"
    answer(*("report", data, "--out", str(again), *asked[4:]))
    assert again.read_bytes() == out.read_bytes()


def test_a_data_set_of_which_nothing_was_measured_is_refused(
    refused: Refused, synthetic_dataset: Dataset, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.parquet"
    nothing = synthetic_dataset.rows.iloc[:0]
    write_dataset(Dataset(nothing, synthetic_dataset.provenance), empty)
    told = refused("report", str(empty), "--out", str(tmp_path / "report.html"))
    assert told.startswith("the data set has no config with a time to learn from; allowed: ")


def test_report_scores_what_evaluate_does(
    answer: Answer, few_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a data set of several operands those of a plain layer, whatever else there is."""
    every = evaluate.scorable_heuristics
    rows = few_dataset.rows
    int8 = rows.assign(operands="int8:rcr>int32")
    both = pd.concat([rows, int8], ignore_index=True).astype(COLUMNS)
    write_dataset(Dataset(both, few_dataset.provenance), tmp_path / "both.parquet")
    asked = {"random", "nvMatmulHeuristics"}
    monkeypatch.setattr(
        evaluate,
        "scorable_heuristics",
        lambda gpu: {name: make for name, make in every(gpu).items() if name in asked},
    )
    data, out = str(tmp_path / "both.parquet"), tmp_path / "report.html"
    answer("report", data, "--out", str(out), "--jobs", "1")
    text = out.read_text()
    assert "12 problems of 6 (n, k) families, robust." in text
    line, *_ = _named(text, "random")
    only = ("--only", "random", "--power", "robust")
    scored = answer("evaluate", "--data", data, *only)
    rows = [row for row in scored["regret"] if row["problems"] == "all"]
    assert line["y"] == [row["geomean"] for row in rows]
    int8 = answer("evaluate", "--data", data, "--operands", "int8:rcr>int32", "--power", "burst",
                  "--only", "nvMatmulHeuristics", "--only", "random")  # fmt: skip
    assert {row["heuristic"] for row in int8["regret"]} == {"random"}


def _named(text: str, name: str) -> list[dict]:
    traces = [trace for figure in _figures(text) for trace in figure["data"]]
    return [trace for trace in traces if trace.get("name") == name]


def test_report_of_a_model_says_what_its_manifest_does(
    answer: Answer, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "shipped_data", lambda gpu: None)
    model, out = SHIPPED / "H100", tmp_path / "report.html"
    assert answer("report", str(model), "--out", str(out))["sections"] == ["The model"]
    manifest = json.loads((model / "manifest.json").read_text())
    regret = manifest["facts"]["held_out"]["tilecast"]["robust"]["regret@1"]["geomean"]
    assert f"{regret:.2%}" in out.read_text()
    assert "--model is for" in refused("report", str(model), "--out", str(out), "--model", ".")


def test_report_of_a_model_shows_the_measurements_beside_it_that_it_learned_from(
    answer: Answer,
    data: str,
    few_dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "shipped_data", lambda gpu: Path(data))
    model, out = tmp_path / "model", tmp_path / "report.html"
    save(
        replace(
            load(MODEL), facts={"dataset": {"sha256": ""}, "learned_from": [few_dataset.digest]}
        ),
        model,
    )
    small = few_dataset.rows.query("m == 64").reset_index(drop=True)
    shown = []
    # Other measurements than those that the model learned from are not its own.
    for beside in (None, few_dataset, Dataset(small, few_dataset.provenance)):
        if beside:
            write_dataset(beside, model / DATA)
        document = answer("report", str(model), "--out", str(out))
        shown.append(document["problems"])
    assert shown == [24, 12, 24]
    assert document["sections"] == ["The model", *TITLES, "Where the model is unsure"]


def test_report_writes_over_nothing(refused: Refused, data: str) -> None:
    before = Path(data).read_bytes()
    line = refused("report", data, "--out", data)
    assert "this command reads, keeps or writes" in line
    assert "allowed: a file of its own; name another one" in line
    assert Path(data).read_bytes() == before


def test_what_is_too_little_to_score_is_shown(
    answer: Answer, few_dataset: Dataset, tmp_path: Path
) -> None:
    file, out = tmp_path / "few.parquet", tmp_path / "report.html"
    rows = few_dataset.rows.query("k == 4096").reset_index(drop=True)
    write_dataset(Dataset(rows, few_dataset.provenance), file)
    assert answer("report", str(file), "--out", str(out))["problems"] == 4
    assert "Not scored: 2 (n, k) families are too few for 5 folds" in out.read_text()


def test_without_plotly_it_says_what_to_install(
    refused: Refused, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    line = refused("report", data, "--out", str(tmp_path / "a.html"))
    assert line.startswith("plotly is not installed; allowed: ")
    assert "pip install 'plotly>=6,<8'" in line


def test_text_is_shown_as_it_is() -> None:
    title = "</title><script>alert(1)</script>$links"
    figure = {"data": [{"name": "</script><b>"}], "layout": {"height": 100}}
    table = Table(title, {"<i>": "", "n": ".1f"}, [("<u>", 1.25), ("", None)])
    text = page(title, [Section(title, [title, table, figure])])
    for bad in ("<script>alert", "<i>", "<u>", "</script><b>"):
        assert bad not in text
    assert '<td class="number">1.2</td>' in text
    assert _figures(text) == [figure]


def test_numbers_that_json_lacks_are_refused() -> None:
    figure = {"data": [{"y": [float("nan")]}], "layout": {"height": 100}}
    with pytest.raises(ValueError):
        page("", [Section("", [figure])])
