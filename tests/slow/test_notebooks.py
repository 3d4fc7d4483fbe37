"""Notebooks run from top to bottom, hold no outputs, and import instead of defining."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["dataset_tour", "training_and_evaluation"]


@notebooks
def test_imports_and_never_defines(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            defined = [n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, DEFINITIONS)]
            assert not defined
            assert not cell.outputs
            assert cell.execution_count is None


@notebooks
def test_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert any(cell.get("outputs") for cell in notebook.cells)
