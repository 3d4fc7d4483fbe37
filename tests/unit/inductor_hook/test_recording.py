"""What the hook writes down of the multiplications that it meets, and who else may write there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hook_graph import batched, biased_linear, choices_of, linear, names_of, symbolic, warnings_told
from processes import python
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.kernel import mm

from tilecast.data_collection.problems.problem_files import read_problems
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install
from tilecast.inductor_hook.recording import record
from tilecast.inductor_hook.settings import Settings, cache_key

HEADER = "m,n,k,batch,operands\n"
PROBLEM = GemmProblem(512, 4096, 4096)
LINE = "512,4096,4096,1,bf16:rcr\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own.csv"


def test_every_multiplication_is_written_once_and_read_by_the_commands(
    graph: Any, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(k=2, record=path)
    for _ in range(2):
        choices_of(linear(), "mm")
        choices_of(biased_linear(), "addmm")
        choices_of(batched(64, 128, 4096, 4), "bmm")
        choices_of(linear(48, dtype=torch.float16), "mm")
    assert path.read_text() == (
        f"{HEADER}{LINE}512,4096,4096,1,bf16:rcr:bias\n"
        "64,128,4096,4,bf16:rcr\n48,4096,4096,1,fp16:rcr\n"
    )
    assert read_problems(path) == (
        PROBLEM,
        GemmProblem(512, 4096, 4096, 1, GemmOperands.parse("bf16:rcr:bias")),
        GemmProblem(64, 128, 4096, 4),
        GemmProblem(48, 4096, 4096, 1, GemmOperands.parse("fp16:rcr")),
    )
    assert warnings_told(caplog) == []


def test_what_no_model_knows_is_written_too(graph: Any, path: Path) -> None:
    """It is what somebody will want to collect."""
    install(record=path)
    assert choices_of(linear(dtype=torch.int8), "mm") == []
    assert [problem.operands.text for problem in read_problems(path)] == ["int8:rcr"]


def test_a_symbolic_m_is_written_as_what_it_is_benchmarked_with(graph: Any, path: Path) -> None:
    install(record=path)
    choices_of(linear(symbolic()), "mm")
    assert read_problems(path) == (GemmProblem(17, 4096, 4096),)


@pytest.mark.parametrize(
    "setting", [{"max_autotune": False}, {"max_autotune_gemm_backends": "ATEN"}], ids=str
)
def test_what_the_hook_is_not_asked_about_is_not_written(
    graph: Any, path: Path, setting: dict[str, Any]
) -> None:
    install(record=path)
    with config.patch(setting):
        choices_of(linear(), "mm", [mm.aten_mm])
    choices_of(linear(k=1001), "mm", [mm.aten_mm])  # not covered
    assert counters["tilecast"]["not covered: mm"] == 1
    assert not path.exists()


def test_recording_changes_no_choice_and_no_key(graph: Any, path: Path) -> None:
    install(k=3)
    without, key = names_of(choices_of(linear(), "mm")), cache_key(Settings(3))
    install(k=3, record=path)
    assert names_of(choices_of(linear(), "mm")) == without
    assert cache_key(Settings(3, record=str(path))) == key
    assert Settings(3, record=str(path)) == Settings(3)


# ---- the file


def test_a_file_that_is_there_is_added_to(path: Path) -> None:
    path.touch()
    record(str(path), PROBLEM)
    assert path.read_text() == HEADER + LINE
    with path.open("a") as file:
        file.write("8,8,8,1,bf16:rcr")  # as an editor may leave it
    record(str(path), PROBLEM)
    record(str(path), GemmProblem(1, 16, 32))
    assert path.read_text() == f"{HEADER}{LINE}8,8,8,1,bf16:rcr\n1,16,32,1,bf16:rcr\n"


PROCESSES, EACH = 6, 60
WRITE = f"""
import sys
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.recording import record
assert "torch" not in sys.modules
path, number = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(2):
    for m in range(1, {EACH} + 1):
        record(path, GemmProblem(m, 8 * number, 8))
"""


def test_processes_write_to_one_file_in_whole_lines(path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, path, str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(1, PROCESSES + 1)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert (writer.returncode, errors) == (0, "")
    header, *lines = path.read_text().splitlines(keepends=True)
    assert header == HEADER
    expected = {
        f"{m},{8 * number},8,1,bf16:rcr\n"
        for number in range(1, PROCESSES + 1)
        for m in range(1, EACH + 1)
    }
    assert len(lines) == len(expected) == PROCESSES * EACH
    assert set(lines) == expected
    assert len(read_problems(path)) == PROCESSES * EACH


def _other_columns(path: Path) -> None:
    path.write_text("m,n,k\n8,8,8\n")


def _full_disk(path: Path) -> None:
    path.symlink_to("/dev/full")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.mkdir(), "IsADirectoryError"),
        (lambda path: path.symlink_to("nowhere/at/all"), "FileNotFoundError"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (_full_disk, "No space left on device"),
        (_other_columns, "does not begin with m,n,k,batch,operands; allowed: a new file, or one"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_warning(
    graph: Any, path: Path, caplog: pytest.LogCaptureFixture, spoil: Any, reason: str
) -> None:
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    install(k=2, record=path)
    for m in (16, 512, 512):
        assert len(choices_of(linear(m), "mm")) == 2
    (warning,) = warnings_told(caplog)
    assert warning.startswith("tilecast: recording problems failed (")
    assert reason in warning
    assert warning.endswith(f"some lines are missing from {path}")
    assert "\n" not in warning
    assert counters["tilecast"]["failed: recording problems"] == 3
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_file_that_becomes_writable_gets_what_it_lacks(graph: Any, path: Path) -> None:
    install(k=2, record=path)
    path.mkdir()
    choices_of(linear(), "mm")
    path.rmdir()
    choices_of(linear(), "mm")
    assert path.read_text() == HEADER + LINE


def test_a_line_that_does_not_fit_is_taken_back(path: Path) -> None:
    path.write_text(HEADER + LINE)
    code = f"""
import resource
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.recording import record
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(HEADER + LINE) + 5},) * 2)
record({str(path)!r}, GemmProblem(8, 8, 8))
"""
    process = python(code)
    assert "the disk is full; allowed: a file with room to grow" in process.stderr
    assert path.read_text() == HEADER + LINE
