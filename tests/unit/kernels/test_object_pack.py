"""Packs and pruning: what moves between caches, what is refused, what is left alone."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.objects import cache as object_cache
from tilecast.kernels.objects import keys
from tilecast.kernels.objects import pack as object_pack
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.objects.pack import Unpacked, pack, unpack
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

SPECS = [KernelSpec(QuackConfig(64, 64, 64, stages=n), LINEAR_BF16) for n in range(2, 8)]
SPEC = SPECS[0]


@pytest.fixture
def cache(tmp_path: Path, object_file: Callable[..., bytes]) -> ObjectCache:
    """With all of `SPECS`, asked for in their order, long ago."""
    cache = ObjectCache(tmp_path / "objects")
    for position, one in enumerate(SPECS):
        cache.put(one, object_file(160 + 8 * position, 0))
        os.utime(cache.path(one), (1e9 + position, 1e9))
    return cache


@pytest.fixture
def other(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "deep" / "other")


def _contents(cache: ObjectCache) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.root.iterdir()}


def _times(cache: ObjectCache) -> list[int]:
    return [cache.path(one).stat().st_atime_ns for one in SPECS]


# ---- packing


def test_a_pack_fills_another_cache(cache: ObjectCache, other: ObjectCache, tmp_path: Path) -> None:
    file = tmp_path / "pack"
    assert pack(cache, file) == 6
    assert unpack(other, file) == Unpacked(added=6, found=0, current=6)
    assert _contents(other) == _contents(cache)
    assert other.root.stat().st_mode & 0o777 == 0o700
    assert [other.code(one) for one in SPECS] == [cache.code(one) for one in SPECS]
    other.path(SPEC).unlink()
    assert unpack(other, file) == Unpacked(added=1, found=5, current=6)


def test_a_pack_may_end_anywhere_in_a_record_of_tar(
    tmp_path: Path, object_file: Callable[..., bytes]
) -> None:
    for blocks in range(tarfile.RECORDSIZE // tarfile.BLOCKSIZE):
        cache = ObjectCache(tmp_path / f"objects {blocks}")
        cache.put(SPEC, object_file(160, 0) + bytes(blocks * tarfile.BLOCKSIZE))
        pack(cache, tmp_path / "pack")
        found = unpack(ObjectCache(tmp_path / f"other {blocks}"), tmp_path / "pack")
        assert found == Unpacked(added=1, found=0, current=1)


def test_what_a_cache_holds_is_kept_and_what_is_damaged_replaced(
    cache: ObjectCache, other: ObjectCache, tmp_path: Path, object_file: Callable[..., bytes]
) -> None:
    pack(cache, tmp_path / "pack")
    other.put(SPEC, object_file(232, 0))
    other.path(SPECS[1]).write_bytes(b"damaged")
    assert unpack(other, tmp_path / "pack") == Unpacked(added=5, found=1, current=6)
    assert other.code(SPEC) == object_file(232, 0)
    assert other.code(SPECS[1]) == cache.code(SPECS[1])


def test_a_pack_depends_on_the_kernels_alone(
    cache: ObjectCache, other: ObjectCache, tmp_path: Path
) -> None:
    """Not on their age, their order, or what else lies there."""
    first, second = tmp_path / "first", tmp_path / "second"
    pack(cache, first)
    for one in reversed(SPECS):
        code = cache.code(one)
        assert code
        other.put(one, code)
    (other.root / "notes.txt").write_text("mine")
    (other.root / f"{'0' * 32}.o").write_bytes(b"not whole")
    assert pack(other, second) == 6
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as tar:
        facts = [(one.name, one.mtime, one.uid, one.gid, one.uname) for one in tar]
    assert facts == [(f"{key}.o", 0, 0, 0, "") for key in sorted(kernel_key(one) for one in SPECS)]


def test_looking_and_packing_is_not_asking_for(cache: ObjectCache, tmp_path: Path) -> None:
    before = _times(cache)
    pack(cache, tmp_path / "pack")
    unpack(cache, tmp_path / "pack")
    assert cache.entry(kernel_key(SPEC))
    assert _times(cache) == before
    cache.code(SPEC)
    assert _times(cache)[0] > before[-1]


def test_a_pack_that_cannot_be_made_leaves_the_file_as_it_was(
    cache: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pack"
    file.write_text("as it was")
    empty = tmp_path / "empty"
    empty.mkdir(0o700)
    with pytest.raises(TilecastError, match="holds no kernel; allowed: "):
        pack(ObjectCache(empty), file)
    monkeypatch.setattr(object_pack, "MOST_BYTES", 100)
    with pytest.raises(TilecastError, match="holds more than .*; run `tilecast objects prune"):
        pack(cache, file)
    cache.root.chmod(0o777)
    with pytest.raises(TilecastError, match="may hold code of others; allowed: "):
        pack(cache, file)
    assert file.read_text() == "as it was"
    assert {path.name for path in tmp_path.iterdir()} == {"pack", "empty", "objects"}


def test_kernels_of_another_version_are_kept_and_never_match(
    cache: ObjectCache, other: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, code = keys.family_facts("quack_sm90"), cache.code(SPEC) or b""
    for change in ({"sources": "other"}, {"versions": {"nvidia-cutlass-dsl": "9.9"}}):
        with monkeypatch.context() as here:
            here.setattr(keys, "family_facts", lambda name, change=change: {**facts, **change})
            other.put(SPEC, code)
    with monkeypatch.context() as here:
        here.setattr("platform.machine", lambda: "aarch64")
        other.put(SPEC, code)
    pack(other, tmp_path / "pack")
    assert unpack(cache, tmp_path / "pack") == Unpacked(added=3, found=0, current=0)
    assert len(cache.sizes()) == 9
    cache.path(SPEC).unlink()
    assert cache.code(SPEC) is None


# ---- what is refused


def _tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for info, content in members:
            info.size = info.size or len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _named(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


NAME = f"{kernel_key(SPEC)}.o"
LONG = _named(NAME)
LONG.pax_headers = {"comment": "x" * 100_000}


@pytest.mark.parametrize(
    ("info", "form"),
    [
        (_named(f"../{NAME}"), tarfile.USTAR_FORMAT),
        (_named(f"/tmp/{NAME}"), tarfile.USTAR_FORMAT),
        (_named(f"./{NAME}"), tarfile.USTAR_FORMAT),
        (_named(f"{'d' * 120}/{NAME}"), tarfile.USTAR_FORMAT),
        (_named("evil.so"), tarfile.USTAR_FORMAT),
        (_named(NAME.upper()), tarfile.USTAR_FORMAT),
        (_named(f"{NAME}\n"), tarfile.USTAR_FORMAT),
        (_named(f".{kernel_key(SPEC)}.lock.tilecast-tmp"), tarfile.USTAR_FORMAT),
        (_named(NAME, tarfile.SYMTYPE, "/etc/passwd"), tarfile.USTAR_FORMAT),
        (_named(NAME, tarfile.LNKTYPE, "/etc/passwd"), tarfile.USTAR_FORMAT),
        (_named(NAME, tarfile.DIRTYPE), tarfile.USTAR_FORMAT),
        (_named(NAME, tarfile.FIFOTYPE), tarfile.USTAR_FORMAT),
        (_named(NAME, tarfile.CHRTYPE), tarfile.USTAR_FORMAT),
        (_named(NAME, tarfile.GNUTYPE_SPARSE), tarfile.GNU_FORMAT),
        (_named("x" * 300), tarfile.GNU_FORMAT),
        (LONG, tarfile.PAX_FORMAT),
        (_named("é.o"), tarfile.GNU_FORMAT),
    ],
)
def test_nothing_but_kernels_is_taken_from_a_pack(
    cache: ObjectCache, other: ObjectCache, tmp_path: Path, info: tarfile.TarInfo, form: int
) -> None:
    """Nor any of those before it."""
    whole = cache.path(SPEC).read_bytes()
    members = (
        (_named(f"{kernel_key(SPECS[1])}.o"), cache.path(SPECS[1]).read_bytes()),
        (info, whole),
    )
    _refused(other, tmp_path, lzma.compress(_tar(*members, form=form)), "")


def _refused(cache: ObjectCache, folder: Path, content: bytes, why: str) -> None:
    """In one line, and nothing is written."""
    file = folder / "bad"
    file.write_bytes(content)
    before = set(folder.rglob("*"))
    with pytest.raises(TilecastError, match=f"{why}.*; allowed: what `tilecast objects pack`") as e:
        unpack(cache, file)
    assert str(e.value).startswith(f"{file} is damaged or no pack (")
    assert set(folder.rglob("*")) == before


def test_entries_are_checked_as_in_a_cache(
    cache: ObjectCache, other: ObjectCache, tmp_path: Path
) -> None:
    whole, wrong = cache.path(SPEC).read_bytes(), cache.path(SPECS[1]).read_bytes()
    code = cache.code(SPEC) or b""
    facts = json.loads(whole.splitlines()[-2])
    # As if it were for other operands, with a digest that is right.
    content = b"%b\n%b" % (code, json.dumps(facts | {"operands": "fp16:rcr"}).encode())
    forged = b"%b\n%b" % (content, hashlib.sha256(content).hexdigest().encode())
    bad = (whole[:-1], whole[:100], b"", wrong, whole.replace(b"host code", b"evil code"), forged)
    for one in bad:
        _refused(other, tmp_path, lzma.compress(_tar((_named(NAME), one))), "is not whole")


def test_sizes_are_bounded(
    cache: ObjectCache, other: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a pack claims is not allocated, nor read."""
    whole = cache.path(SPEC).read_bytes()
    for size in (17 << 20, 8**11 - 1, 1 << 70, -1):
        info = _named(NAME)
        info.size = size
        header = info.tobuf(tarfile.GNU_FORMAT)
        _refused(other, tmp_path, lzma.compress(header + whole), "takes -?[0-9]+ bytes")
    monkeypatch.setattr(object_pack, "MOST_BYTES", 5 * len(whole))
    pack_of_six = _tar(*((_named(f"{kernel_key(s)}.o"), cache.path(s).read_bytes()) for s in SPECS))
    _refused(other, tmp_path, lzma.compress(pack_of_six), "takes -?[0-9]+ bytes")


def test_a_pack_is_read_to_its_end_before_anything_is_stored(
    cache: ObjectCache, other: ObjectCache, tmp_path: Path
) -> None:
    file, source = tmp_path / "pack", random.Random(0)
    pack(cache, file)
    whole = file.read_bytes()
    tar = lzma.decompress(whole)
    bad = [b"", b"text", whole[1:], lzma.compress(b""), lzma.compress(tar[:700]), tar]
    bad += [lzma.compress(tar + b"more"), lzma.compress(tar + bytes(1 << 20))]
    bad += [whole + tail for tail in (b"x", bytes(4), b"x" * 4096)]
    bad += [whole[: source.randrange(len(whole))] for _ in range(40)]
    for content in bad:
        _refused(other, tmp_path, content, "")
    for _ in range(100):
        flipped = bytearray(whole)
        flipped[source.randrange(len(whole))] ^= 1 << source.randrange(8)
        _refused(other, tmp_path, bytes(flipped), "")


def test_a_pack_that_cannot_be_read(other: ObjectCache, tmp_path: Path) -> None:
    for name, reason in (
        ("none", "No such file"),
        (".", "Is a directory"),
        ("x" * 300, "too long"),
    ):
        with pytest.raises(TilecastError, match=f"cannot read .*{reason}.*; allowed: a pack that"):
            unpack(other, tmp_path / name)
    assert not other.root.exists()


# ---- pruning


def test_those_asked_for_longest_ago_go_first(cache: ObjectCache) -> None:
    size = sum(cache.sizes().values())
    assert list(cache.sizes()) == [kernel_key(one) for one in SPECS]
    assert cache.prune(size) == {}
    cache.code(SPECS[0])
    each = size // 6
    removed = cache.prune(4 * each + each // 2)
    assert list(removed) == [kernel_key(SPECS[1]), kernel_key(SPECS[2])]
    assert list(cache.sizes()) == [kernel_key(one) for one in (*SPECS[3:], SPECS[0])]
    assert len(cache.prune(0)) == 4
    assert list(cache.root.iterdir()) == []


def test_what_is_not_the_caches_is_never_removed(
    cache: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.o"
    mine.write_text("mine")
    (cache.root / "main.o").write_text("mine")
    (cache.root / f"{'A' * 32}.o").write_text("mine")
    (cache.root / f"{'a' * 32}.o.bak").write_text("mine")
    (cache.root / f"{'b' * 32}.o").symlink_to(mine)
    (cache.root / f"{'c' * 32}.o").mkdir()
    (cache.root / f".{'d' * 32}.lock.tilecast-tmp").write_text("")
    kept = set(cache.root.iterdir()) - {cache.path(one) for one in SPECS}
    assert len(cache.prune(0)) == 6
    monkeypatch.setattr(object_cache, "MOST_BYTES", 0)
    cache.tidy()
    assert set(cache.root.iterdir()) == kept
    assert mine.read_text() == "mine"
