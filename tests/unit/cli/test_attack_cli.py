"""Bad input to every command: one clear line, exit status 2, nothing written, no traceback.

Each option meets every bad value of its kind, in this process for speed; what only a process of its
own can show, such as a full standard output, comes last.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.collect import CollectOptions

VALID = "128x128x64_c1x1x1_s6_coop_o1_rm8"
MEASURED = ("--m", "64", "--n", "4096", "--k", "4096")

NO_TEXT = ("\udcff", "a\udc80b", "\0", "/tmp/\ud800")
NO_COUNT = (
    *("", " ", "x", "1.5", "1e3", "nan", "inf", "-inf", "-1", "0x10", "1 2", "½", "四", "None"),
    *("9" * 30, "9" * 5000, "-" + "9" * 5000, "[]", "1;2", "--", "1\n2", "true", *NO_TEXT),
)
"""No integer, or one that no option takes; zero is apart, since a seed may be it."""
NO_NAME = ("", " ", "x", "é", "💥" * 60, "a" * 5000, "a b " * 2000, "[/]", "%s", "../..", *NO_TEXT)
NO_EXTENT = (*NO_COUNT, "0", "2147483648")
NO_OPERANDS = (
    *(
        *NO_NAME,
        "bf16",
        "bf16:",
        ":rcr",
        "bf16:rc",
        "bf16:rcrr",
        "bf16:RCR",
        "BF16:rcr",
        "fp32:rcr",
    ),
    *(
        "bf16:rcr>",
        "bf16:rcr>fp99",
        "bf16:rcr@",
        "bf16:rcr:glue",
        "bf16xint3:rcr",
        "bf16:rcr:bias+",
    ),
)
NO_PROBLEM = (
    *(*NO_NAME, "16", "16x64", "16x64x", "x16x64x64", "1x2x3x4x5", "16x64xk", "-16x64x64"),
    *("16X64X64", "1.5x64x64", "0x64x64", "16x64x63", "2147483648x64x64", "9" * 5000 + "x64x64"),
)
NO_SIZE = (*NO_COUNT, "K", "5X", "2GB", "1.5G", "-1G", "500m", "1 G", "1_000", "٣M")
NO_CONFIG = (*NO_NAME, "128x128", "torch.mm", VALID.replace("128", "9" * 5000))
NO_FOLDER = ["missing", "file", "folder", "loop", "dangling", "long", "below", "device"]
"""Names of what lies in the fixture `ground`."""
MANIFESTS = {
    "nested": b"[" * 100_000,
    "list": b"[]",
    "empty": b"",
    "null": b"null",
    "number": b"1e999",
    "binary": b"\xff\xfe\x00",
    "version": b'{"artifact_version": "' + b"9" * 5000 + b'"}',
    "bare": b'{"sha256": "", "operands": {}}',
}
NO_MODEL = (*NO_FOLDER, *MANIFESTS)
NO_DATA = (*NO_FOLDER, "text", "nested/manifest.json")
NO_PROBLEMS = (*NO_FOLDER, "text", "rows.csv", *(f"{name}/manifest.json" for name in MANIFESTS))
NO_OUT = ["file", "loop", "dangling", "long", "below", "device"]
NO_EXPORT = ["folder", "long", "below"]


@dataclass(frozen=True)
class Attack:
    """Bad values for one option of one command."""

    command: str
    before: tuple[str, ...]
    """Options that would do, or that are missing."""
    option: str
    """The option that is bad; "" for what stands alone."""
    values: Sequence[str]
    on_ground: bool = False
    """Whether the values are names in `ground`."""

    def commands(self, ground: Path) -> Iterator[list[str]]:
        for value in self.values:
            shown = _place(ground, value) if self.on_ground else value
            bad = f"{self.option}={shown}" if self.option else shown
            yield [self.command, *self.before, bad]

    def __str__(self) -> str:
        return f"{self.command} {self.option or 'alone'} {' '.join(self.before)[:20]}"


def _attacks() -> Iterator[Attack]:
    predict, problem, store = ("predict", MEASURED), ("doctor", ("64x4096x4096",)), ("--store", "s")
    ranked = ("compile", ("64x4096x4096", "-k", "1"))
    for name in ("--m", "--n", "--k", "--batch"):
        yield Attack(*predict, name, NO_EXTENT)
        yield Attack("space", MEASURED, name, NO_EXTENT)
    for command in (predict, ("space", ()), ("compile", ()), problem):
        yield Attack(*command, "--operands", NO_OPERANDS)
        yield Attack(*command, "--gpu", NO_NAME)
    for command in (predict, ranked, problem):
        yield Attack(*command, "-k", (*NO_COUNT, "0"))
        yield Attack(*command, "--power", NO_NAME)
        yield Attack(*command, "--model", ("", *NO_TEXT))
        yield Attack(*command, "--model", NO_MODEL, on_ground=True)
    yield Attack("space", (), "--why", NO_CONFIG)
    yield Attack("compile", (), "--config", (*NO_CONFIG, VALID + "0"))
    for command in ("compile", "doctor"):
        yield Attack(command, (), "", NO_PROBLEM)
    for command, more, option in (
        ("compile", ("--config", VALID), "--workers"),
        ("collect", store, "--workers"),
        ("collect", store, "--budget"),
        ("train", ("--out", "o"), "--jobs"),
        ("evaluate", (), "--jobs"),
    ):
        yield Attack(command, more, option, (*NO_COUNT, "0"))
    yield Attack("train", ("--out", "o"), "--seed", NO_COUNT)
    yield Attack("collect", store, "--devices", (*NO_COUNT, ",", "0,", "0,,1", "0-1", "all"))
    yield Attack("collect", store, "--suite", NO_NAME)
    yield Attack("collect", store, "--gpu", NO_NAME)
    yield Attack("evaluate", (), "--only", NO_NAME)
    yield Attack("evaluate", (), "--power", NO_NAME)
    for command, more in (predict, ("train", ("--out", "o")), ("evaluate", ())):
        yield Attack(command, more, "--data", ("", *NO_TEXT))
        yield Attack(command, more, "--data", NO_DATA, on_ground=True)
    for command, more, option in (
        ("train", (), "--out"),
        ("collect", (), "--store"),
        ("collect", store, "--export"),
        ("collect", store, "--cache"),
        ("compile", ("--config", VALID), "--cache"),
    ):
        yield Attack(command, more, option, ("", *NO_TEXT))
        bad = NO_EXPORT if option == "--export" else NO_OUT
        yield Attack(command, more, option, bad, on_ground=True)
    yield Attack("evaluate", (), "--model", NO_MODEL, on_ground=True)
    yield Attack("compile", (), "--common", (*NO_COUNT, "0", "2001"))
    yield Attack("objects", ("prune",), "--keep", NO_SIZE)
    yield Attack("objects", ("unpack",), "", ("", *NO_TEXT))
    yield Attack("objects", ("unpack",), "", (*NO_FOLDER, "text"), on_ground=True)
    for action in (("list",), ("pack", "p"), ("unpack", "p"), ("prune", "--keep", "1G")):
        yield Attack("objects", action, "--cache", ("", *NO_TEXT))
        yield Attack("objects", action, "--cache", ["missing", *NO_OUT], on_ground=True)
    tune = ("tune", (*store, "--out", "o"))
    takers = (("predict", ()), ("compile", ()), ("collect", store), ("evaluate", ()), tune)
    for command, more in takers:
        for option in ("--problems", "--hf-config"):
            yield Attack(command, more, option, ("", *NO_TEXT))
            yield Attack(command, more, option, NO_PROBLEMS, on_ground=True)
        for option in ("--tp", "--rows"):
            yield Attack(command, more, option, (*NO_EXTENT, ",", "1,", "1,,2", "1-4", "all"))
    for command in [
        "predict",
        "space",
        "compile",
        "objects",
        "collect",
        "train",
        "evaluate",
        "tune",
        "doctor",
    ]:
        yield Attack(command, (), "", ("--guess", "--json=1", "--jso", "-z", "\udcff"))
        yield Attack(command, (), "--guess", ("", "x", "é"))


ATTACKS = list(_attacks())
ALONE = [
    [],
    ["guess"],
    [""],
    ["\udcff"],
    ["--json"],
    ["-k", "3"],
    ["predict"],
    ["predict", "--m", "64"],
    ["predict", *MEASURED[:4]],
    ["predict", *MEASURED, "extra"],
    ["predict", *MEASURED, "--operands", "fp16:rcr>fp32"],
    ["predict", *MEASURED, "--k", "4095"],
    ["predict", *MEASURED, "--operands", "bf16:ccr", "--m", "7"],
    ["predict", *MEASURED, "--problems", "own.csv"],
    ["predict", *MEASURED, "--hf-config", "config.json"],
    ["predict", *MEASURED, "--tp", "2"],
    ["predict", *MEASURED, "--rows", "2"],
    ["predict", "--problems", "own.csv"],
    ["predict", "--problems", "own.csv", "--batch", "2"],
    ["predict", "--problems", "own.csv", "--operands", "fp16:rcr"],
    ["predict", "--problems", "own.csv", "--data", "data.parquet"],
    ["predict", "--problems", "own.csv", "--tp", "2"],
    ["predict", "--problems"],
    ["space", "--n", "8"],
    ["space", "--batch", "2"],
    ["space", "extra"],
    ["space", "--operands", "bf16:rcr:row-scales"],
    ["space", "--operands", "e4m3:rrr"],
    ["compile", "-k", "3"],
    ["compile", "--power", "burst"],
    ["compile", "--model", "."],
    ["compile", "--config", VALID, "16x64x64"],
    ["compile", "--config", VALID, "-k", "1"],
    ["compile", "--config", VALID, "--model", "."],
    ["compile", "16x64x64", "--power", "burst"],
    ["compile", "16x64x64", "-k", "65"],
    ["compile", "--config", "256x256x64_c1x1x1_s2_coop_o1_rm8"],
    ["compile", "--config", VALID, "--problems", "own.csv"],
    ["compile", "--config", VALID, "--hf-config", "config.json"],
    ["compile", "--problems", "own.csv", "--power", "burst"],
    ["compile", "--problems", "own.csv", "--operands", "fp16:rcr"],
    ["compile", "--rows", "2"],
    ["compile", "16x64x64", "--problems", "own.csv"],
    ["compile", "--common"],
    ["compile", "--common", "5", "16x64x64"],
    ["compile", "--common", "5", "--config", VALID],
    ["compile", "--common", "5", "-k", "1"],
    ["compile", "--common", "5", "--problems", "own.csv"],
    ["compile", "--common", "5", "--rows", "2"],
    ["objects"],
    ["objects", "guess"],
    ["objects", "list"],
    ["objects", "list", "extra"],
    ["objects", "pack"],
    ["objects", "pack", "p", "--keep", "1G"],
    ["objects", "unpack"],
    ["objects", "prune"],
    ["objects", "prune", "--keep"],
    ["collect"],
    ["collect", "--store"],
    ["collect", "--store", "s", "--problems", "own.csv"],
    ["tune", "--store", "s", "--out", "o"],
    ["tune", "--store", "s", "--problems", "own.csv"],
    ["tune", "--store", "s", "--out", "o", "--tp", "2"],
    ["collect", "--store", "run.db", "--rows", "2"],
    ["evaluate", "--tp", "2"],
    ["evaluate", "--problems", "own.csv"],
    ["evaluate", "--problems", "own.csv", "--rows", "2"],
    ["train"],
    ["train", "--out"],
    ["train", "--out", "/proc/tilecast"],
    ["train", "--out", "/dev/full"],
    ["doctor", "--power", "eco"],
    ["doctor", "-k", "0"],
    ["doctor", "64x4096x4096", "extra"],
    ["doctor", "64x4096x4096", "-k", "65"],
]
"""Companions that are missing, or that exclude each other."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the bad paths are; nothing may change here."""
    folder = tmp_path_factory.mktemp("ground")
    (folder / "file").write_text("some text\n")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere/at/all")
    # Whoever reads this as root gets an error, too.
    (folder / "device").symlink_to("/proc/self/mem")
    (folder / "text").write_bytes(b"PAR1 and then text\nPAR1")
    (folder / "rows.csv").write_text("m,n,k\n16,64,63\n")
    for name, manifest in MANIFESTS.items():
        (folder / name).mkdir()
        (folder / name / "manifest.json").write_bytes(manifest)
    return folder


def _place(ground: Path, name: str) -> str:
    special = {"long": "x" * 300, "below": "file/below/it"}
    return str(ground / special.get(name, name))


def _picture(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything in a folder with its size and time."""
    entries = ((path, path.lstat()) for path in sorted(folder.rglob("*")))
    return {str(path): (found.st_size, found.st_mtime_ns) for path, found in entries}


@pytest.fixture
def complaint(
    ground: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Callable[[Sequence[str]], str | None]:
    """Runs a command that must be refused; returns what is wrong with how it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "objects"))
    monkeypatch.setattr("tilecast.data_collection.run.collect.collect", _opened)
    monkeypatch.setattr("tilecast.data_collection.dataset.dataset.read_dataset", _read_once)
    for target in (
        "tilecast.models.learning.training.train",
        "tilecast.models.evaluation.evaluation.evaluate",
        "tilecast.kernels.build.builder.compile_all",
    ):
        monkeypatch.setattr(target, _reached)

    def run(arguments: Sequence[str]) -> str | None:
        folders = (ground, tmp_path)
        before = [_picture(folder) for folder in folders]
        try:
            status = main(arguments)
        except BaseException as error:
            return f"raised {error!r}"
        out, err = capfd.readouterr()
        if status != 2 or out:
            return f"status {status}, printed {out[:200]!r}, {err[:500]!r}"
        return _ill_told(err) or (
            "wrote" if [_picture(folder) for folder in folders] != before else None
        )

    return run


def _reached(*arguments: object, **named: object) -> None:
    raise AssertionError("bad input was taken for good")


_read_once = functools.cache(read_dataset)
"""Two commands read the shipped one, whatever else is wrong."""


def _opened(options: CollectOptions, report: object) -> None:
    MeasurementStore(options.store).close()
    _reached()


def _ill_told(err: str) -> str | None:
    """What is wrong with a refusal on standard error."""
    line = err.removesuffix("\n")
    if not line.startswith("tilecast: error: ") or "allowed" not in line:
        return f"said {err[:500]!r}"
    if not line.isprintable() or len(line) > 700 or "fault of tilecast" in line:
        return f"said {err[:1000]!r}"
    return None


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_bad_value_is_refused_in_one_line(
    attack: Attack, ground: Path, complaint: Callable[[Sequence[str]], str | None]
) -> None:
    _expect_refusals(complaint, attack.commands(ground))


def test_missing_and_excluding_companions(
    complaint: Callable[[Sequence[str]], str | None],
) -> None:
    _expect_refusals(complaint, ALONE)


def _expect_refusals(
    complaint: Callable[[Sequence[str]], str | None], commands: Iterable[Sequence[str]]
) -> None:
    wrong = [(text, repr(command)) for command in commands if (text := complaint(command))]
    assert not wrong, "\n".join(f"{command[:200]} {text}" for text, command in wrong)


def test_there_are_more_than_four_hundred() -> None:
    distinct = {
        (attack.command, attack.before, attack.option, value)
        for attack in ATTACKS
        for value in attack.values
    }
    assert len(distinct) + len(ALONE) > 400


# ---- in a process of its own


def _shell(command: str, **environment: str | bytes) -> subprocess.CompletedProcess[bytes]:
    """Run ``tilecast`` as a shell does, with ``$T`` for what starts it."""
    start = f"{sys.executable} -m tilecast.cli.main"
    names = {os.fsencode(k): os.fsencode(v) for k, v in (os.environ | environment).items()}
    return subprocess.run(
        ["bash", "-c", command], env=names | {b"T": start.encode()}, capture_output=True, timeout=60
    )


@pytest.mark.parametrize(
    "command",
    [
        f"$T space --why {VALID} > /dev/full",
        f"$T space --why {VALID} --json > /dev/full",
        "$T space --help > /dev/full",
        "$T --help > /dev/full",
        f"$T space --why {VALID} >&-",
        "$T space --help >&-",
        "$T space --gpu $'\\xff'",
        "$T $'space\\xc3'",
        "$T space --why=$'a\\x1b[2J\\n\\tb'",
        "$T space --m=--",
        "$T space --m $(printf '9%.0s' {1..5000}) --n 8 --k 8",
    ],
)
def test_process_is_refused_in_one_line(command: str) -> None:
    process = _shell(command)
    assert (process.returncode, process.stdout) == (2, b"")
    assert _ill_told(process.stderr.decode()) is None


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_without_standard_error_the_status_still_tells(closed: str) -> None:
    process = _shell(f"$T space --gpu x {closed}")
    assert (process.returncode, process.stdout, process.stderr) == (2, b"", b"")


@pytest.mark.parametrize("cache", ["~nosuchuser", "loop", "file", "long", "below", "dangling"])
def test_cache_named_in_the_environment(
    cache: str,
    ground: Path,
    complaint: Callable[[Sequence[str]], str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TILECAST_CACHE", cache if "~" in cache else _place(ground, cache))
    assert complaint(["compile", "--config", VALID]) is None


def test_narrow_locale_is_no_reason_to_fail() -> None:
    process = _shell(
        f"$T space --why {VALID} --m 8 --n 8 --k 8",
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
    )
    assert (process.returncode, process.stderr) == (0, b"")
