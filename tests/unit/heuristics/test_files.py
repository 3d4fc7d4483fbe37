"""Atomic writes: the old file or the new one, never half of one, and nothing left lying around."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilecast.cli.options.output_paths import check_file
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import STALE_SECONDS, replace_atomically, write_atomically


def test_writes_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, lambda file: file.write_text("new"))
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o755])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    write_atomically(path, lambda file: file.write_text("new"))
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_a_new_file_is_what_the_umask_allows(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file", lambda file: file.write_text("new"))
        replace_atomically(tmp_path / "own", lambda file: file.write_text("new"))
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o644


def test_what_is_not_to_be_read_is_not_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(0o600)
    modes: list[int] = []
    write_atomically(path, lambda file: modes.append(file.stat().st_mode & 0o777))
    assert modes == [0o600]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "far"
    folder.mkdir()
    if there:
        (folder / "file").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("far/file")
    write_atomically(link, lambda file: file.write_text("new"))
    assert link.readlink() == Path("far/file")
    assert (folder / "file").read_text() == "new"
    assert set(tmp_path.rglob("*")) == {folder, link, folder / "file"}


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link_to_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Path.mkdir, r" \(a folder\); allowed: a file"),
        (_fifo, r" \(no regular file\); allowed: a file"),
        (_link_to_fifo, r" \(no regular file\); allowed: a file"),
        (lambda path: path.symlink_to(path), r": .*symbolic links; allowed: "),
    ],
)
def test_what_is_no_file_is_refused_and_stays(tmp_path: Path, make, why: str) -> None:
    path = tmp_path / "out"
    make(path)
    before = {one: one.lstat().st_ino for one in tmp_path.iterdir()}
    for refusing in (
        check_file,
        lambda path: write_atomically(path, lambda file: file.write_text("new")),
    ):
        with pytest.raises(TilecastError, match=f"cannot write {path}{why}"):
            refusing(path)
    assert {one: one.lstat().st_ino for one in tmp_path.iterdir()} == before


def test_own_files_replace_whatever_stands_there(tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "link"
    other.write_text("other")
    link.symlink_to(other)
    os.mkfifo(tmp_path / "pipe")
    for path in (link, tmp_path / "pipe"):
        replace_atomically(path, lambda file: file.write_text("new"))
        assert path.lstat().st_size == 3
        assert path.read_text() == "new"
    assert other.read_text() == "other"


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


def _write(path: Path, signalled: str = "SIGCONT") -> None:
    """Write a file in a process of its own, which gets a signal meanwhile."""
    code = (
        "import os, pathlib, signal, sys\n"
        "from tilecast.heuristics.files import write_atomically\n"
        "path, number = pathlib.Path(sys.argv[1]), getattr(signal, sys.argv[2])\n"
        "write_atomically(path, lambda file: os.kill(os.getpid(), number))"
    )
    subprocess.run([sys.executable, "-c", code, str(path), signalled], check=False)


def test_what_a_killed_writer_left_is_removed_later(tmp_path: Path) -> None:
    """Not at once: it might be at work still, on another host. A process looks once."""
    _write(tmp_path / "file", "SIGKILL")
    (left,) = tmp_path.iterdir()
    other = tmp_path / "other"
    write_atomically(other, lambda file: file.write_text("new"))
    assert set(tmp_path.iterdir()) == {left, other}
    old = time.time() - STALE_SECONDS - 1
    os.utime(left, (old, old))
    write_atomically(other, lambda file: file.write_text("newer"))
    assert set(tmp_path.iterdir()) == {left, other}
    os.utime(other, (old, old))
    _write(tmp_path / "third")
    assert set(tmp_path.iterdir()) == {other, tmp_path / "third"}


def test_the_file_is_flushed_before_and_its_folder_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[Path, bool]] = []
    path = tmp_path / "file"

    def fsync(handle: int) -> None:
        flushed.append((Path(f"/proc/self/fd/{handle}").readlink(), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(path, lambda file: file.write_text("new"))
    (first, before), last = flushed
    assert first.parent == tmp_path
    assert not before
    assert last == (tmp_path, True)
