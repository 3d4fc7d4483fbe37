"""The commands around a model: train, evaluate, predict, and compiling what it ranks first."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fixtures import PROVENANCE

from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, write_dataset
from tilecast.heuristics.hardware import GPUS, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.evaluation.evaluation import held_out, unfitted
from tilecast.models.evaluation.regret import regrets
from tilecast.models.learning.labels import label_table
from tilecast.models.runtime.artifact import load, save
from tilecast.models.runtime.learned import LearnedHeuristic, load_heuristic
from tilecast.models.runtime.manifest import digest_of
from tilecast.models.runtime.nearest_gpu import borrowed

Answer = Callable[..., dict]
Refused = Callable[..., str]

MEASURED = ("--m", "64", "--n", "4096", "--k", "4096")
UNMEASURED = ("--m", "48", "--n", "1024", "--k", "512")


@pytest.fixture(scope="module")
def data(synthetic_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    write_dataset(synthetic_dataset, path)
    return str(path)


@pytest.fixture
def model(model_folder: Path) -> str:
    return str(model_folder)


# ---- predict


@pytest.mark.parametrize("power", ["robust", "burst", "sustained"])
def test_predict_ranks_explains_and_shows_the_truth(
    answer: Answer, model: str, data: str, power: str
) -> None:
    document = answer(
        "predict", *MEASURED, "--model", model, "--data", data, "--power", power, "-k", "7"
    )
    problem = GemmProblem(64, 4096, 4096)
    names = {config.name for config in candidates(problem, GPUS[0])}
    ranking = document["ranking"]
    assert [entry["rank"] for entry in ranking] == list(range(1, 8))
    assert len({entry["config"] for entry in ranking} & names) == 7
    losses = [entry["predicted_slowdown"] for entry in ranking]
    assert losses == sorted(losses)
    assert document["candidates"] == len(names)
    assert document["roofline"]["bound"] == "memory"
    microseconds = problem.min_bytes / GPUS[0].dram_bytes_per_second * 1e6
    assert document["roofline"]["microseconds"] == pytest.approx(microseconds)
    assert len(document["reasons"]) >= 3
    for truth in document["measured"].values():
        assert truth["best"] in names
        assert truth["microseconds"] > 0
    for entry in ranking:
        for times in entry["measured"].values():
            assert times["slowdown"] is None or times["slowdown"] >= 0


def test_predict_does_without_measurements(answer: Answer, model: str, data: str) -> None:
    document = answer("predict", *UNMEASURED, "--model", model, "--data", data)
    assert document["measured"] == {}
    assert len(document["ranking"]) == 5
    assert all(entry["measured"] == {} for entry in document["ranking"])


def test_predict_shows_as_many_as_the_model_thinks_worth_compiling(
    answer: Answer, model: str, data: str
) -> None:
    document = answer("predict", *MEASURED, "--model", model, "--data", data, "-k", "auto")
    problem = GemmProblem(64, 4096, 4096)
    heuristic = load_heuristic(GPUS[0], problem.operands, folder=Path(model))
    wanted = heuristic.shortlist(problem, candidates(problem, GPUS[0]))
    names = [prediction.config.name for prediction in wanted]
    assert [entry["config"] for entry in document["ranking"]] == names


@pytest.mark.parametrize(
    ("operands", "name"), [("bf16:rcr", "torch.mm"), ("bf16:rcr:bias", "torch.addmm")]
)
def test_predict_shows_the_library(
    answer: Answer, model: str, data: str, operands: str, name: str
) -> None:
    asked = (*MEASURED, "--operands", operands, "--model", model, "--data", data)
    document = answer("predict", *asked)
    library, first = document["library"], document["ranking"][0]
    assert library["name"] == name
    assert library["at_least_over_first"] == pytest.approx(1, abs=0.2)
    expected = library["at_least_over_first"] * first["predicted_microseconds"]
    assert library["at_least_microseconds"] == pytest.approx(expected)
    assert isinstance(library["deferred"], bool)


def test_predict_shows_the_library_below_the_ranking(
    answer: Answer, model: str, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("predict", *MEASURED, "--model", model, "--data", data)
    library = answer(*asked)["library"]
    assert main([*asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if "torch.mm: " in line]
    least, over = library["at_least_microseconds"], library["at_least_over_first"]
    wanted = f"torch.mm: >= {least:.1f} us, {over:.2f}x the first, in nine cases of ten"
    assert row.strip().startswith(wanted)
    assert "5 of" in lines[0]
    fifth = next(i for i, line in enumerate(lines) if line.strip().startswith("5 "))
    assert lines[fifth + 1] == row


def test_predict_of_a_model_without_the_library_shows_none(
    answer: Answer, small_model, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(replace(small_model, deferral=None), tmp_path / "model")
    asked = (*MEASURED, "--model", str(tmp_path / "model"), "--data", data)
    library = answer("predict", *asked)["library"]
    assert (library["at_least_over_first"], library["deferred"]) == (None, False)
    assert main(["predict", *asked]) == 0
    assert "torch.mm: >=" not in capsys.readouterr().out


def test_predict_in_tables(model: str, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *MEASURED, "--model", model, "--data", data]) == 0
    text = capsys.readouterr().out
    for part in ("64x4096x4096 bf16:rcr on H200", "roofline", "measured in burst", "torch.mm"):
        assert part in text
    assert main(["predict", *UNMEASURED, "--model", model, "--data", data]) == 0
    assert "not in the data set" in capsys.readouterr().out


def test_predict_loads_nothing_slow(model: str, data: str) -> None:
    """What makes a cold start quick; how quick is measured in the benchmarks."""
    code = (
        "import sys; from tilecast.cli.main import main; "
        f"status = main({['predict', *MEASURED, '--model', model, '--data', data]!r}); "
        "slow = {'torch', 'cutlass', 'xgboost', 'sklearn', 'pandas', 'scipy', 'joblib'}; "
        "sys.exit(f'loaded {slow & set(sys.modules)}' if slow & set(sys.modules) else status)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stderr == ""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-k", "0"), "argument -k: '0' is out of range; allowed: auto, or an integer from 1 to "),
        (
            ("-k", "all"),
            "argument -k: 'all' is out of range; allowed: auto, or an integer from 1 to ",
        ),
        (("--power", "eco"), "argument --power: power 'eco' is not known; allowed: "),
        (("--operands", "fp16:rcr>fp32"), "no model is for fp16:rcr>fp32; allowed: "),
        (("--gpu", "H100"), "model "),
        (("--model", "/nowhere"), "model /nowhere is refused: manifest.json cannot be read"),
        (("--data", "/nowhere.parquet"), "data set /nowhere.parquet does not exist; allowed: "),
    ],
)
def test_predict_refuses(
    refused: Refused, model: str, data: str, arguments: tuple[str, ...], message: str
) -> None:
    line = refused("predict", *MEASURED, "--model", model, "--data", data, *arguments)
    assert line.startswith(message)
    assert "allowed: " in line


def test_predict_refuses_times_of_another_gpu(
    refused: Refused, model: str, other_dataset: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "h100.parquet"
    write_dataset(other_dataset, path)
    line = refused("predict", *MEASURED, "--model", model, "--data", str(path))
    assert line == (f"data set {path} was measured on H100; allowed: one of H200, or --gpu H100")


# ---- damaged models


def _manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _cut_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:-100])


def _data_file(folder: Path) -> Path:
    return min(path for path in folder.iterdir() if path.name != "manifest.json")


def _cut_file(folder: Path) -> None:
    path = _data_file(folder)
    path.write_bytes(path.read_bytes()[:-1])


def _remove_file(folder: Path) -> None:
    _data_file(folder).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut_manifest, "manifest.json is cut short or edited"),
        (_cut_file, "allowed: a whole model"),
        (_remove_file, "the file with its arrays is not there"),
        (lambda folder: _manifest(folder, calibration={}), "manifest.json was edited"),
        (lambda folder: _manifest(folder, features_version=99), "its features_version is 99"),
        (lambda folder: _manifest(folder, space_version=99), "its space_version is 99"),
        (lambda folder: _manifest(folder, artifact_version=0), "its artifact_version is 0"),
        (lambda folder: _manifest(folder, features=["log_m"]), "manifest.json was edited"),
    ],
)
def test_damaged_model_is_refused(
    refused: Refused,
    model: str,
    tmp_path: Path,
    damage: Callable[[Path], None],
    message: str,
) -> None:
    for path in Path(model).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damage(tmp_path)
    line = refused("predict", *MEASURED, "--model", str(tmp_path))
    assert line.startswith(f"model {tmp_path} is refused: ")
    assert message in line
    assert "train it again" in line


# ---- damaged data sets


def _drop_column(dataset: Dataset, path: Path) -> None:
    table = _table(dataset, path)
    _write(table.drop_columns(["microseconds"]), path)


def _nan(dataset: Dataset, path: Path) -> None:
    import pyarrow as pa

    table = _table(dataset, path)
    index = table.column_names.index("microseconds")
    values = pa.array(np.full(table.num_rows, np.nan, np.float32), from_pandas=False)
    _write(table.set_column(index, "microseconds", values), path)


def _other_version(dataset: Dataset, path: Path) -> None:
    table = _table(dataset, path)
    facts = json.dumps({"version": 99, "provenance": {}})
    _write(table.replace_schema_metadata({b"tilecast": facts.encode()}), path)


def _cut(dataset: Dataset, path: Path) -> None:
    write_dataset(dataset, path)
    path.write_bytes(path.read_bytes()[:-500])


def _table(dataset: Dataset, path: Path):
    import pyarrow.parquet as pq

    write_dataset(dataset, path)
    return pq.read_table(path)


def _write(table, path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, path)


@pytest.mark.parametrize("command", ["predict", "train", "evaluate"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_drop_column, "lacks column 'microseconds'"),
        (_nan, "has microseconds="),
        (_other_version, "has version 99; allowed: 2"),
        (_cut, "cannot be read"),
    ],
)
def test_damaged_data_set_is_refused(
    refused: Refused,
    model: str,
    synthetic_dataset: Dataset,
    tmp_path: Path,
    command: str,
    damage: Callable[[Dataset, Path], None],
    message: str,
) -> None:
    path = tmp_path / "data.parquet"
    damage(synthetic_dataset, path)
    more = {
        "predict": [*MEASURED, "--model", model],
        "train": ["--out", str(tmp_path / "model")],
        "evaluate": [],
    }
    line = refused(command, "--data", str(path), *more[command])
    assert line.startswith(f"data set {path} {message}")
    assert not (tmp_path / "model").exists()


# ---- train and evaluate


def test_train_prints_held_out_regret(
    few_dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(few_dataset, tmp_path / "data.parquet")
    data, out = str(tmp_path / "data.parquet"), tmp_path / "model"
    arguments = ["train", "--data", data, "--add", data, "--out", str(out), "--jobs", "2"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for part in ("held out", "tilecast", "noise floor", "sustained", "written to"):
        assert part in text
    learned = json.loads((out / "manifest.json").read_text())["facts"]["dataset"]
    assert learned["rows"] == 2 * len(read_dataset(Path(data)).rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seed", "-1"), "argument --seed: '-1' is out of range; allowed: an integer from 0 to "),
        (
            ("--jobs", "0"),
            "argument --jobs: '0' is out of range; allowed: auto, or an",
        ),
        (("--jobs", ""), "argument --jobs: '' is out of range; allowed: auto, or an"),
        (("--out", "/proc/tilecast"), "cannot write /proc/tilecast: "),
        (("--add", "/none.parquet"), "data set /none.parquet does not exist; allowed: a file that"),
    ],
)
def test_train_refuses(
    refused: Refused, data: str, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    line = refused("train", "--data", data, "--out", str(tmp_path), *arguments)
    assert line.startswith(message)


INTERRUPTED = """
import os, signal, sys, threading
import torch
from tilecast.cli.main import main
from tilecast.models import training

def fit(*_):
    if first.acquire(blocking=False):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        torch.ones(64, 64) @ torch.ones(64, 64)

first, training.fit_network = threading.Lock(), fit
sys.exit(main())
"""
"""A command that is interrupted while its threads are in native code, as those that fit are."""


def test_train_that_is_interrupted_says_so_and_no_more(
    few_dataset: Dataset, tmp_path: Path
) -> None:
    write_dataset(few_dataset, tmp_path / "few.parquet")
    command = ["train", "--data", str(tmp_path / "few.parquet"), "--out", str(tmp_path / "model")]
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *command, "--jobs", "4"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        # Not as inherited: whoever runs the tests in the background has it ignored.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert (process.returncode, process.stderr) == (130, "tilecast: interrupted\n")
    assert not (tmp_path / "model").exists()


def test_evaluate_scores_the_baselines(answer: Answer, data: str) -> None:
    names = ("random", "best fixed subset", "nearest neighbour")
    only = [part for name in names for part in ("--only", name)]
    document = answer("evaluate", "--data", data, "--power", "burst", "--jobs", "1", *only)
    assert {row["heuristic"] for row in document["regret"]} == set(names)
    assert {row["power"] for row in document["regret"]} == {"burst"}
    assert document["families"] == 6


def test_evaluate_scores_a_power_once_that_is_named_twice(answer: Answer, data: str) -> None:
    powers = [part for name in ("robust", "burst", "robust") for part in ("--power", name)]
    scored = answer("evaluate", "--data", data, "--only", "random", *powers)
    found = [(row["power"], row["k"]) for row in scored["regret"] if row["problems"] == "all"]
    assert len(found) == len(set(found))
    assert [*dict.fromkeys(power for power, _ in found)] == ["robust", "burst"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "oracle"), "heuristic 'oracle' is not known; allowed: tilecast, "),
        (("--power", "eco"), "argument --power: power 'eco' is not known; allowed: "),
    ],
)
def test_evaluate_refuses(
    refused: Refused, data: str, arguments: tuple[str, ...], message: str
) -> None:
    assert refused("evaluate", "--data", data, *arguments).startswith(message)


def test_evaluate_refuses_a_model_on_what_it_was_trained_on(
    refused: Refused, data: str, model: str
) -> None:
    line = refused("evaluate", "--data", data, "--model", model)
    assert re.search(
        r"learned from this data set \(digest \w{16}\); allowed: data that it has", line
    )


@pytest.mark.parametrize("part", ["parts", "elsewhere"])
def test_evaluate_refuses_a_model_on_any_part_of_what_it_was_trained_on(
    refused: Refused, few_dataset: Dataset, model: str, data: str, tmp_path: Path, part: str
) -> None:
    """Whether that was joined with more or is another GPU's, and whatever stands beside it."""
    digests = [few_dataset.digest]
    facts = {"parts": {"learned_from": digests}, "elsewhere": {"elsewhere": {"sha256": digests}}}
    folder, few, new = tmp_path / "model", tmp_path / "few.parquet", tmp_path / "new.parquet"
    shutil.copytree(model, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["facts"]["learned_from"]
    manifest["facts"] |= facts[part]
    manifest["sha256"] = digest_of(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_dataset(few_dataset, few)
    write_dataset(_slower(few_dataset), new)
    for asked in (
        ("--data", str(few)),
        ("--data", str(new), "--add", str(few)),
        ("--data", data),
    ):
        line = refused("evaluate", *asked, "--model", str(folder))
        assert "learned from this data set" in line


def _slower(dataset: Dataset) -> Dataset:
    rows = dataset.rows
    rows = rows.assign(microseconds=rows["microseconds"] * np.float32(1.5))
    return Dataset(rows, dataset.provenance)


def test_evaluate_scores_a_model_on_other_data(
    answer: Answer, synthetic_dataset: Dataset, model: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.parquet"
    write_dataset(_slower(synthetic_dataset), path)
    document = answer(
        "evaluate", "--data", str(path), "--model", model, "--only", "random", "--power", "robust"
    )
    assert {row["heuristic"] for row in document["regret"]} == {"random", "as trained"}
    assert "borrowed" not in document
    problems = document["problems"]
    told = f"as trained has seen (n, k) of {problems} of the {problems} problems"
    assert document["seen"] == told


@pytest.mark.parametrize("seen", [("4096x4096",), ()])
def test_evaluate_tells_of_how_many_problems_the_family_is_known(
    capsys: pytest.CaptureFixture[str],
    synthetic_dataset: Dataset,
    model: str,
    tmp_path: Path,
    seen: tuple[str, ...],
) -> None:
    folder, path = tmp_path / "model", tmp_path / "other.parquet"
    shutil.copytree(model, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["facts"]["seen_families"] = seen
    manifest["sha256"] = digest_of(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_dataset(_slower(synthetic_dataset), path)
    asked = ("evaluate", "--data", str(path), "--model", str(folder), "--only", "random")
    assert main([*asked, "--power", "robust"]) == 0
    problems = [labels.problem for labels in label_table(synthetic_dataset)]
    known = sum(problem.family == (4096, 4096) for problem in problems)
    assert 0 < known < len(problems)
    told = f"as trained has seen (n, k) of {known} of the {len(problems)} problems\n"
    assert (told in capsys.readouterr().out) == bool(seen)


def test_evaluate_refuses_a_model_whose_families_are_none(
    refused: Refused, synthetic_dataset: Dataset, model: str, tmp_path: Path
) -> None:
    folder, path = tmp_path / "model", tmp_path / "other.parquet"
    shutil.copytree(model, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["facts"]["seen_families"] = ["4096"]
    manifest["sha256"] = digest_of(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_dataset(_slower(synthetic_dataset), path)
    asked = ("--data", str(path), "--model", str(folder), "--only", "random")
    assert refused("evaluate", *asked).startswith(f"model {folder} is refused: its contents are")


def test_evaluate_lends_a_model_to_the_gpu_that_was_measured(
    answer: Answer, few_dataset: Dataset, model: str, tmp_path: Path
) -> None:
    """It computes features of that GPU, as whoever borrows the model does, and says so."""
    path, h100 = tmp_path / "h100.parquet", hardware("H100")
    write_dataset(Dataset(few_dataset.rows, PROVENANCE | {"runs": [{"gpu": "H100"}]}), path)
    document = answer(
        "evaluate", "--data", str(path), "--model", model, "--only", "random", "--power", "robust"
    )
    assert document["borrowed"] == "as trained: the H200 model, used on the H100"
    table = label_table(read_dataset(path))
    heuristic = LearnedHeuristic(borrowed(load(Path(model)), h100))
    wanted = regrets(held_out(lambda *_: heuristic, table, "robust", unfitted(table)), table)
    found = [
        row["geomean"]
        for row in document["regret"]
        if row["heuristic"] == "as trained" and row["problems"] == "all"
    ]
    assert found == pytest.approx(np.expm1(np.log1p(wanted).mean(0)))


# ---- compile


@pytest.mark.parametrize("top", ["2", "auto"])
def test_compile_builds_what_the_model_ranks_first(
    answer: Answer, model: str, tmp_path: Path, top: str
) -> None:
    predicted = answer("predict", *UNMEASURED, "--model", model, "-k", top)["ranking"]
    built = answer(
        "compile", "48x1024x512", "-k", top, "--model", model,
        "--cache", str(tmp_path), "--workers", "2",
    )  # fmt: skip
    assert built["compiled"] == len(predicted)
    assert {k["config"] for k in built["kernels"]} == {entry["config"] for entry in predicted}
