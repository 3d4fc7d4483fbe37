"""Atomic writes: the old file or the new one, never half of one, and nothing left lying around."""

from __future__ import annotations

import errno
import multiprocessing
from pathlib import Path

import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically


def test_writes_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, lambda file: file.write_text("new"))
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_replaces_and_is_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    write_atomically(path, lambda file: file.write_text("new"))
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644


def _fill_half_then_run_out_of_space(file: Path) -> None:
    file.write_text("ne")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(
        TilecastError, match=r"cannot write .*file: No space left on device; allowed: .*; name"
    ):
        write_atomically(path, _fill_half_then_run_out_of_space)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_disk_that_is_full_is_told(tmp_path: Path) -> None:
    """``/dev/full`` accepts opening and refuses every byte, as a full disk does."""

    def write_to_full_device(_: Path) -> None:
        with Path("/dev/full").open("wb", buffering=0) as device:
            device.write(b"new")

    with pytest.raises(TilecastError, match="No space left on device"):
        write_atomically(tmp_path / "file", write_to_full_device)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["/proc/tilecast", "/dev/null/tilecast"])
def test_folder_that_cannot_be_written_is_told(folder: str) -> None:
    """Permission bits do not stop root; the process file system and a file in the way do."""
    with pytest.raises(
        TilecastError, match=rf"cannot write {folder}/file: .+; allowed: a writable"
    ):
        write_atomically(Path(folder, "file"), lambda file: file.write_text("new"))


def test_other_errors_pass_through_and_leave_nothing(tmp_path: Path) -> None:
    def fail(file: Path) -> None:
        file.write_text("half")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write_atomically(tmp_path / "file", fail)
    assert list(tmp_path.iterdir()) == []


def _write_repeatedly(path: Path, letter: str) -> None:
    for _ in range(50):
        write_atomically(path, lambda file: file.write_text(letter * 100_000))


def test_concurrent_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _write_repeatedly(path, "z")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_repeatedly, args=(path, c)) for c in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        text = path.read_text()
        assert len(text) == 100_000
        assert len(set(text)) == 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert list(tmp_path.iterdir()) == [path]
