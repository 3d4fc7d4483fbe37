"""The object cache: whole entries or none, whatever happens to its files and whoever writes."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.objects import cache as object_cache
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.objects.entry import KernelResources
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

SPEC = KernelSpec(QuackConfig(128, 128, 64), LINEAR_BF16)
OTHER = KernelSpec(QuackConfig(64, 128, 64), LINEAR_BF16)


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "objects")


@pytest.fixture
def code(object_file: Callable[..., bytes]) -> bytes:
    return object_file(168, 16)


def test_round_trip(cache: ObjectCache, code: bytes) -> None:
    assert cache.resources(SPEC) is cache.code(SPEC) is None
    assert cache.put(SPEC, code) == KernelResources(168, 16)
    assert cache.resources(SPEC) == KernelResources(168, 16)
    assert cache.code(SPEC) == code
    assert cache.resources(OTHER) is cache.code(OTHER) is None


def test_nothing_but_the_file_is_left(cache: ObjectCache, code: bytes) -> None:
    with cache.exclusive(SPEC):
        cache.put(SPEC, code)
    assert list(cache.root.iterdir()) == [cache.path(SPEC)]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _flip_a_fact(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"registers": 168', b'"registers": 169'))


def _remove(path: Path) -> None:
    path.unlink()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    """Even to a whole entry: the file behind it may lie where others write."""
    other = path.with_name("elsewhere")
    path.rename(other)
    path.symlink_to(other)


def _let_others_write(path: Path) -> None:
    path.chmod(0o646)


def _grow(path: Path) -> None:
    """Without a bound on what is read, 20 GB of zeros."""
    os.truncate(path, 20 << 30)


def _give_away(path: Path) -> None:
    try:
        os.chown(path, os.geteuid() + 1, -1)
    except PermissionError:
        pytest.skip("only root gives files away")


@pytest.mark.parametrize(
    "damage",
    [
        *(_cut, _empty, _flip, _flip_a_fact, _remove, _fifo),
        *(_link, _let_others_write, _grow, _give_away),
    ],
)
def test_entry_that_is_not_whole_and_own_counts_as_absent_and_is_put_again(
    cache: ObjectCache, code: bytes, damage: Callable[[Path], None]
) -> None:
    cache.put(SPEC, code)
    damage(cache.path(SPEC))
    assert cache.resources(SPEC) is cache.code(SPEC) is None
    cache.put(SPEC, code)
    assert cache.code(SPEC) == code
    assert not cache.path(SPEC).is_symlink()


def test_a_folder_in_the_place_of_an_entry(cache: ObjectCache, code: bytes) -> None:
    cache.path(SPEC).mkdir(parents=True)
    cache.root.chmod(0o700)
    assert cache.resources(SPEC) is None
    with pytest.raises(TilecastError, match=r"cannot write .*\.o: Is a directory; allowed: "):
        cache.put(SPEC, code)


@pytest.mark.parametrize(
    "facts", [b"[]", b"null", b"{}", b'{"key": 1}', b'{"resources": []}', b"\xff", b"[" * 100_000]
)
def test_facts_of_another_shape_count_as_absent(
    cache: ObjectCache, code: bytes, facts: bytes
) -> None:
    cache.put(SPEC, code)
    content = code + b"\n" + facts
    digest = hashlib.sha256(content).hexdigest().encode()
    cache.path(SPEC).write_bytes(content + b"\n" + digest)
    assert cache.resources(SPEC) is None


def test_object_under_another_name_counts_as_absent(
    cache: ObjectCache, code: bytes, object_file: Callable[..., bytes]
) -> None:
    cache.put(SPEC, code)
    cache.put(OTHER, object_file(232, 0))
    cache.path(SPEC).write_bytes(cache.path(OTHER).read_bytes())
    assert cache.resources(SPEC) is None


def test_code_that_is_no_object_is_never_stored(cache: ObjectCache) -> None:
    with pytest.raises(TilecastError, match="object file"):
        cache.put(SPEC, b"no object")
    assert not cache.root.exists()


@pytest.mark.parametrize("root", ["/proc/tilecast", "/dev/null/tilecast", "/dev/null"])
def test_folder_that_cannot_be_written_is_told(root: str, code: bytes) -> None:
    cache = ObjectCache(Path(root))
    assert cache.resources(SPEC) is None
    with pytest.raises(TilecastError, match=rf"cannot write {root}/.*; allowed: a writable folder"):
        cache.put(SPEC, code)
    with (
        pytest.raises(TilecastError, match=rf"cannot write {root}/.*; allowed: a writable folder"),
        cache.exclusive(SPEC),
    ):
        pass


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE, errno.ESTALE])
@pytest.mark.parametrize("what", ["folder", "entry"])
def test_no_error_of_the_system_gets_through(
    cache: ObjectCache, code: bytes, monkeypatch: pytest.MonkeyPatch, number: int, what: str
) -> None:
    cache.put(SPEC, code)
    really_open = os.open

    def fail(path, flags, mode=0o777, *, dir_fd=None):
        if (dir_fd is None) == (what == "folder"):
            raise OSError(number, os.strerror(number))
        return really_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", fail)
    if what == "entry":
        assert cache.resources(SPEC) is cache.code(SPEC) is None
    else:
        with pytest.raises(TilecastError, match=os.strerror(number)):
            cache.resources(SPEC)


def test_the_folder_is_this_users_alone_whatever_the_umask(tmp_path: Path, code: bytes) -> None:
    for umask in (0o000, 0o002, 0o077, 0o277):
        cache = ObjectCache(tmp_path / f"{umask:o}" / "deep" / "objects")
        before = os.umask(umask)
        try:
            cache.put(SPEC, code)
        finally:
            os.umask(before)
        assert [folder.stat().st_mode & 0o777 for folder in (cache.root, cache.root.parent)] == [
            0o700,
            0o700,
        ]
        assert cache.code(SPEC) == code


def _refuses(cache: ObjectCache, code: bytes, why: str) -> None:
    """Whoever asks is told in one line why, and nothing is read or written."""
    with pytest.raises(TilecastError, match=why) as refusal:
        cache.resources(SPEC)
    assert "\n" not in str(refusal.value)
    with pytest.raises(TilecastError, match=why):
        cache.code(SPEC)
    with pytest.raises(TilecastError, match=why):
        cache.put(OTHER, code)
    with pytest.raises(TilecastError, match=why), cache.exclusive(OTHER):
        pass
    assert list(cache.root.iterdir()) == [cache.path(SPEC)]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_refused(
    cache: ObjectCache, code: bytes, mode: int
) -> None:
    cache.put(SPEC, code)
    cache.root.chmod(mode)
    _refuses(cache, code, rf"mode {mode:o}\) .*; allowed: .*; run `chmod go-w {cache.root}`")
    cache.root.chmod(0o755)
    assert cache.code(SPEC) == code


def test_a_folder_of_another_user_is_refused(
    cache: ObjectCache, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(SPEC, code)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    _refuses(cache, code, rf"owner {other - 1}, .*; allowed: one that user {other} owns")


def test_least_recently_asked_for_entries_are_removed(
    cache: ObjectCache, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [KernelSpec(QuackConfig(64, 64, 64, stages=n), LINEAR_BF16) for n in range(2, 8)]
    for spec in specs:
        cache.put(spec, code)
    cache.tidy()
    assert None not in map(cache.resources, specs)
    for spec in (specs[0], specs[3]):
        assert cache.code(spec)
    size = cache.path(specs[0]).stat().st_size
    monkeypatch.setattr(object_cache, "MOST_BYTES", 3 * size + size // 2)
    cache.tidy()
    cache.tidy()
    left = {path.name for path in cache.root.iterdir()}
    assert left == {cache.path(spec).name for spec in (specs[0], specs[3], specs[5])}


@pytest.mark.parametrize("named", [None, ""])
@pytest.mark.parametrize("home", ["/caches", "", "caches", "./", None])
def test_default_folder_is_never_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, named: str | None, home: str | None
) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    for name, value in (("TILECAST_CACHE", named), ("XDG_CACHE_HOME", home)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    expected = "/caches/tilecast" if home == "/caches" else "/users/me/.cache/tilecast"
    assert default_root() == Path(expected)


def test_default_folder_with_an_older_platformdirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    monkeypatch.delenv("TILECAST_CACHE", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: Path("caches", name))
    assert default_root() == Path("/users/me/.cache/tilecast")


def test_default_folder_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILECAST_CACHE", "~/mine")
    assert default_root() == Path.home() / "mine"
    for named in ("mine", "./mine", ".", " ", "~nosuchuser/mine"):
        monkeypatch.setenv("TILECAST_CACHE", named)
        with pytest.raises(TilecastError, match="no folder .*; allowed: an absolute path or one"):
            default_root()
