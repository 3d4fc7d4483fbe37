"""The kernels that a wheel brings: written into one file, found when they are asked for."""

from __future__ import annotations

import platform
import random
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.kernels.build.builder import ObjectBuilder, compile_all
from tilecast.kernels.objects import shipped as shipped_objects
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.entry import Entry
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.objects.shipped import ship, shipped, shipped_keys
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

FP16 = GemmOperands.parse("fp16:rcr")
SPECS = [
    KernelSpec(QuackConfig(64, n, 64, stages=stages), operands)
    for operands in (FP16, LINEAR_BF16)
    for n in range(8, 80, 8)
    for stages in (2, 3)
]
SPEC = SPECS[0]
OTHER = KernelSpec(QuackConfig(128, 64, 64), FP16)


@pytest.fixture
def entries(object_file: Callable[..., bytes]) -> list[Entry]:
    return [Entry.of(spec, object_file(168, 8 * n)) for n, spec in enumerate(SPECS)]


@pytest.fixture
def file(tmp_path: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What this installation brings: all of `SPECS`."""
    path = tmp_path / "shipped.zip"
    monkeypatch.setattr(shipped_objects, "SHIPPED", path)
    assert ship(entries, path) == len(SPECS)
    _forget()
    yield path
    _forget()


def _forget() -> None:
    shipped_keys.cache_clear()
    shipped_objects._archive.cache_clear()


def test_every_kernel_is_found_and_no_other(file: Path, entries: list[Entry]) -> None:
    assert shipped_keys().keys() == {kernel_key(spec) for spec in SPECS}
    for spec, entry in zip(SPECS, entries, strict=True):
        assert shipped(kernel_key(spec)) == entry
    assert shipped(kernel_key(OTHER)) is None


def test_the_file_depends_on_the_kernels_alone(
    file: Path, tmp_path: Path, entries: list[Entry]
) -> None:
    ship(reversed(entries), tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_what_is_asked_for_is_put_into_the_cache(file: Path, tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "deep" / "objects")
    assert cache.entry(kernel_key(SPEC)) is None  # looking is not asking
    assert not cache.root.exists()
    found = shipped(kernel_key(SPEC))
    assert found
    assert cache.code(SPEC) == found.code
    assert cache.resources(SPEC) == found.resources
    assert cache.path(SPEC).read_bytes() == found.whole
    assert [*cache.sizes()] == [kernel_key(SPEC)]
    cache.path(SPEC).write_bytes(b"damaged")
    assert cache.code(SPEC) == found.code
    assert cache.path(SPEC).read_bytes() == found.whole


def test_a_cache_that_cannot_be_written_has_them_too(file: Path, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    cache = ObjectCache(tmp_path / "a file" / "objects")
    found = shipped(kernel_key(SPEC))
    assert found
    assert cache.code(SPEC) == found.code
    assert cache.code(OTHER) is None


def test_they_are_not_compiled(file: Path, tmp_path: Path) -> None:
    """No worker starts, which would take seconds."""
    builder = ObjectBuilder(ObjectCache(tmp_path / "objects"), workers=1)
    builder.start(SPEC)
    assert builder.ready(SPEC)
    builder.wait(SPEC)
    assert builder._workers is None
    results = list(compile_all(SPECS, ObjectCache(tmp_path / "others"), 1))
    assert {result.seconds for result in results} == {0.0}
    assert len(ObjectCache(tmp_path / "others").sizes()) == len(SPECS)


@pytest.mark.parametrize("changed", ["toolchain", "machine"])
def test_kernels_of_other_versions_and_hosts_count_for_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    if changed == "machine":
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    else:
        monkeypatch.setattr(shipped_objects, "toolchain", lambda: "another")
    assert shipped_keys() == {}
    assert shipped(kernel_key(SPEC)) is None


def test_without_lzma_everything_is_compiled(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tilecast.kernels.objects.archive", None)
    assert shipped(kernel_key(SPEC)) is None


def test_a_bit_that_flipped_brings_nothing_wrong(file: Path, entries: list[Entry]) -> None:
    whole, source = file.read_bytes(), random.Random(0)
    places = [source.randrange(len(whole)) for _ in range(60)]
    places += range(len(whole) - 400, len(whole))  # the zip's own directory
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << source.randrange(8)
        file.write_bytes(bytes(flipped))
        _forget()
        for spec, entry in [*zip(SPECS, entries, strict=True)][::6]:
            assert shipped(kernel_key(spec)) in (None, entry)


@pytest.mark.parametrize("damage", ["none", "text", "cut", "index", "archive"])
def test_what_is_missing_or_damaged_brings_nothing(file: Path, tmp_path: Path, damage: str) -> None:
    whole = file.read_bytes()
    if damage == "none":
        file.unlink()
    elif damage == "text":
        file.write_text("text")
    elif damage == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    else:
        with zipfile.ZipFile(file) as old:
            content = {name: old.read(name) for name in old.namelist()}
        bad = "index.json" if damage == "index" else shipped_keys()[kernel_key(SPEC)]
        with zipfile.ZipFile(file, "w") as new:
            for name, data in content.items():
                new.writestr(name, data[:-40] if name == bad else data)
        _forget()
    cache = ObjectCache(tmp_path / "objects")
    assert shipped(kernel_key(SPEC)) is None
    assert cache.code(SPEC) is None
