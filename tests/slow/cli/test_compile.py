"""``tilecast compile`` with real compilers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Answer = Callable[..., dict]


@pytest.fixture
def model(small_model_folder: Path) -> str:
    return str(small_model_folder)


def test_compile_builds_once(answer: Answer, tmp_path: Path) -> None:
    command = ("compile", "64x4096x4096", "-k", "1", "--cache", str(tmp_path), "--workers", "1")
    first = answer(*command)
    assert (first["compiled"], first["found"], first["failed"]) == (1, 0, 0)
    (kernel,) = first["kernels"]
    assert kernel["registers"] == 168
    assert kernel["spill_bytes"] == 0
    assert Path(tmp_path, f"{kernel['key']}.o").is_file()
    again = answer(*command)
    assert (again["compiled"], again["found"], again["failed"]) == (0, 1, 0)


def test_compile_builds_what_the_model_ranks_first(
    answer: Answer, model: str, tmp_path: Path
) -> None:
    """For a file of problems beside extents, of which each kernel is built once."""
    own, how = tmp_path / "own.csv", ("--model", model, "-k", "2")
    own.write_text("m,n,k\n48,1024,512\n4096,4096,4096\n")
    predicted = answer("predict", "--problems", str(own), *how)["problems"]
    own.write_text("m,n,k\n48,1024,512\n48,1024,512\n")
    cache = ("--cache", str(tmp_path / "objects"), "--workers", "2")
    built = answer("compile", "4096x4096x4096", "--problems", str(own), *how, *cache)
    wanted = {entry["config"] for found in predicted for entry in found["ranking"]}
    assert {kernel["config"] for kernel in built["kernels"]} == wanted
    assert built["compiled"] == len(wanted)
    again = answer("compile", "--problems", str(own), *how, *cache)
    assert (again["compiled"], again["failed"]) == (0, 0)
    assert again["found"] == len(predicted[0]["ranking"])
