"""The object cache: whole entries or none, whatever happens to its files and whoever writes."""

from __future__ import annotations

import errno
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import LINEAR_BF16
from tilecast.kernels.object_cache import ObjectCache, default_root
from tilecast.kernels.object_facts import KernelResources
from tilecast.kernels.spec import KernelSpec

SPEC = KernelSpec(KernelConfig(128, 128, 64), LINEAR_BF16)
OTHER = KernelSpec(KernelConfig(64, 128, 64), LINEAR_BF16)


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "objects")


@pytest.fixture
def code(object_file: Callable[..., bytes]) -> bytes:
    return object_file(168, 16)


def test_round_trip(cache: ObjectCache, code: bytes) -> None:
    assert cache.resources(SPEC) is None
    assert cache.put(SPEC, code) == KernelResources(168, 16)
    assert cache.resources(SPEC) == KernelResources(168, 16)
    assert cache.path(SPEC).read_bytes() == code
    assert cache.resources(OTHER) is None


def test_entry_says_what_it_is(cache: ObjectCache, code: bytes) -> None:
    cache.put(SPEC, code)
    entry = json.loads(cache.path(SPEC).with_suffix(".json").read_text())
    assert entry["config"] == SPEC.config.name
    assert entry["arch"] == "sm_90a"
    assert entry["versions"]["nvidia-cutlass-dsl"]


def test_nothing_but_the_two_files_is_left(cache: ObjectCache, code: bytes) -> None:
    cache.put(SPEC, code)
    names = {path.name for path in cache.root.iterdir()}
    assert names == {f"{SPEC.key}.o", f"{SPEC.key}.json"}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("suffix", [".o", ".json"])
@pytest.mark.parametrize("damage", [_cut, _empty, _remove])
def test_damaged_entry_counts_as_absent_and_is_put_again(
    cache: ObjectCache, code: bytes, damage: Callable[[Path], None], suffix: str
) -> None:
    cache.put(SPEC, code)
    damage(cache.path(SPEC).with_suffix(suffix))
    assert cache.resources(SPEC) is None
    cache.put(SPEC, code)
    assert cache.resources(SPEC) == KernelResources(168, 16)


def test_altered_object_counts_as_absent(cache: ObjectCache, code: bytes) -> None:
    cache.put(SPEC, code)
    _flip(cache.path(SPEC))
    assert cache.resources(SPEC) is None


@pytest.mark.parametrize(
    "entry", ["[]", "null", "{}", '{"sha256": 1}', '{"sha256": "x", "resources": []}', "\xff"]
)
def test_entry_of_another_shape_counts_as_absent(
    cache: ObjectCache, code: bytes, entry: str
) -> None:
    cache.put(SPEC, code)
    cache.path(SPEC).with_suffix(".json").write_bytes(entry.encode("latin-1"))
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


def _put_repeatedly(cache: ObjectCache, code: bytes) -> None:
    for _ in range(30):
        cache.put(SPEC, code)


def test_concurrent_processes_read_whole_entries_or_none(cache: ObjectCache, code: bytes) -> None:
    """Writers of one spec write the same object, as a compiler does; readers see all of it."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_put_repeatedly, args=(cache, code)) for _ in range(3)]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(cache.resources(SPEC))
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert seen <= {None, KernelResources(168, 16)}
    assert cache.resources(SPEC) == KernelResources(168, 16)
    assert len(list(cache.root.iterdir())) == 2


@pytest.mark.parametrize("root", ["/proc/tilecast", "/dev/null/tilecast"])
def test_folder_that_cannot_be_written_is_told(root: str, code: bytes) -> None:
    with pytest.raises(TilecastError, match=rf"cannot write {root}/.*; allowed: a writable folder"):
        ObjectCache(Path(root)).put(SPEC, code)


@pytest.mark.parametrize("root", ["/proc/tilecast", "/dev/null/tilecast"])
def test_folder_that_cannot_exist_holds_nothing(root: str) -> None:
    assert ObjectCache(Path(root)).resources(SPEC) is None


def test_full_disk_is_told_and_leaves_nothing_half_written(
    cache: ObjectCache, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_half(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(TilecastError, match="No space left on device; allowed: .* free space"):
        cache.put(SPEC, code)
    assert list(cache.root.iterdir()) == []
    assert cache.resources(SPEC) is None


def test_disk_that_fills_between_object_and_facts_leaves_no_entry(
    cache: ObjectCache, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(path: Path, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", no_space)
        with pytest.raises(TilecastError, match="No space left on device"):
            cache.put(SPEC, code)
    assert cache.resources(SPEC) is None
    cache.put(SPEC, code)
    assert cache.resources(SPEC) == KernelResources(168, 16)


def test_default_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.delenv("TILECAST_CACHE", raising=False)
    assert default_root() == Path("/caches/tilecast")
    monkeypatch.setenv("TILECAST_CACHE", "~/mine")
    assert default_root() == Path.home() / "mine"
