"""Imports point one way: in the text of every file, and in what a fresh interpreter loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = {"torch", "cutlass", "xgboost", "sklearn", "pandas", "pyarrow", "scipy", "joblib"}
PACKAGES = {
    "heuristics": HEAVY,
    "data_collection": {"cutlass", "xgboost", "sklearn"},
    "kernels": {"torch", "xgboost", "sklearn", "pandas"},
    "models": {"torch", "cutlass"},
    "reporting": {"torch", "cutlass", "xgboost", "sklearn", "plotly"},
    "inductor_hook": {"xgboost", "sklearn", "pandas"},
}
"""Top-level modules that importing every module of a package must not load."""

DEVICE_SIDE = {
    "tilecast.kernels.gemm_object",
    *(f"tilecast.kernels.quack_sm90.{name}" for name in ("kernel", "conversion", "compiler")),
    *(f"tilecast.kernels.quack_sm90.{name}" for name in ("epilogue", "vectors")),
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


def _modules(package: str) -> list[str]:
    return [
        ".".join(("tilecast", *path.relative_to(ROOT).with_suffix("").parts))
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "__init__.py"
    ]


def _loaded_by(modules: list[str]) -> set[str]:
    """Every module in ``sys.modules`` after importing ``modules``."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return set(process.stdout.split())


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_none_of_what_it_must_not(package: str) -> None:
    modules = [name for name in _modules(package) if name not in DEVICE_SIDE]
    if not modules:
        pytest.skip(f"{package} has no modules")
    assert _loaded_by(modules) & PACKAGES[package] == set()


FLOORS = (
    "heuristics",
    "kernels",
    "data_collection",
    "models",
    "reporting",
    "inductor_hook",
    "cli",
)
"""Lowest first: a file imports from its own floor and those below."""


def _imports(path: Path) -> set[str]:
    """Every module of ours that a file names in an import, wherever in the file it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("tilecast.")}


def _files(floor: str) -> list[Path]:
    return sorted((ROOT / floor).rglob("*.py"))


@pytest.mark.parametrize("floor", FLOORS)
def test_no_import_points_up(floor: str) -> None:
    above = FLOORS[FLOORS.index(floor) + 1 :]
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _files(floor)
        for name in sorted(_imports(path))
        if name.split(".")[1] in above
    ]
    assert wrong == []


def test_this_would_see_an_import_that_points_up(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def late():\n    if True:\n        from tilecast.cli import main\n")
    assert _imports(path) == {"tilecast.cli.main"}


def test_nothing_else_imports_the_command_line() -> None:
    others = [path for floor in FLOORS[:-1] for path in _files(floor)]
    assert len(others) > 30
    assert not [path for path in others if any("tilecast.cli" in name for name in _imports(path))]


def _first_level(path: Path) -> set[str]:
    """Modules of ours that importing a file imports, not counting those inside functions."""
    body = ast.parse(path.read_text()).body
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def test_no_module_imports_itself_in_a_circle() -> None:
    modules = {
        ".".join(("tilecast", *path.relative_to(ROOT).with_suffix("").parts)): path
        for floor in FLOORS
        for path in _files(floor)
    }
    graph = {name: _first_level(path) & set(modules) - {name} for name, path in modules.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"circle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("library", ENTERED_BY)
def test_a_library_is_named_in_one_package_only(library: str) -> None:
    for package in PACKAGES:
        if package == ENTERED_BY[library]:
            continue
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text()
            for statement in (f"import {library}", f"from {library}"):
                assert statement not in source, f"{path} has {statement!r}"
