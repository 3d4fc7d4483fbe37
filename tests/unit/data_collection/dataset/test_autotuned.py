"""Reading what the hook wrote down of autotuning: what is of use, and what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tilecast.data_collection.dataset.autotuned import HEADER, Autotuned, read_autotuned
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.objects.keys import toolchain

PROBLEM = GemmProblem(512, 4096, 4096)


@pytest.fixture
def one(h200: Hardware) -> Autotuned:
    first, second = candidates(PROBLEM, h200)[:2]
    times = {first: 0.041, second: 0.04}
    versions = {"torch": "2.15.0", "triton": None}
    return Autotuned(PROBLEM, times, 0.05, "H200", toolchain(), versions, "2026-11-22T00:00:00")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own.jsonl"


def test_a_line_says_all_of_a_measurement(one: Autotuned) -> None:
    fp8 = GemmProblem(64, 128, 256, 3, GemmOperands.parse("e4m3:rcr>bf16:row-scales"))
    for found in (one, replace(one, problem=fp8, library=None)):
        line = found.line()
        assert line.endswith("}\n") and line.count("\n") == 1
        assert Autotuned.of_values(json.loads(line)) == found


def test_files_are_read_in_order_and_equal_times_once(
    one: Autotuned, path: Path, h200: Hardware
) -> None:
    later = replace(one, date="2027-01-01")
    slower = replace(one, milliseconds={c: 2 * t for c, t in one.milliseconds.items()})
    other = replace(one, problem=GemmProblem(16, 4096, 4096))
    path.write_text(HEADER + one.line() + later.line() + slower.line())
    second = path.with_name("second.jsonl")
    second.write_text(HEADER + slower.line() + other.line())
    usable = read_autotuned([path, second], h200)
    assert usable.found == (one, slower, other)
    assert usable.left_out == {}
    assert read_autotuned([], h200).found == ()


def _with(**values: object) -> Callable[[Autotuned], str]:
    def line(one: Autotuned) -> str:
        return json.dumps(json.loads(one.line()) | values) + "\n"

    return line


def _half(one: Autotuned) -> str:
    return one.line()[:70] + "\n"


def _with_time(time: object) -> Callable[[Autotuned], str]:
    return lambda one: _with(milliseconds={next(iter(one.milliseconds)).name: time})(one)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (_half, "damaged"),
        (lambda one: "[" * 100_000 + "\n", "damaged"),
        (lambda one: "\udcff\n", "damaged"),
        (lambda one: "3\n", "damaged"),
        (_with(problem=[512, 4096]), "damaged"),
        (_with(problem=[512, 4096, 4096, 1, "fp99"]), "damaged"),
        (_with(milliseconds={"none": 1.0}), "damaged"),
        (_with(library="fast"), "damaged"),
        *((_with_time(time), "damaged") for time in (0.0, float("nan"), float("inf"), "1")),
        (_with(milliseconds={}), "without a time"),
        (_with(gpu="H100"), "of another GPU than H200"),
        (_with(toolchain="older", milliseconds={"as then": 1.0}), "of kernels of another version"),
        (_with(gpu="H100", milliseconds={"as there": 1.0}), "of another GPU than H200"),
    ],
)
def test_a_line_of_no_use_is_left_out_and_counted(
    one: Autotuned,
    path: Path,
    h200: Hardware,
    line: Callable[[Autotuned], str],
    reason: str,
) -> None:
    useless = line(one).encode(errors="surrogateescape")
    path.write_bytes(HEADER.encode() + useless + one.line().encode() + useless)
    usable = read_autotuned([path], h200)
    assert usable.found == (one,)
    assert usable.left_out == {reason: 2}
    path.write_bytes(HEADER.encode() + useless)
    with pytest.raises(TilecastError, match=rf"none of its lines is of use \(1 {reason}\)"):
        read_autotuned([path], h200)


def _older(path: Path) -> None:
    path.write_text(HEADER.replace("1", "0"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "FileNotFoundError"),
        (lambda path: path.mkdir(), "IsADirectoryError"),
        (lambda path: path.write_text("m,n,k\n1,2,3\n"), "it does not begin with {"),
        (_older, 'it does not begin with {"tilecast": "autotuned", "version": 1}'),
        (lambda path: path.write_text(HEADER), "of use (it has none)"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(
    path: Path, h200: Hardware, make: Callable[[Path], object], reason: str
) -> None:
    make(path)
    with pytest.raises(TilecastError, match="cannot be used: .*; allowed: ") as refused:
        read_autotuned([path], h200)
    message = str(refused.value)
    assert reason in message and "\n" not in message
