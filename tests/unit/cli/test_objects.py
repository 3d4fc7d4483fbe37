"""``tilecast objects``, and ``tilecast compile --common``."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tilecast.cli.main import main
from tilecast.data_collection.problems import suites
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.build.builder import CompileResult
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec
from tilecast.models.apply import frequent_configs
from tilecast.models.apply.frequent_configs import by_frequency, common_problems

FP16 = GemmOperands.parse("fp16:rcr")
H200 = hardware("H200")


@pytest.fixture
def cache(
    tmp_path: Path, object_file: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> ObjectCache:
    """That of this user: four kernels for bf16, two for fp16."""
    cache = ObjectCache(tmp_path / "objects")
    monkeypatch.setenv("TILECAST_CACHE", str(cache.root))
    for stages in range(2, 8):
        operands = FP16 if stages > 5 else LINEAR_BF16
        spec = KernelSpec(QuackConfig(64, 64, 64, stages=stages), operands)
        cache.put(spec, object_file(168, 0))
        os.utime(cache.path(spec), (1e9 + stages, 1e9))
    return cache


def test_ship_writes_what_a_wheel_brings(
    cache: ObjectCache, tmp_path: Path, answer: Callable[..., dict], refused: Callable[..., str]
) -> None:
    file = tmp_path / "deep" / "shipped.zip"
    document = answer("objects", "ship", str(file))
    assert document == {
        "cache": str(cache.root),
        "pack": str(file),
        "kernels": 6,
        "bytes": file.stat().st_size,
    }
    with zipfile.ZipFile(file) as found:
        assert json.loads(found.read("index.json"))["archives"].keys() == cache.sizes().keys()
    empty = tmp_path / "empty"
    empty.mkdir(0o700)
    said = refused("objects", "ship", str(file), "--cache", str(empty))
    assert said.startswith(f"{empty} holds no kernel of this version; allowed: ")
    assert file.stat().st_size == document["bytes"]


def test_list_counts_by_operands(cache: ObjectCache, answer: Callable[..., dict]) -> None:
    damaged = next(iter(cache.sizes()))
    cache.root.joinpath(f"{damaged}.o").write_bytes(b"1234")
    document = answer("objects", "list")
    sizes = cache.sizes()
    assert document == {
        "cache": str(cache.root),
        "kernels": 5,
        "current": 5,
        "damaged": 1,
        "bytes": sum(sizes.values()),
        "operands": [
            {"operands": "bf16:rcr", "kernels": 3, "current": 3, "bytes": 3 * sizes_of(cache)},
            {"operands": "fp16:rcr", "kernels": 2, "current": 2, "bytes": 2 * sizes_of(cache)},
        ],
    }


def sizes_of(cache: ObjectCache) -> int:
    """Bytes of any whole entry: all of them are as long."""
    (size,) = set(cache.sizes().values()) - {4}
    return size


def test_tables_and_lines(cache: ObjectCache, capsys: pytest.CaptureFixture[str]) -> None:
    pack = cache.root.with_name("kernels.tar.xz")
    for arguments, shown in (
        (("list",), "6 kernels, 6 of this version, 0 damaged, 0.0 MiB\n"),
        (("pack", str(pack)), f"{pack}: 6 kernels, 0.0 MiB\n"),
        (("prune", "--keep", "0"), "6 kernels removed (0.0 MiB), 0 left (0.0 MiB) in "),
        (("unpack", str(pack)), f"6 kernels added to {cache.root}, 0 found there, 6 of this"),
    ):
        assert main(["objects", *arguments]) == 0
        assert shown in capsys.readouterr().out


def test_what_is_packed_is_unpacked(
    cache: ObjectCache, answer: Callable[..., dict], tmp_path: Path
) -> None:
    pack, there = str(tmp_path / "kernels.tar.xz"), str(tmp_path / "there")
    packed = answer("objects", "pack", pack)
    size = Path(pack).stat().st_size
    assert packed == {"cache": str(cache.root), "pack": pack, "kernels": 6, "bytes": size}
    unpacked = answer("objects", "unpack", pack, "--cache", there)
    assert unpacked == {"cache": there, "pack": pack, "added": 6, "found": 0, "current": 6}
    again = answer("objects", "unpack", pack, "--cache", there)
    assert (again["added"], again["found"]) == (0, 6)


def test_prune_keeps_what_was_asked_for_last(
    cache: ObjectCache, answer: Callable[..., dict]
) -> None:
    keys, each = list(cache.sizes()), sizes_of(cache)
    assert answer("objects", "prune", "--keep", str(5 * each + 1)) == {
        "cache": str(cache.root),
        "removed": 1,
        "removed_bytes": each,
        "kernels": 5,
        "bytes": 5 * each,
    }
    assert answer("objects", "prune", "--keep", "1M")["removed"] == 0
    assert answer("objects", "prune", "--keep", "3K")["kernels"] == 3072 // each
    assert list(cache.sizes()) == keys[-(3072 // each) :]


def test_a_read_only_cache(
    cache: ObjectCache,
    refused: Callable[..., str],
    answer: Callable[..., dict],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Is listed and packed, as if this user were not root."""

    def fail(*arguments: object, **named: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    pack = str(tmp_path / "pack")
    monkeypatch.setattr(os, "utime", fail)
    monkeypatch.setattr(os, "unlink", fail)
    assert answer("objects", "list")["kernels"] == 6
    line = refused("objects", "prune", "--keep", "0")
    assert line.startswith(f"cannot write {cache.root}: Read-only file system; allowed: a writable")
    assert answer("objects", "pack", pack)["kernels"] == 6
    line = refused("objects", "unpack", pack, "--cache", "/proc/tilecast")
    assert line.startswith("cannot write /proc/tilecast: ")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[KernelSpec]:
    """The kernels that were asked for; none is compiled."""
    specs: list[KernelSpec] = []

    def compile_all(asked, cache, workers):
        specs.extend(asked)
        return [CompileResult(one, 0.0) for one in asked]

    monkeypatch.setattr("tilecast.cli.commands.compile.compile_all", compile_all)
    return specs


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[GemmProblem]:
    """Some problems of each suite in the place of all."""
    names = (*frequent_configs.ASKED_SUITES, "random")
    found = [problem for name in names for problem in suites.suite(name)[::150]]
    monkeypatch.setattr(suites, "problems", lambda names: found)
    monkeypatch.setattr(frequent_configs, "ASKED_RANDOM", 0)
    return found


def test_the_most_common_are_built_in_their_order(
    answer: Callable[..., dict],
    built: list[KernelSpec],
    few: list[GemmProblem],
    tmp_path: Path,
) -> None:
    names = Counter[str]()
    for problem in few:
        # What the hook would ask for, so that it finds it.
        names.update(one.config.name for one in shortlist(Settings(), problem, H200))
    expected = sorted(names, key=lambda name: (-names[name], name))
    command = ("compile", "--cache", str(tmp_path), "--common")
    assert answer(*command, "7")["asked"] == 7
    assert [spec.config.name for spec in built] == expected[:7]
    assert {(spec.operands, spec.batched) for spec in built} == {(LINEAR_BF16, False)}
    built.clear()
    assert answer(*command, "2000")["asked"] == len(expected) > 7
    assert [spec.config.name for spec in built] == expected


def test_rows_that_tma_does_not_store_are_compiled_for(
    answer: Callable[..., dict], built: list[KernelSpec], tmp_path: Path
) -> None:
    """As the hook asks for them, and those of the next longer rows apart."""
    problem = GemmProblem(16, 1008, 1024)
    expected = [one.config for one in shortlist(Settings(k=2), problem, H200)]
    answer("compile", "--cache", str(tmp_path), "-k", "2", "16x1001x1024", "16x1008x1024")
    assert [(spec.config, spec.any_rows) for spec in built] == [
        (config, any_rows) for any_rows in (True, False) for config in expected
    ]


def test_kernels_for_invariant_rows_are_those_that_the_hook_asks_for(
    answer: Callable[..., dict], built: list[KernelSpec], tmp_path: Path
) -> None:
    """Here k is added up in stretches, so that the kernels are others."""
    settings, problem = Settings(k=2, invariant=True), GemmProblem(16, 512, 16384).invariant()
    expected = [one.config for one in shortlist(settings, problem, H200)]
    asked = ("compile", "--cache", str(tmp_path), "-k", "2", "16x512x16384")
    answer(*asked, "--invariant")
    assert [(spec.config, spec.operands) for spec in built] == [
        (config, problem.operands) for config in expected
    ]
    built.clear()
    answer(*asked)
    assert not {spec.operands for spec in built} & {problem.operands}


def test_problems_that_operands_forbid_are_left_out() -> None:
    column_major = GemmOperands.parse("bf16:ccr")
    found = common_problems(column_major)
    everything = common_problems(LINEAR_BF16)
    assert (
        len(everything)
        == len(suites.problems(frequent_configs.ASKED_SUITES)) + frequent_configs.ASKED_RANDOM
        > 4000
    )
    assert [(p.m, p.n, p.k) for p in found] == [(p.m, p.n, p.k) for p in everything if p.m % 8 == 0]


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [("bf16:rrr:row-groups", "grouped", 400), ("bf16:crr:k-groups", "gradients", 60)],
)
def test_the_problems_of_groups_have_groups(text: str, name: str, count: int) -> None:
    grouped = GemmOperands.parse(text)
    found = common_problems(grouped)
    assert len(found) == len(suites.suite(name)) == count
    assert {problem.operands for problem in found} == {grouped}
    assert {problem.batch for problem in found} > {8, 128}


def test_ties_go_by_name() -> None:
    a, b, c = (QuackConfig(64, 64, 64, stages=stages) for stages in (2, 3, 4))
    assert by_frequency([[c, b], [b, a], [c]]) == [b, c, a]
    assert by_frequency([]) == []
