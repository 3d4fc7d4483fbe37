"""``predict`` of one problem, and ``evaluate``, with the shipped model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixtures import PROVENANCE, change_manifest

from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, write_dataset
from tilecast.heuristics.hardware import GPUS, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.families import parse_config
from tilecast.models.evaluation.evaluation import held_out, unfitted
from tilecast.models.evaluation.regret import regrets
from tilecast.models.learning.folds import folds
from tilecast.models.learning.labels import label_table
from tilecast.models.runtime.artifact import SHIPPED, load, save
from tilecast.models.runtime.learned import LearnedHeuristic
from tilecast.models.runtime.nearest_gpu import borrowed

Answer = Callable[..., dict]
Refused = Callable[..., str]

MODEL = str(SHIPPED / "H200")
MEASURED = ("64x4096x4096",)
UNMEASURED = ("48x1024x512",)


@pytest.fixture
def with_facts(tmp_path: Path) -> Callable[..., str]:
    """Gives the folder of a copy of the model whose manifest states these facts."""

    def make(**facts: object) -> str:
        folder = tmp_path / "stating"
        shutil.copytree(MODEL, folder)
        change_manifest(folder, lambda manifest: manifest["facts"].update(facts))
        return str(folder)

    return make


@pytest.mark.parametrize("power", ["robust", "burst", "sustained"])
def test_predict_ranks_explains_and_shows_the_truth(answer: Answer, data: str, power: str) -> None:
    document = answer(
        "predict", *MEASURED, "--model", MODEL, "--data", data, "--power", power, "-k", "7"
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


@pytest.mark.parametrize(
    ("operands", "name"), [("bf16:rcr", "torch.mm"), ("bf16:rcr:bias", "torch.addmm")]
)
def test_predict_shows_cublas_below_the_ranking(
    answer: Answer, data: str, capsys: pytest.CaptureFixture[str], operands, name
) -> None:
    asked = ("predict", *MEASURED, "--operands", operands, "--model", MODEL, "--data", data)
    document = answer(*asked)
    library, first = document["library"], document["ranking"][0]
    assert library["name"] == name
    expected = library["at_least_over_first"] * first["predicted_microseconds"]
    assert library["at_least_microseconds"] == pytest.approx(expected)
    assert isinstance(library["deferred"], bool)
    assert main([*asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith(f"{name}: ")]
    least, over = library["at_least_microseconds"], library["at_least_over_first"]
    assert f"at least {least:.1f} us in nine cases of ten, {over:.2f}x the first" in row


def test_predict_of_a_model_that_knows_no_times_of_cublas_shows_none(
    answer: Answer, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(replace(load(Path(MODEL)), deferral=None), tmp_path / "model")
    asked = (*MEASURED, "--model", str(tmp_path / "model"), "--data", data)
    library = answer("predict", *asked)["library"]
    assert (library["at_least_over_first"], library["deferred"]) == (None, False)
    assert main(["predict", *asked]) == 0
    assert "torch.mm: at least" not in capsys.readouterr().out


def test_predict_in_tables(answer: Answer, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *MEASURED, "--model", MODEL, "--data", data]) == 0
    text = capsys.readouterr().out
    for part in ("64x4096x4096 bf16:rcr on H200", "roofline", "measured in burst", "torch.mm"):
        assert part in text
    assert main(["predict", *UNMEASURED, "--model", MODEL, "--data", data]) == 0
    assert "not in the data set" in capsys.readouterr().out
    document = answer("predict", *UNMEASURED, "--model", MODEL, "--data", data)
    assert document["measured"] == {}
    assert [entry["measured"] for entry in document["ranking"]] == [{}] * 5


def test_evaluate_scores_the_baselines(answer: Answer, data: str) -> None:
    names = ("random", "nearest neighbour")
    only = [part for name in names for part in ("--only", name)]
    document = answer("evaluate", "--data", data, "--power", "burst", "--jobs", "1", *only)
    assert {row["heuristic"] for row in document["regret"]} == set(names)
    assert {row["power"] for row in document["regret"]} == {"burst"}
    assert document["families"] == 6
    two = answer("evaluate", "--data", data, "--power", "burst", "--folds", "2", *only[:2])
    assert 2 <= two["families"] < 6
    assert two["problems"] == 4 * two["families"]


def test_evaluate_refuses_problems_that_are_in_none_of_the_folds(
    refused: Refused, few_dataset: Dataset, data: str, tmp_path: Path
) -> None:
    table = label_table(few_dataset)
    later = table[folds(table)[1][1][0]].problem
    problems = tmp_path / "problems.csv"
    problems.write_text(f"m,n,k\n{later.m},{later.n},{later.k}\n")
    arguments = ("evaluate", "--data", data, "--only", "random", "--problems", str(problems))
    told = refused(*arguments, "--folds", "1")
    assert told.startswith("none of the 1 problems is in the first 1 of 5 folds; allowed: more")
    assert main([*arguments, "--folds", "2"]) == 0


def test_evaluate_scores_a_power_once_that_is_named_twice(answer: Answer, data: str) -> None:
    powers = [part for name in ("robust", "burst", "robust") for part in ("--power", name)]
    scored = answer("evaluate", "--data", data, "--only", "random", *powers)
    found = [(row["power"], row["k"]) for row in scored["regret"] if row["problems"] == "all"]
    assert len(found) == len(set(found))
    assert [*dict.fromkeys(power for power, _ in found)] == ["robust", "burst"]


@pytest.mark.parametrize("part", ["learned_from", "elsewhere"])
def test_evaluate_refuses_a_model_on_any_part_of_what_it_was_trained_on(
    refused: Refused,
    few_dataset: Dataset,
    data: str,
    with_facts: Callable[..., str],
    tmp_path: Path,
    part: str,
) -> None:
    """Whether that was joined with more or is another GPU's, and whatever stands beside it."""
    few = tmp_path / "few.parquet"
    write_dataset(few_dataset, few)
    digests = [read_dataset(few).digest]
    facts = digests if part == "learned_from" else {"sha256": digests}
    folder = with_facts(**{"learned_from": [], part: facts})
    for asked in (("--data", str(few)), ("--data", data, "--add", str(few))):
        line = refused("evaluate", *asked, "--model", folder)
        assert f"learned from this data set (digest {digests[0][:16]})" in line


@pytest.mark.parametrize("seen", [["4096x4096"], []])
def test_evaluate_says_how_many_problems_a_model_has_seen_the_family_of(
    answer: Answer,
    synthetic_dataset: Dataset,
    data: str,
    with_facts: Callable[..., str],
    seen: list[str],
) -> None:
    folder = with_facts(seen_families=seen)
    asked = ("evaluate", "--data", data, "--model", folder, "--only", "random")
    document = answer(*asked, "--power", "robust")
    assert {row["heuristic"] for row in document["regret"]} == {"random", "as trained"}
    assert "borrowed" not in document
    problems = [labels.problem for labels in label_table(synthetic_dataset)]
    known = sum(problem.family == (4096, 4096) for problem in problems)
    told = f"as trained has seen (n, k) of {known} of the {len(problems)} problems"
    assert document.get("seen") == (told if seen else None)


def test_evaluate_uses_the_model_of_another_gpu(
    answer: Answer, few_dataset: Dataset, tmp_path: Path
) -> None:
    """With the features of the GPU that was measured, and says so."""
    path, h100 = tmp_path / "h100.parquet", hardware("H100")
    write_dataset(Dataset(few_dataset.rows, PROVENANCE | {"runs": [{"gpu": "H100"}]}), path)
    document = answer(
        "evaluate", "--data", str(path), "--model", MODEL, "--only", "random", "--power", "robust"
    )
    assert document["borrowed"] == "as trained: the model of the H200, used on the H100"
    table = label_table(read_dataset(path))
    heuristic = LearnedHeuristic(borrowed(load(Path(MODEL)), h100))
    wanted = regrets(held_out(lambda *_: heuristic, table, "robust", unfitted(table)), table)
    found = [
        row["geomean"]
        for row in document["regret"]
        if row["heuristic"] == "as trained" and row["problems"] == "all"
    ]
    assert found == pytest.approx(np.expm1(np.log1p(wanted).mean(0)))


def test_a_gpu_is_described_as_by_the_model_that_is_named_with_it(
    answer: Answer, tmp_path: Path
) -> None:
    """And not by its data sheet, which a campaign has corrected."""
    h20 = replace(hardware("H20"), dram_bytes_per_second=3.9e12)
    lent = borrowed(load(Path(MODEL)), h20)
    save(replace(lent, measured=lent.operands, trained_for=None), tmp_path)
    asked = ("predict", *UNMEASURED, "--model", str(tmp_path))
    assert answer(*asked, "--gpu", "H20") == answer(*asked)


def test_invariant_candidates_alone_are_ranked(answer: Callable[..., dict]) -> None:
    every = answer("predict", "16x512x16384", "--gpu", "H200")
    found = answer("predict", "16x512x16384", "--gpu", "H200", "--invariant")
    assert found["candidates"] < every["candidates"]
    assert found["problem"]["operands"] == "bf16:rcr@4xfp32"
    splits = [parse_config(one["config"]) for one in found["ranking"]]
    assert {getattr(config, "split_k", None) for config in splits} <= {1, 4}
    assert not found["library"]["deferred"]
