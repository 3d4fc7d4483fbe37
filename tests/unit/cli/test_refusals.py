"""Bad input to every command: one clear line, exit status 2, nothing written, no traceback.

Each option meets every bad value of its type, in this process for speed. `REFUSALS` has requests
that need a message of their own; tests/slow/cli has what only a process of its own can show.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import VALID, wrong_in

from tilecast.cli.main import COMMANDS, main
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.collect import CollectOptions

MEASURED = ("64x4096x4096",)

NO_TEXT = ("\udcff", "a\udc80b", "\0", "/tmp/\ud800")
NO_COUNT = (
    *("", " ", "x", "1.5", "1e3", "nan", "-inf", "-1", "0x10", "1 2", "½", "四", "[]", "--"),
    *("9" * 30, "9" * 5000, "-" + "9" * 5000, "1\n2", "5\r", " 5", "1_6", "+16", "１６", *NO_TEXT),
)
"""No integer, or one that no option takes; zero is apart, since a device may be it."""
NO_NAME = ("", " ", "x", "💥" * 60, "a" * 5000, "a b " * 2000, "[/]", "%s", "../..", *NO_TEXT)
NO_LIST = (*NO_COUNT, "0", "2147483648", ",", "1,", "1,,2", "1-4", "all")
NO_OPERANDS = (
    *(*NO_NAME, "bf16", "bf16:", ":rcr", "bf16:rc", "bf16:rcrr", "bf16:RCR", "BF16:rcr"),
    *("fp32:rcr", "bf16:rcr>", "bf16:rcr>fp99", "bf16:rcr@", "bf16:rcr:glue", "bf16xint3:rcr"),
)
NO_PROBLEM = (
    *(*NO_NAME, "16", "16x64", "16x64x", "x16x64x64", "1x2x3x4x5", "16x64xk", "-16x64x64"),
    *("16x64x64\r", "1_6x64x64", "+16x64x64", "１６x64x64"),
    *("16X64X64", "1.5x64x64", "0x64x64", "16x64x63", "2147483648x64x64", "9" * 5000 + "x64x64"),
)
NO_SIZE = (*NO_COUNT, "K", "5X", "2GB", "1.5G", "-1G", "500m", "1 G", "1_000", "٣M")
NO_CONFIG = (*NO_NAME, "128x128", "torch.mm", VALID.replace("128", "9" * 5000))
NO_FOLDER = [
    *("missing", "file", "folder", "loop", "dangling", "long", "below", "device"),
    *("fifo", "endless", "huge"),
]
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
NO_OUT = ["file", "loop", "dangling", "long", "below", "device", "fifo", "endless"]
NO_EXPORT = ["folder", "long", "below", "fifo", "endless"]


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
    train, ranked = ("train", ("--out", "o")), ("compile", ("64x4096x4096", "-k", "1"))
    yield Attack("space", (), "", NO_PROBLEM)
    yield Attack("space", (), "--operands", NO_OPERANDS)
    for command in (predict, ("collect", store), train):
        yield Attack(*command, "--gpu", NO_NAME)
    for command in (predict, ranked, problem):
        yield Attack(*command, "-k", (*NO_COUNT, "0"))
        yield Attack(*command, "--model", ("", *NO_TEXT))
        yield Attack(*command, "--model", NO_MODEL, on_ground=True)
    for command in (predict, problem, ("evaluate", ())):
        yield Attack(*command, "--power", NO_NAME)
    yield Attack("space", (), "--why", NO_CONFIG)
    for command in ("compile", "doctor", "predict"):
        yield Attack(command, (), "", NO_PROBLEM)
    yield Attack("compile", ("16x64x64",), "--workers", (*NO_COUNT, "0"))
    yield Attack("compile", (), "--common", (*NO_COUNT, "0", "2001"))
    yield Attack("compile", ("--invariant",), "--common", ("5",))
    yield Attack(*train, "--jobs", (*NO_COUNT, "0"))
    yield Attack("collect", store, "--budget", (*NO_COUNT, "0", "1d", "20 m"))
    yield Attack("collect", store, "--devices", (*NO_COUNT, ",", "0,", "0,,1", "0-1", "all"))
    yield Attack("collect", store, "--suite", NO_NAME)
    for command in (predict, train):
        yield Attack(*command, "--data", ("", *NO_TEXT))
        yield Attack(*command, "--data", NO_DATA, on_ground=True)
    for command, more, option in (
        ("train", (), "--out"),
        ("collect", (), "--store"),
        ("collect", store, "--export"),
        ("compile", ("16x64x64",), "--cache"),
        ("report", ("own.csv",), "--out"),
    ):
        yield Attack(command, more, option, ("", *NO_TEXT))
        bad = NO_EXPORT if option == "--export" else NO_OUT
        yield Attack(command, more, option, bad, on_ground=True)
    yield Attack("evaluate", (), "--model", NO_MODEL, on_ground=True)
    yield Attack("objects", ("prune",), "--keep", NO_SIZE)
    yield Attack("objects", ("unpack",), "", ("", *NO_TEXT))
    yield Attack("objects", ("unpack",), "", (*NO_FOLDER, "text"), on_ground=True)
    for action in (("list",), ("pack", "p"), ("unpack", "p"), ("ship", "p"), ("prune", "--keep=1")):
        yield Attack("objects", action, "--cache", ["missing", *NO_OUT], on_ground=True)
    for option in ("--problems", "--hf-config"):
        yield Attack("predict", (), option, ("", *NO_TEXT))
        takers = {"predict": (), "compile": (), "collect": store, "evaluate": ()}
        for command, more in takers.items():
            yield Attack(command, more, option, NO_PROBLEMS, on_ground=True)
    for option in ("--tp", "--rows"):
        yield Attack("predict", (), option, NO_LIST)
    for command in COMMANDS:
        yield Attack(command, (), "", ("--", "--guess", "--json=1", "--jso", "-z", "\udcff"))


ATTACKS = list(_attacks())
RANKS = "--model and --power choose what ranks"
ALONE = "--common stands alone; allowed: "
MANY = "shows what was measured of a problem; allowed: with one"
REFUSALS = [
    ("", "arguments are required: COMMAND"),
    ("guess", "invalid choice: 'guess'"),
    ("space --gp=H200", "unrecognized arguments: --gp=H200"),
    ("space --operands bf16:rcr:row-scales", "row-scales"),
    ("space --operands int4:rcr", "dtype 'int4' is not known"),
    ("space 16x6144x4100", "k=4100 breaks the 16-byte rule of A"),
    ("space 16x6141x4096 --operands bf16:rrr", "pad n to 6144"),
    ("space 7x64x64 --operands bf16:ccr", "m=7 breaks the 16-byte rule of A"),
    ("predict", "no problem is given; allowed: MxNxK"),
    ("predict 64x4096x4096 --operands fp16:rcr>fp32", "no model is for fp16:rcr>fp32"),
    ("predict --problems {own} --operands fp16:rcr", "--operands is for MxNxK"),
    ("predict --problems {own} --data d", f"--data {MANY}"),
    ("predict 16x64x64 32x64x64 --data d", f"--data {MANY}"),
    ("predict --problems {own} --tp 2", "--tp and --rows shape a model's layers"),
    ("predict --problems {own} --choices {}/a.txt", "{}/a.txt cannot hold choices; allowed: "),
    ("predict --problems {own} --choices /proc/no/a.csv", "cannot write /proc/no: "),
    ("predict --problems {own} --choices {own}", "reads, keeps or writes {own} there"),
    ("compile -k 3", "-k needs problems to rank for; allowed: MxNxK"),
    ("compile", "nothing to compile is named; allowed: MxNxK"),
    ("compile --all 16x64x64", "--all stands alone; allowed: "),
    ("compile --all --common 5", ALONE),
    ("compile --power burst", f"{RANKS}; allowed: with -k or --common"),
    ("compile 16x64x64 --power burst", RANKS),
    ("compile 16x64x64 -k 65", "k=65 is out of range; allowed: 1 to 64"),
    ("compile 16x64x64 --cache /proc/tilecast", "cannot write /proc/tilecast: "),
    ("compile --problems {own} --operands fp16:rcr", "--operands is for MxNxK"),
    ("compile --problems {own} 16x64", "'16x64' is not a problem"),
    ("compile --rows 2", "--tp and --rows shape a model's layers"),
    ("compile --common 5 16x64x64", ALONE),
    ("compile --common 5 -k 3", ALONE),
    ("compile --common 5 --problems {own}", ALONE),
    ("compile --common 5 --operands fp16:rcr>fp32", "no model is for fp16:rcr>fp32"),
    ("objects guess", "argument ACTION: invalid choice: 'guess'"),
    ("objects list", "there is no object cache"),
    ("objects unpack /none", "cannot read /none: No such file"),
    ("objects unpack {own}", "{own} is damaged or no pack"),
    ("collect --store s --candidates exhaustive --model mine", f"{RANKS}; allowed: with --cand"),
    ("collect --store s --candidates exhaustive --power burst", f"{RANKS}; allowed: with --cand"),
    ("collect --store s --model none", "model none is refused"),
    ("collect --store s --candidates guided --model none", "model none is refused"),
    ("collect --store s --address here:1", "--address names a Ray cluster; allowed: with --eng"),
    ("collect --store s --engine ray --devices 0", "--devices is of this host"),
    ("collect --store s --engine ray --workers auto", "--workers is of this host"),
    ("collect --store s --rows 2", "--tp and --rows shape a model's layers"),
    ("tune --store s --out o", "no problem is given; allowed: --problems or --hf-config"),
    ("tune --store s --problems {own} --out {own}", "reads, keeps or writes {own} there"),
    ("campaign --store s/m --problems {own} --out s/m", "reads, keeps or writes s/m there"),
    ("train --out /proc/tilecast", "cannot write /proc/tilecast: "),
    ("train --out o --add /none.parquet", "data set /none.parquet does not exist"),
    ("evaluate --only oracle", "heuristic 'oracle' is not known; allowed: tilecast, "),
    ("evaluate --tp 2", "--tp and --rows shape a model's layers"),
    ("evaluate --problems {own} --operands fp16:rcr", "--operands selects among all"),
    ("report {own} --out {}", "cannot write {} (a folder); allowed: a file"),
    ("report {} --out {}/a.html", "manifest.json cannot be read"),
    ("doctor --model nowhere", "model nowhere is refused"),
    ("doctor --operands fp16:rcr", "--operands are those of a problem"),
    ("doctor 64x64x64 --operands int8xbf16:rcr", "no kernel multiplies int8xbf16:rcr"),
    ("doctor 64x64x64 --operands bf16:rcr>int32", "no kernel multiplies bf16:rcr>int32"),
    ("predict 1x8x2147483640", "no config suits 1x8x2147483640 on H200, as each breaks a rule"),
    ("compile 4096x1x8x512", "no config suits 4096x1x8x512 on H200"),
    ("compile 4096x1x8x512 -k 5", "no config suits 4096x1x8x512 on H200"),
    ("doctor 64x4096x4096 -k 65", "k=65 is out of range; allowed: 1 to 64"),
]
"""Command lines, and what the message must hold; ``{}`` is a folder and ``{own}`` a good file."""


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
    os.mkfifo(folder / "fifo")
    (folder / "endless").symlink_to("/dev/zero")
    with (folder / "huge").open("wb") as file:
        file.truncate(1 << 43)
    (folder / "text").write_bytes(b"PAR1 and then text\nPAR1")
    (folder / "own.csv").write_text("m,n,k\n16,64,64\n")
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
) -> Callable[..., str | None]:
    """Runs a command that must be refused; returns what is wrong with the refusal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "objects"))
    monkeypatch.setattr("tilecast.cli.commands.collect.collect", _opened)
    for target in (
        "tilecast.cli.commands.train.train",
        "tilecast.cli.commands.tune.train_shown",
        "tilecast.cli.commands.evaluate.evaluate",
        "tilecast.cli.commands.compile.compile_all",
    ):
        monkeypatch.setattr(target, _reached)

    def run(arguments: Sequence[str], message: str = "") -> str | None:
        folders = (ground, tmp_path)
        before = [_picture(folder) for folder in folders]
        try:
            status = main(arguments)
        except BaseException as error:
            return f"raised {error!r}"
        out, err = capfd.readouterr()
        if status != 2 or out:
            return f"status {status}, printed {out[:200]!r}, {err[:500]!r}"
        changed = [_picture(folder) for folder in folders] != before
        return wrong_in(err, message) or ("it wrote something" if changed else None)

    return run


def _reached(*arguments: object, **named: object) -> None:
    raise AssertionError("bad input was taken for good")


def _opened(options: CollectOptions, report: object) -> None:
    MeasurementStore(options.store).close()
    _reached()


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_bad_value_is_refused_in_one_line(
    attack: Attack, ground: Path, complaint: Callable[[Sequence[str]], str | None]
) -> None:
    wrong = [(text, repr(c)) for c in attack.commands(ground) if (text := complaint(c))]
    assert not wrong, "\n".join(f"{command[:200]} {text}" for text, command in wrong)


@pytest.mark.parametrize(("line", "message"), REFUSALS)
def test_bad_request_is_refused_with_its_reason(
    line: str, message: str, ground: Path, complaint: Callable[..., str | None]
) -> None:
    def at(text: str) -> str:
        return text.replace("{own}", str(ground / "own.csv")).replace("{}", str(ground / "folder"))

    assert complaint(shlex.split(at(line)), at(message)) is None


@pytest.mark.parametrize("cache", ["~nosuchuser", "loop", "file", "long", "below", "dangling"])
def test_cache_named_in_the_environment(
    cache: str,
    ground: Path,
    complaint: Callable[[Sequence[str]], str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TILECAST_CACHE", cache if "~" in cache else _place(ground, cache))
    assert complaint(["compile", "16x64x64"]) is None


def test_a_core_count_of_the_environment_that_is_none_is_named(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "x")
    message = refused("train", "--jobs", "auto", "--out", str(tmp_path / "model"))
    assert "LOKY_MAX_CPU_COUNT='x' is no number" in message


def test_a_working_folder_that_is_gone_is_named(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the working folder is gone" in refused("predict", "16x64x64")
