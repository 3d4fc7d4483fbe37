"""The command line: what it answers, and that bad input gets one clear line and exit status 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilecast.cli.main import COMMANDS, main
from tilecast.cli.report import Report, Table, show
from tilecast.heuristics.hardware import GPUS
from tilecast.heuristics.problem import LINEAR_BF16, GemmProblem
from tilecast.kernels.cutlass_sm90 import space

VALID = "128x128x64_c1x1_s3_w2_o1_rm1"
INVALID = "256x256x64_c1x1_s2_w2_o1_rm1"


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
        (("predict", "--m", "1"), "the following arguments are required: --n, --k"),
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
    def interrupted(options: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilecast.cli.space.run", interrupted)
    assert main(["space"]) == 130
    assert capsys.readouterr().err == "tilecast: interrupted\n"


def test_reader_that_stops_early_gets_no_traceback() -> None:
    command = f"{sys.executable} -m tilecast.cli.main space --list | head -1"
    process = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert process.stderr == ""


def test_tables_show_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Times", {"config": "", "us": ".1f"}, [("[bold]a[/]", 1234.56), ("b", None)])
    show(Report({}, [table, "a line"]), as_json=False)
    text = capsys.readouterr().out
    for part in ("Times", "config", "[bold]a[/]", "1234.6", "a line"):
        assert part in text


# ---- problems


@pytest.mark.parametrize("command", ["space", "predict"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": "0"}, "m=0 is out of range; allowed: 1 to 2147483648"),
        ({"m": "-16"}, "m=-16 is out of range; allowed: 1 to 2147483648"),
        ({"m": "2147483649"}, "m=2147483649 is out of range; allowed: 1 to 2147483648"),
        ({"n": "0"}, "n=0 is out of range; allowed: 1 to"),
        ({"k": "99999999999999999999"}, "k=99999999999999999999 is out of range; allowed: 1 to"),
        ({"m": "1.5"}, "m='1.5' is not an integer; allowed: 1 to"),
        ({"m": "1e3"}, "m='1e3' is not an integer; allowed: 1 to"),
        ({"k": "many"}, "k='many' is not an integer; allowed: 1 to"),
        ({"n": ""}, "n='' is not an integer; allowed: 1 to"),
        ({"batch": "0"}, "batch=0 is out of range; allowed: 1 to"),
        ({"k": "4100"}, "k=4100 breaks the 16-byte rule of A (bfloat16, contiguous along k); "
         "allowed: multiples of 8; pad k to 4104"),
        ({"n": "6141"}, "n=6141 breaks the 16-byte rule of out (bfloat16, contiguous along n); "
         "allowed: multiples of 8; pad n to 6144"),
        ({"m": "7", "layout": "ccr"}, "m=7 breaks the 16-byte rule of A"),
        ({"dtype": "int4"}, "dtype 'int4' is not known; allowed: bfloat16, float16"),
        ({"out-dtype": "bool"}, "out_dtype 'bool' is not known; allowed: bfloat16, float16"),
        ({"layout": "nt"}, "layout 'nt' is not known; allowed: three letters r or c"),
        ({"gpu": "GTX 480"}, "gpu 'GTX 480' is not known; allowed: H200, H100; describe a new one"),
    ],
)  # fmt: skip
def test_bad_problem_is_refused(
    refused: Callable[..., str], command: str, changes: dict[str, str], message: str
) -> None:
    assert refused(command, *_extents(**changes)).startswith(message)


# ---- space


def test_space_counts_down_from_the_axes_to_the_valid_configs(answer: Callable[..., dict]) -> None:
    document = answer("space")
    steps = document["steps"]
    for before, after in zip(steps, steps[1:], strict=False):
        assert after["left"] == before["left"] - after["taken"]
    assert [step["rule"] for step in steps[1:]] == [
        rule.name for rule in space.RULES + space.MEASURED_RULES
    ]
    assert all(step["reason"] for step in steps[1:])
    assert document["count"] == len(space.valid_configs(LINEAR_BF16, GPUS[0]))


def test_space_of_a_problem_lists_its_candidates(answer: Callable[..., dict]) -> None:
    document = answer("space", *_extents(), "--list")
    expected = space.candidates(GemmProblem(16, 6144, 4096), GPUS[0])
    assert document["configs"] == [config.name for config in expected]
    assert document["count"] == len(expected) == document["steps"][-1]["left"]


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
    assert line.startswith(f"config {name!r} is not a config name; allowed: names such as")


def test_space_wants_all_extents_or_none(refused: Callable[..., str]) -> None:
    assert refused("space", "--n", "8").startswith("--m is missing; allowed: all of --m, --n")


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
        (("--config", "guess"), "config 'guess' is not a config name; allowed: names such as"),
        (("--config", INVALID), f"config {INVALID} is invalid for bfloat16 rcr on H200: "),
        (("--config", VALID, "16x64x64"), "--config stands alone; allowed: configs, or problems"),
        (("-k", "3"), "-k needs problems to rank for; allowed: MxNxK"),
        (("16x64",), "'16x64' is not a problem; allowed: MxNxK or BATCHxMxNxK"),
        (("16x64xk",), "k='k' is not an integer; allowed: 1 to"),
        (("16x64x63",), "k=63 breaks the 16-byte rule of A"),
        (("0x64x64",), "m=0 is out of range; allowed: 1 to"),
        (
            ("16x64x64", "-k", "0"),
            "-k '0' is out of range; allowed: auto, or an integer, 1 or more",
        ),
        (
            ("16x64x64", "-k", "some"),
            "-k 'some' is out of range; allowed: auto, or an integer, 1 or more",
        ),
        (("--config", VALID, "--workers", "0"), "--workers '0' is out of range; allowed: an int"),
        (("--config", VALID, "--gpu", "B200"), "gpu 'B200' is not known; allowed: H200, H100"),
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
    assert line.startswith(f"cannot write {cache}/")
    assert "allowed: a writable folder with free space; name another one" in line
