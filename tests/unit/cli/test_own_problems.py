"""Problems of one's own, in files or as a model's layers, in every command that takes them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tilecast.cli.main import main
from tilecast.data_collection.problems.model_files import model_problems
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.build.builder import CompileResult
from tilecast.kernels.candidates import candidates
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime.artifact import SHIPPED

Answer = Callable[..., dict]
Refused = Callable[..., str]

MODEL = str(SHIPPED / "H200")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
}


@pytest.fixture
def own(tmp_path: Path) -> str:
    """Two problems, one of them twice."""
    path = tmp_path / "own.csv"
    path.write_text("m,n,k\n64,4096,4096\n48,1024,512\n64,4096,4096\n")
    return str(path)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels count as compiled; tests/slow/cli/test_compile.py compiles some."""

    def compile_all(asked: list[KernelSpec], *_: object) -> list[CompileResult]:
        return [CompileResult(spec, 1.0) for spec in asked]

    monkeypatch.setattr("tilecast.cli.commands.compile.compile_all", compile_all)


def _asked(document: dict) -> list[GemmProblem]:
    rows = (tuple(answer["problem"][name] for name in PROBLEM_FIELDS) for answer in document)
    return [GemmProblem.from_row(row) for row in rows]


@pytest.mark.parametrize("power", ["robust", "burst"])
def test_predict_answers_for_each_what_it_answers_for_one(
    answer: Answer, own: str, power: str
) -> None:
    how = ("--model", MODEL, "--power", power, "-k", "3")
    document = answer("predict", "--problems", own, *how)
    assert (document["gpu"], document["power"]) == ("H200", power)
    asked = _asked(document["problems"])
    assert asked == [GemmProblem(64, 4096, 4096), GemmProblem(48, 1024, 512)]
    for problem, found in zip(asked, document["problems"], strict=True):
        alone = answer("predict", f"{problem.m}x{problem.n}x{problem.k}", *how)
        assert found["candidates"] == alone["candidates"]
        assert len(found["ranking"]) == 3
        for entry, expected in zip(found["ranking"], alone["ranking"], strict=True):
            assert entry.items() <= expected.items()
            assert set(expected) - set(entry) == {"measured"}


def test_predict_gives_the_first_choice_or_as_many_as_are_worth_it(
    answer: Answer, own: str
) -> None:
    first = answer("predict", "--problems", own, "--model", MODEL)["problems"]
    assert [len(found["ranking"]) for found in first] == [1, 1]
    worth = answer("predict", "--problems", own, "--model", MODEL, "-k", "auto")["problems"]
    for one, some in zip(first, worth, strict=True):
        assert one["ranking"] == some["ranking"][:1]
        assert 1 <= len(some["ranking"]) <= 8
        typed = "x".join(str(some["problem"][name]) for name in "mnk")
        alone = answer("predict", typed, "--model", MODEL, "-k", "auto")["ranking"]
        assert [entry["config"] for entry in alone] == [e["config"] for e in some["ranking"]]


def test_predict_takes_the_layers_of_a_model_and_files_of_every_kind(
    answer: Answer, config: Path, own: str, tmp_path: Path
) -> None:
    more = tmp_path / "more.json"
    more.write_text('[{"m": 7, "n": 64, "k": 128, "batch": 3}, {"m": 48, "n": 1024, "k": 512}]')
    files = ("--problems", own, "--problems", str(more))
    layers = ("--hf-config", str(config), "--tp", "1,2", "--rows", "5")
    document = answer("predict", *files, *layers, "--model", MODEL)
    expected = [
        GemmProblem(64, 4096, 4096),
        GemmProblem(48, 1024, 512),
        GemmProblem(7, 64, 128, 3),
        *model_problems(config, (1, 2), (5,))[0],
    ]
    assert _asked(document["problems"]) == expected
    default = answer("predict", "--hf-config", str(config), "--model", MODEL)
    assert _asked(default["problems"]) == model_problems(config, (1,), (1, 16, 256, 4096))[0]


def test_what_is_left_out_of_a_model_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG | {"intermediate_size": 11004, "vocab_size": 50257}))
    asked = ["predict", "--hf-config", str(config), "--rows", "5", "--model", MODEL, "--json"]
    assert main(asked) == 0
    told = capsys.readouterr()
    assert told.err == (
        f"tilecast: left out of {config}: n=4096 k=11004, whose k is no multiple of 8\n"
    )
    families = {problem.family for problem in _asked(json.loads(told.out)["problems"])}
    assert families == {(12288, 4096), (4096, 4096), (22008, 4096), (11008, 4096), (50264, 4096)}


def test_predict_of_many_in_a_table(
    own: str, capsys: pytest.CaptureFixture[str], answer: Answer
) -> None:
    found = answer("predict", "--problems", own, "--model", MODEL)["problems"][1]
    ranking, library = found["ranking"], found["library"]
    assert main(["predict", "--problems", own, "--model", MODEL]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("2 problems on H200, robust")
    (line,) = [line for line in lines if "48x1024x512" in line]
    assert f"{library['at_least_microseconds']:.1f}  " in line
    assert line.split()[:4] == ["48x1024x512", "bf16:rcr", "1", ranking[0]["config"]]
    assert f"{ranking[0]['predicted_microseconds']:.1f}" in line


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("top", ["2", "auto"])
def test_predict_of_many_writes_its_choices(
    answer: Answer, own: str, tmp_path: Path, kind: str, top: str
) -> None:
    file = tmp_path / f"choices.{kind}"
    asked = ("predict", "--problems", own, "--model", MODEL, "-k", top)
    document = answer(*asked, "--choices", str(file))
    assert document == answer(*asked)
    with file.open() as opened:
        rows = json.load(opened) if kind == "json" else list(csv.DictReader(opened))
    shown = [
        (found["problem"], found["library"], entry)
        for found in document["problems"]
        for entry in found["ranking"]
    ]
    for row, (problem, library, entry) in zip(rows, shown, strict=True):
        assert {name: str(row[name]) for name in PROBLEM_FIELDS} == {
            name: str(value) for name, value in problem.items()
        }
        assert (int(row["rank"]), row["config"]) == (entry["rank"], entry["config"])
        for name in ("predicted_microseconds", "predicted_slowdown"):
            assert float(row[name]) == entry[name]
        assert float(row["library_at_least_over_first"]) == library["at_least_over_first"]
        assert str(row["left_to_library"]) == str(library["deferred"])
        assert int(row["shortlist"]) >= (int(row["rank"]) if top == "auto" else 1)


def test_a_file_of_choices_is_a_file_of_problems(answer: Answer, own: str, tmp_path: Path) -> None:
    """What was chosen once can be asked for again."""
    file = str(tmp_path / "choices.csv")
    document = answer("predict", "--problems", own, "--model", MODEL, "--choices", file)
    assert answer("predict", "--problems", file, "--model", MODEL) == document


def test_rows_of_operands_that_no_model_is_for_are_left_out(
    own: str, built: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, cache = tmp_path / "recorded.csv", str(tmp_path / "objects")
    unknown = "64,4096,4096,fp16:rcr>fp32\n64,4096,4096,bf16:ccc\n72,4096,4096,bf16:ccc\n"
    path.write_text(f"m,n,k,operands\n{unknown}48,1024,512,\n")
    commands = [("predict",), ("predict", "--choices", str(tmp_path / "choices.csv"))]
    for command in (*commands, ("compile", "-k", "1", "--cache", cache)):
        asked = [*command, "--model", MODEL, "--json", "--problems"]
        assert main([*asked, str(path)]) == 0
        told = capsys.readouterr()
        assert told.err == (
            "tilecast: left out: 3 problems of fp16:rcr>fp32, bf16:ccc, which the model has not "
            "seen\n"
        )
        found = json.loads(told.out)
        if command[0] == "predict":
            assert _asked(found["problems"]) == [GemmProblem(48, 1024, 512)]
        else:
            assert (found["asked"], found["failed"]) == (1, 0)
    assert len((tmp_path / "choices.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("operands", "command", "message"),
    [
        ("bf16:ccc", "predict", "no model is for bf16:ccc; allowed: what is stored in as many"),
        ("bf16:ccc", "compile -k 1", "no model is for bf16:ccc; allowed: what is stored in as"),
        ("bf16:ccr", "compile -k 1", "no model has seen operands such as bf16:ccr; allowed with"),
    ],
)
def test_a_file_of_which_the_model_knows_nothing_is_refused(
    refused: Refused, tmp_path: Path, operands: str, command: str, message: str
) -> None:
    path = tmp_path / "recorded.csv"
    path.write_text(f"m,n,k,operands\n64,4096,4096,{operands}\n")
    line = refused(*command.split(), "--problems", str(path), "--model", MODEL)
    assert line.startswith(message)


def test_what_the_hook_recorded_is_ranked_and_compiled(
    answer: Answer, built: None, tmp_path: Path
) -> None:
    """With the model that the hook takes, by the candidates of each problem's own operands."""
    path = tmp_path / "own.csv"
    kinds = ("bf16:rcr:bias", "fp16:rcr", "bf16:rrr")
    lines = [f"512,4096,4096,1,{text}\n" for text in kinds]
    path.write_text("m,n,k,batch,operands\n" + "".join(lines))
    document = answer("predict", "--problems", str(path), "-k", "2")
    gpu = hardware("H200")
    for text, found in zip(kinds, document["problems"], strict=True):
        problem = GemmProblem(512, 4096, 4096, operands=GemmOperands.parse(text))
        expected = [prediction.config.name for prediction in shortlist(Settings(2), problem, gpu)]
        assert [entry["config"] for entry in found["ranking"]] == expected
        assert found["candidates"] == len(candidates(problem, gpu))
    path.write_text("m,n,k,batch,operands\n" + lines[0])
    done = answer("compile", "--problems", str(path), "-k", "1", "--cache", str(tmp_path / "c"))
    first = document["problems"][0]["ranking"][0]["config"]
    assert [kernel["config"] for kernel in done["kernels"]] == [first]
    assert (done["compiled"], done["failed"]) == (1, 0)


ONLY = ("--only", "random", "--power", "burst", "--jobs", "1")


def test_evaluate_scores_those_that_were_measured(
    answer: Answer, own: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = tmp_path / "more.csv"
    more.write_text("m,n,k\n8,12288,4096\n9,12288,4096\n")
    named = ("--problems", own, "--problems", str(more))
    document = answer("evaluate", "--data", data, *named, *ONLY)
    assert (document["problems"], document["families"], document["not_measured"]) == (2, 2, 2)
    counts = {(row["problems"], row["count"]) for row in document["regret"]}
    rows = {("m 1 to 16", 1), ("m 17 to 64", 1)}
    assert counts == {("all", 2), *rows, ("layers of language models", 2)}
    assert main(["evaluate", "--data", data, *named, *ONLY]) == 0
    text = capsys.readouterr().out
    assert "2 problems of 2 families" in text
    assert "2 more were not measured" in text


def test_evaluate_scores_the_layers_of_a_model(answer: Answer, data: str, config: Path) -> None:
    layers = ("--hf-config", str(config), "--rows", "8,512,513")
    document = answer("evaluate", "--data", data, *layers, *ONLY)
    asked, _ = model_problems(config, (1,), (8, 512, 513))
    # Of its layers the data set has attention out, QKV and down, at two of the three.
    assert (document["problems"], document["families"]) == (6, 3)
    assert document["not_measured"] == len(asked) - 6


def test_evaluate_refuses_a_file_none_of_whose_problems_was_measured(
    refused: Refused, data: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.csv"
    path.write_text("m,n,k\n48,1024,512\n64,4096,4104\n64,4096,8\n")
    line = refused("evaluate", "--data", data, "--problems", str(path))
    assert line.startswith("none of the 3 problems was measured; allowed: at least one of the data")
