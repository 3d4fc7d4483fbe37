"""Imports point one way, nothing imports itself in a circle, and no folder has too many files."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from processes import python

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "cli",
    "inductor_hook",
    "reporting",
    "models",
    "data_collection",
    "kernels",
    "heuristics",
)
"""Highest first: a file imports from its own folder and those below."""
ROOMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "inductor_hook": (
        ("autoload",),
        ("installation",),
        ("eager", "dispatch"),
        ("fuse",),
        ("handlers",),
        ("timing",),
        ("offer",),
        ("stock_kernels",),
        ("run",),
        ("select",),
        ("describe",),
        ("patch",),
        ("settings", "recording", "telemetry", "names"),
    ),
}
"""The rooms of each folder, highest first: folders and files inside it, which import from their own
row and those below."""
MOST_FILES = 14
"""Python files that one folder may have, without its ``__init__.py``."""

HEAVY = {"torch", "cutlass", "xgboost", "sklearn", "pandas", "pyarrow", "scipy", "joblib"}
PACKAGES = {
    "heuristics": HEAVY,
    "data_collection": {"cutlass", "xgboost", "sklearn"},
    "kernels": {"torch", "xgboost", "sklearn", "pandas"},
    "models": HEAVY,
    "reporting": {"torch", "cutlass", "xgboost", "sklearn", "plotly"},
    "inductor_hook": {"xgboost", "sklearn", "pandas"},
}
"""Top-level modules that importing every module of a package must not load."""
DEVICE_SIDE = {
    f"tilecast.kernels.{name}"
    for name in (
        *("quack.compiler", "quack.epilogue", "quack.grouped", "quack.importable"),
        *("quack.partial_sums", "quack_sm90.conversion", "quack_sm90.fused", "quack_sm90.kernel"),
        *(
            "quack_sm90_memory.kernel",
            "quack_sm100.gated",
            "quack_sm100.kernel",
            "quack_sm100.product",
        ),
    )
}
"""Written in the DSL; imported where kernels are compiled and nowhere else."""
ENTERED_BY = {
    "cutlass": "kernels",
    "xgboost": "models",
    "sklearn": "models",
    "torch._inductor": "inductor_hook",
    "ray": "data_collection",
}
"""Libraries that only one package names in its sources, lazily or not."""

Graph = dict[str, set[str]]
"""The modules that each module names."""

_NAMED = re.compile(r"(tilecast(?:\.\w+)+)(\.?)(?::\w+)?")
"""A module as a string names it; with a dot at its end, the beginning of an f-string."""


def modules(root: Path, folders: Iterable[str] = FOLDERS) -> dict[str, Path]:
    """The files of some folders, by import path."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(("tilecast", *parts)).removesuffix(".__init__")] = path
    return found


def named_in(path: Path, known: Mapping[str, Path]) -> set[str]:
    """The known modules that a file imports anywhere in it, or names in a string."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and (match := _NAMED.fullmatch(str(node.value))):
            below = {name for name in known if name.rpartition(".")[0] == match[1]}
            found |= below if match[2] else {match[1]}
    return {module for name in found if (module := _module(name, known))}


def _module(name: str, known: Mapping[str, Path]) -> str:
    """The module that a name is, or is of; "" where it is none of those known."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def graph_of(root: Path) -> Graph:
    """Which file names which, in the seven folders below a root."""
    known = modules(root)
    return {name: named_in(path, known) - {name} for name, path in known.items()}


@cache
def _graph() -> Graph:
    return graph_of(ROOT)


def circle_in(graph: Graph) -> list[str]:
    """The modules of a circle, or nothing."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def upward(graph: Graph) -> list[str]:
    """Imports that point up between the seven folders."""
    return [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in sorted(others)
        if FOLDERS.index(other.split(".")[1]) < FOLDERS.index(name.split(".")[1])
    ]


def upward_inside(graph: Graph, folder: str, rooms: tuple[tuple[str, ...], ...]) -> list[str]:
    """Imports that point up between the rooms of a folder, and files that are in no room."""
    row = {f"tilecast.{folder}.{room}": index for index, some in enumerate(rooms) for room in some}

    def row_of(module: str) -> int | None:
        return row.get(".".join(module.split(".")[:3]))

    inside = {
        name: others for name, others in graph.items() if name.startswith(f"tilecast.{folder}.")
    }
    homeless = [f"{name} is in no room" for name in inside if row_of(name) is None]
    return homeless + [
        f"{name} imports {other}"
        for name, others in inside.items()
        for other in sorted(others & inside.keys())
        if (row_of(other) or 0) < (row_of(name) or 0)
    ]


def crowded(root: Path, folders: Iterable[str]) -> list[str]:
    """Folders with more than `MOST_FILES` Python files."""
    homes = {path.parent for folder in folders for path in (root / folder).rglob("*.py")}
    counts = {home: len({*home.glob("*.py")} - {home / "__init__.py"}) for home in homes}
    return sorted(f"{home}: {count} files" for home, count in counts.items() if count > MOST_FILES)


def test_no_import_points_up_between_the_folders() -> None:
    assert len(_graph()) > 150
    assert upward(_graph()) == []


@pytest.mark.parametrize("folder", ROOMS)
def test_no_import_points_up_between_the_rooms_of_a_folder(folder: str) -> None:
    assert upward_inside(_graph(), folder, ROOMS[folder]) == []


def test_nothing_imports_itself_in_a_circle() -> None:
    assert circle_in(_graph()) == []


def test_no_folder_is_crowded() -> None:
    assert crowded(ROOT, (*FOLDERS, "benchmarks", "tests")) == []


def _tree(root: Path, files: Mapping[str, str]) -> Path:
    """Some files with their text, by path without ``.py``."""
    for name, text in files.items():
        path = (root / name).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


WAYS = {
    "at the top": "import tilecast.models.b",
    "in a function": "def late():\n    if True:\n        from tilecast.models.b import name",
    "for types": "if TYPE_CHECKING:\n    from tilecast.models import b",
    "by string": "import_module('tilecast.models.b')",
    "by entry point": "POINT = 'tilecast.models.b:function'",
    "by f-string": "import_module(f'tilecast.models.{name}')",
}
"""How one file may name another."""


@pytest.mark.parametrize("way", WAYS)
def test_a_circle_is_seen(tmp_path: Path, way: str) -> None:
    files = {"models/a": WAYS[way], "models/b": "from tilecast.models.a import name"}
    tree = _tree(tmp_path, files)
    found = circle_in(graph_of(tree))
    assert {*found} == {"tilecast.models.a", "tilecast.models.b"}
    (tree / "models" / "b.py").write_text('"""Like `tilecast.models.a`, which it does not use."""')
    assert circle_in(graph_of(tree)) == []


def test_imports_that_point_up_are_seen(tmp_path: Path) -> None:
    files = {
        "models/low/a": "def late():\n    from tilecast.models.high.b import name",
        "models/high/b": "import tilecast.models.low.c, tilecast.cli.main",
        "models/low/c": "import tilecast.models.low.a",
        "models/new": "",
        "cli/main": "from tilecast.models.low import a",
    }
    tree = _tree(tmp_path, files)
    graph = graph_of(tree)
    assert upward(graph) == ["tilecast.models.high.b imports tilecast.cli.main"]
    assert upward_inside(graph, "models", (("high",), ("low",))) == [
        "tilecast.models.new is in no room",
        "tilecast.models.low.a imports tilecast.models.high.b",
    ]


def test_a_crowded_folder_is_seen(tmp_path: Path) -> None:
    names = ("__init__", *(f"test_{number}" for number in range(MOST_FILES)))
    tree = _tree(tmp_path, {f"tests/unit/{name}": "" for name in names})
    assert crowded(tree, ["tests"]) == []
    _tree(tmp_path, {"tests/unit/test_more": ""})
    assert crowded(tree, ["tests"]) == [f"{tree / 'tests' / 'unit'}: {MOST_FILES + 1} files"]


def test_scripts_and_helpers_that_import_each_other_have_names_of_their_own() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    folders = settings["ini_options"]["pythonpath"]
    names = Counter(path.stem for folder in folders for path in (ROOT / folder).iterdir())
    names -= Counter({"__init__": names["__init__"], "__pycache__": names["__pycache__"]})
    assert len(names) > 40
    assert [name for name, count in names.items() if count > 1] == []


def _loaded_by(names: Iterable[str]) -> set[str]:
    """Every module in ``sys.modules`` after some are imported."""
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    process = python(code)
    return set(process.stdout.split())


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_none_of_what_it_must_not(package: str) -> None:
    assert _loaded_by(modules(ROOT, [package]).keys() - DEVICE_SIDE) & PACKAGES[package] == set()


@pytest.mark.parametrize("library", ENTERED_BY)
def test_a_library_is_named_in_one_package_only(library: str) -> None:
    statements = re.compile(rf"^\s*(import|from) {re.escape(library)}\b", re.MULTILINE)
    named = {
        path.relative_to(ROOT).parts[0]
        for path in modules(ROOT, PACKAGES).values()
        if statements.search(path.read_text())
    }
    assert named <= {ENTERED_BY[library]}
