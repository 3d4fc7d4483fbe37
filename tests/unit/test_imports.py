"""Dependencies point one way: what each package loads when imported in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = {"torch", "cutlass", "xgboost", "sklearn", "pandas", "pyarrow", "scipy", "joblib"}
PACKAGES = {
    "heuristics": HEAVY,
    "data_collection": {"cutlass", "xgboost", "sklearn"},
    "kernels": {"torch", "xgboost", "sklearn", "pandas"},
    "models": {"torch", "cutlass"},
    "inductor_hook": {"xgboost", "sklearn", "pandas"},
}
"""Top-level modules that importing every module of a package must not load."""

ENTERED_BY = {
    "cutlass": "kernels",
    "xgboost": "models",
    "sklearn": "models",
    "torch._inductor": "inductor_hook",
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
    # The kernel itself is written in the DSL; it is imported where it is compiled and nowhere else.
    modules = [name for name in _modules(package) if name != "tilecast.kernels.cutlass_sm90.kernel"]
    if not modules:
        pytest.skip(f"{package} has no modules")
    assert _loaded_by(modules) & PACKAGES[package] == set()


def test_heuristics_import_no_other_package_of_ours() -> None:
    """Nor does the command line, before it knows which command it shall run."""
    domain = [name for name in _modules("heuristics") if ".cli." not in name]
    loaded = _loaded_by([*domain, "tilecast.cli.main"])
    ours = {name.split(".")[1] for name in loaded if name.startswith("tilecast.")}
    assert ours == {"heuristics"}


@pytest.mark.parametrize("library", ENTERED_BY)
def test_a_library_is_named_in_one_package_only(library: str) -> None:
    for package in PACKAGES:
        if package == ENTERED_BY[library]:
            continue
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text()
            for statement in (f"import {library}", f"from {library}"):
                assert statement not in source, f"{path} has {statement!r}"
