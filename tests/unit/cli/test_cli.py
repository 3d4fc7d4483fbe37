"""The command line: what it answers, and that bad input gets one clear line and exit status 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from command_line import VALID
from processes import python

import tilecast
from tilecast.cli.main import COMMANDS, main
from tilecast.cli.options import argtypes
from tilecast.cli.output.output import Output, print_output
from tilecast.heuristics.hardware import GPUS
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import installation
from tilecast.kernels.candidates import candidates, space
from tilecast.kernels.families import FAMILIES
from tilecast.models.runtime.artifact import Artifact, save
from tilecast.reporting.table import Table

INVALID = "256x256x64_c1x1x1_s2_coop_o1_rm8"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert max(map(len, text.splitlines())) <= 80


def test_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("tilecast")
    process = subprocess.run(
        [command, "space", "--why", VALID], capture_output=True, text=True, check=True
    )
    assert process.stdout.startswith(f"{VALID} is a candidate")


@pytest.mark.parametrize(
    ("read", "text", "found"),
    [
        (argtypes.seconds, "90", 90),
        (argtypes.seconds, "20m", 1200),
        (argtypes.seconds, "2h", 7200),
        (argtypes.size, "7", 7),
        (argtypes.size, "5K", 5 << 10),
        (argtypes.size, "1T", 1 << 40),
    ],
)
def test_durations_and_sizes(read: Callable[[str], int], text: str, found: int) -> None:
    assert read(text) == found


def test_interrupt_is_one_line_and_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: object) -> Output:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilecast.cli.commands.space.run", interrupted)
    assert main(["space"]) == 130
    assert capsys.readouterr().err == "tilecast: interrupted\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("odd\n\tthing"), "RuntimeError: odd thing; this is a fault of tilecast"),
        (MemoryError(), "MemoryError: ; this is a fault of tilecast: please report it"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no"), "UnicodeEncodeError: "),
        (OSError(40, "Too many links", "/a"), "/a: Too many links; allowed: files and folders"),
        (OSError(28, "No space left on device"), "a file: No space left on device; allowed: "),
        (BrokenPipeError(32, "Broken pipe"), "a file: Broken pipe; allowed: "),
    ],
)
def test_what_nobody_foresaw_is_one_line_and_2(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def broken(options: object) -> Output:
        raise error

    monkeypatch.setattr("tilecast.cli.commands.space.run", broken)
    assert refused("space").startswith(message)


@pytest.mark.parametrize("value", ["9" * 5000, "a " * 5000, "9" * 300 + "\x1b[31m"])
def test_what_was_typed_is_shown_short_and_printable(
    refused: Callable[..., str], value: str
) -> None:
    line = refused("space", "--gpu", value)
    assert len(line) < 650
    assert line.isprintable()
    assert line.startswith(f"argument --gpu: gpu '{value[:80]}")
    assert "allowed: H200, H100" in line


@pytest.mark.parametrize(("name", "shown"), [("/tmp/[/]", "/tmp/[/]"), ("\udcff", "\\udcff")])
def test_any_name_can_be_printed(capsys: pytest.CaptureFixture[str], name: str, shown: str) -> None:
    print_output(Output({}, [f"written to {name}"]), as_json=False)
    assert capsys.readouterr().out == f"written to {shown}\n"


def test_tables_show_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Times", {"config": "", "us": ".1f"}, [("[bold]a[/]", 1234.56), ("b", None)])
    print_output(Output({}, [table, "a line"]), as_json=False)
    text = capsys.readouterr().out
    for part in ("Times", "config", "[bold]a[/]", "1234.6", "a line"):
        assert part in text


def test_space_counts_down_from_the_axes_to_the_valid_configs(answer: Callable[..., dict]) -> None:
    document = answer("space")
    for name, steps in document["families"].items():
        for before, after in zip(steps, steps[1:], strict=False):
            assert after["left"] == before["left"] - after["taken"]
        rules = [rule.name for rule in FAMILIES[name].config_rules]
        assert [step["rule"] for step in steps[1:]] == rules
        assert all(step["reason"] for step in steps[1:])
    assert document["count"] == len(space(LINEAR_BF16, GPUS[0]).configs)
    points = {name: steps[0]["left"] for name, steps in document["families"].items()}
    assert points == {"quack_sm90": 92_160, "quack_sm90_memory": 5_376}


def test_space_of_a_problem_lists_its_candidates(answer: Callable[..., dict]) -> None:
    document = answer("space", "16x6144x4096", "--list")
    expected = candidates(GemmProblem(16, 6144, 4096), GPUS[0])
    assert document["configs"] == [config.name for config in expected]
    assert document["count"] == len(expected)
    left = [steps[-1]["left"] for steps in document["families"].values()]
    assert sum(left) == len(expected) and all(left)


def test_space_says_why(answer: Callable[..., dict]) -> None:
    assert answer("space", "--why", VALID)["valid"]
    document = answer("space", "--why", INVALID)
    assert not document["valid"]
    assert "registers" in [broken["rule"] for broken in document["broken_rules"]]
    small = answer("space", "--why", VALID, "1x8x4096")
    assert not small["valid"]
    assert small["problem"] == "1x8x4096"


def test_space_leaves_out_what_failed_where_the_model_was_measured(
    answer: Callable[..., dict], small_model: Artifact, tmp_path: Path
) -> None:
    first, *_ = configs = candidates(GemmProblem(16, 6144, 4096), GPUS[0])
    failing = {LINEAR_BF16: frozenset(configs[:3])}
    save(replace(small_model, failing=failing), tmp_path)
    target = "16x6144x4096", f"--model={tmp_path}"
    document = answer("space", *target, "--list")
    assert document["configs"] == [config.name for config in configs[3:]]
    (*_, last), (*_, other) = document["families"].values()
    assert (last["rule"], last["taken"], other["rule"]) == ("failed", 3, "l2-traffic")
    assert last["left"] + other["left"] == document["count"]
    assert answer("space", f"--model={tmp_path}")["count"] == document["count"] + (
        len(space(LINEAR_BF16, GPUS[0]).configs) - len(configs)
    )
    (broken,) = answer("space", "--why", first.name, *target)["broken_rules"]
    assert broken["rule"] == "failed"
    assert answer("space", "--why", first.name, "16x6144x4096")["valid"]


def test_the_package_has_its_version_and_what_installs_it_and_imports_nothing_for_that() -> None:
    code = "import sys, tilecast; print(tilecast.__version__, *sys.modules)"
    process = python(code)
    found, *loaded = process.stdout.split()
    assert found == version("tilecast")
    assert not {"torch", "numpy", "tilecast.inductor_hook"} & set(loaded)
    assert tilecast.install is installation.install
    assert tilecast.uninstall is installation.uninstall
    assert not hasattr(tilecast, "instal")
