"""The command line: what it answers, and that bad input gets one clear line and exit status 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilecast.cli.main import COMMANDS, main
from tilecast.cli.output.output import Answer, show
from tilecast.heuristics.hardware import GPUS
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, space
from tilecast.kernels.families import FAMILIES
from tilecast.reporting.table import Table

VALID = "128x128x64_c1x1x1_s6_coop_o1_rm8"
INVALID = "256x256x64_c1x1x1_s2_coop_o1_rm8"
RANGE = "is out of range; allowed: an integer from 1 to 2147483647"


def _extents(**changes: str) -> list[str]:
    extents = {"m": "16", "n": "6144", "k": "4096"} | changes
    return [part for name, value in extents.items() for part in (f"--{name}", value)]


# ---- the command line itself


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.NAME)
def test_every_command_has_help_and_json(module, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([module.NAME, "--help"])
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert module.HELP


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: COMMAND; `tilecast --help` says"),
        (("guess",), "invalid choice: 'guess' (choose from"),
        (("space", "--guess"), "unrecognized arguments: --guess"),
        (("space", "--gp", "H200"), "unrecognized arguments: --gp H200"),
        (("collect",), "the following arguments are required: --store"),
    ],
)
def test_unknown_or_missing_arguments(
    refused: Callable[..., str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused(*arguments)


def test_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("tilecast")
    process = subprocess.run(
        [command, "space", "--why", VALID], capture_output=True, text=True, check=True
    )
    assert process.stdout.startswith(f"{VALID} is a candidate")


def test_interrupt_is_one_line_and_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: object) -> Answer:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilecast.cli.commands.space.run", interrupted)
    assert main(["space"]) == 130
    assert capsys.readouterr().err == "tilecast: interrupted\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("odd\n\tthing"), "RuntimeError: odd thing; this is a fault of tilecast"),
        (RecursionError("deep"), "RecursionError: deep; this is a fault of tilecast"),
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
    def broken(options: object) -> Answer:
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
    show(Answer({}, [f"written to {name}"]), as_json=False)
    assert capsys.readouterr().out == f"written to {shown}\n"


@pytest.mark.parametrize("form", ["", "--json"])
def test_reader_that_stops_early_gets_no_traceback(form: str) -> None:
    extents = "--m 4096 --n 4096 --k 4096"  # whose candidates fill more than a pipe
    command = f"{sys.executable} -m tilecast.cli.main space {extents} --list {form} | head -1"
    process = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert (process.returncode, process.stderr) == (0, "")


def test_tables_show_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Times", {"config": "", "us": ".1f"}, [("[bold]a[/]", 1234.56), ("b", None)])
    show(Answer({}, [table, "a line"]), as_json=False)
    text = capsys.readouterr().out
    for part in ("Times", "config", "[bold]a[/]", "1234.6", "a line"):
        assert part in text


# ---- problems


@pytest.mark.parametrize("command", ["space", "predict"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": "0"}, f"argument --m: '0' {RANGE}"),
        ({"m": "-16"}, f"argument --m: '-16' {RANGE}"),
        ({"m": "2147483648"}, f"argument --m: '2147483648' {RANGE}"),
        ({"n": "0"}, f"argument --n: '0' {RANGE}"),
        ({"k": "99999999999999999999"}, f"argument --k: '99999999999999999999' {RANGE}"),
        ({"m": "1.5"}, f"argument --m: '1.5' {RANGE}"),
        ({"m": "1e3"}, f"argument --m: '1e3' {RANGE}"),
        ({"k": "many"}, f"argument --k: 'many' {RANGE}"),
        ({"n": ""}, f"argument --n: '' {RANGE}"),
        ({"batch": "0"}, f"argument --batch: '0' {RANGE}"),
        ({"k": "4100"}, "k=4100 breaks the 16-byte rule of A (bf16, contiguous along k); "
         "allowed: multiples of 8; pad k to 4104"),
        ({"n": "6141"}, "n=6141 breaks the 16-byte rule of out (bf16, contiguous along n); "
         "allowed: multiples of 8; pad n to 6144"),
        ({"m": "7", "operands": "bf16:ccr"}, "m=7 breaks the 16-byte rule of A"),
        ({"operands": "int4:rcr"}, "argument --operands: dtype 'int4' is not known; allowed: bf16"),
        ({"operands": "bf16:rcr>bool"}, "argument --operands: dtype 'bool' is not known; allowed"),
        ({"operands": "bf16:nt"}, "argument --operands: operands 'bf16:nt' are not understood; al"),
        ({"gpu": "GTX 480"}, "argument --gpu: gpu 'GTX 480' is not known; allowed: H200, "),
    ],
)  # fmt: skip
def test_bad_problem_is_refused(
    refused: Callable[..., str], command: str, changes: dict[str, str], message: str
) -> None:
    assert refused(command, *_extents(**changes)).startswith(message)


# ---- space


def test_space_counts_down_from_the_axes_to_the_valid_configs(answer: Callable[..., dict]) -> None:
    document = answer("space")
    ((name, steps),) = document["families"].items()
    for before, after in zip(steps, steps[1:], strict=False):
        assert after["left"] == before["left"] - after["taken"]
    rules = [rule.name for rule in FAMILIES[name].config_rules]
    assert [step["rule"] for step in steps[1:]] == rules
    assert all(step["reason"] for step in steps[1:])
    assert document["count"] == len(space(LINEAR_BF16, GPUS[0]).configs)
    assert steps[0]["left"] == 1_013_760


def test_space_of_a_problem_lists_its_candidates(answer: Callable[..., dict]) -> None:
    document = answer("space", *_extents(), "--list")
    expected = candidates(GemmProblem(16, 6144, 4096), GPUS[0])
    assert document["configs"] == [config.name for config in expected]
    assert document["count"] == len(expected)
    (steps,) = document["families"].values()
    assert steps[-1]["left"] == len(expected)


def test_space_says_why(answer: Callable[..., dict]) -> None:
    assert answer("space", "--why", VALID)["valid"]
    document = answer("space", "--why", INVALID)
    assert not document["valid"]
    assert "registers" in [broken["rule"] for broken in document["broken_rules"]]
    small = answer("space", "--why", VALID, *_extents(m="1", n="8"))
    assert not small["valid"]
    assert small["problem"] == "1x8x4096"


@pytest.mark.parametrize("name", ["128x128", "torch.mm", ""])
def test_space_refuses_what_is_no_config(refused: Callable[..., str], name: str) -> None:
    line = refused("space", "--why", name)
    assert line.startswith(
        f"argument --why: config {name!r} is not a config name; allowed: names such as"
    )


def test_space_wants_all_extents_or_none(refused: Callable[..., str]) -> None:
    for given in ("--n", "--batch"):
        line = refused("space", given, "8")
        assert line.startswith("--m is missing; allowed: all of --m, --n")


# ---- compile


def test_compile_builds_once(answer: Callable[..., dict], tmp_path: Path) -> None:
    command = ("compile", "--config", VALID, "--cache", str(tmp_path), "--workers", "1")
    first = answer(*command)
    assert (first["compiled"], first["found"], first["failed"]) == (1, 0, 0)
    (kernel,) = first["kernels"]
    assert kernel["config"] == VALID
    assert kernel["registers"] == 168
    assert kernel["spill_bytes"] == 0
    assert Path(tmp_path, f"{kernel['key']}.o").is_file()
    again = answer(*command)
    assert (again["compiled"], again["found"], again["failed"]) == (0, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--config", "guess"),
            "argument --config: config 'guess' is not a config name; allowed: names such as",
        ),
        (("--config", INVALID), f"config {INVALID} is invalid for bf16:rcr on H200: "),
        (("--config", VALID, "16x64x64"), "--config stands alone; allowed: configs, or problems"),
        (("-k", "3"), "-k needs problems to rank for; allowed: MxNxK"),
        (("16x64",), "'16x64' is not a problem; allowed: MxNxK or BATCHxMxNxK"),
        (("16x64xk",), "'16x64xk' is not a problem; allowed: MxNxK or BATCHxMxNxK"),
        (("16x64x63",), "k=63 breaks the 16-byte rule of A"),
        (("0x64x64",), "m=0 is out of range; allowed: 1 to"),
        (
            ("16x64x64", "-k", "0"),
            "argument -k: '0' is out of range; allowed: auto, or an integer from 1",
        ),
        (
            ("16x64x64", "-k", ""),
            "argument -k: '' is out of range; allowed: auto, or an integer from 1",
        ),
        (
            ("16x64x64", "-k", "some"),
            "argument -k: 'some' is out of range; allowed: auto, or an integer",
        ),
        (
            ("16x64x64", "--power", "burst"),
            "--model and --power choose what ranks; allowed: with -k",
        ),
        (
            ("--config", VALID, "--workers", "0"),
            "argument --workers: '0' is out of range; allowed: auto, ",
        ),
        (
            ("--config", VALID, "--workers", ""),
            "argument --workers: '' is out of range; allowed: auto, ",
        ),
        (
            ("--config", VALID, "--gpu", "B200"),
            "argument --gpu: gpu 'B200' is not known; allowed: H200, H100",
        ),
    ],
)
def test_compile_refuses(
    refused: Callable[..., str], arguments: tuple[str, ...], message: str
) -> None:
    assert refused("compile", *arguments).startswith(message)


@pytest.mark.parametrize("cache", ["/proc/tilecast", "/dev/null/tilecast"])
def test_compile_into_a_folder_that_cannot_be_written(
    refused: Callable[..., str], cache: str
) -> None:
    line = refused("compile", "--config", VALID, "--cache", cache, "--workers", "1")
    assert line.startswith(f"cannot write {cache}: ")
    assert "allowed: a writable folder with free space; name another one" in line
