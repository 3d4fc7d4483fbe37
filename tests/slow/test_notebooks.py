"""Notebooks run from top to bottom, and import instead of defining.

The tutorial holds its outputs, which a run reproduces; the others hold none.
"""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TUTORIAL = FOLDER / "your_model.ipynb"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "dataset_tour",
        "training_and_evaluation",
        "your_model",
    ]


@notebooks
def test_imports_and_never_defines(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            defined = [n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, DEFINITIONS)]
            assert not defined
            assert bool(cell.outputs) is (path == TUTORIAL)
            assert path == TUTORIAL or cell.execution_count is None


@notebooks
def test_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    shown = _texts(notebook)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert any(cell.get("outputs") for cell in notebook.cells)
    if path == TUTORIAL:
        renewed = "jupyter execute --inplace notebooks/your_model.ipynb writes them anew"
        assert _texts(notebook) == shown, renewed


def _texts(notebook: nbformat.NotebookNode) -> list[str]:
    """The outputs as text, without those that depend on the machine."""
    return [
        output.text if output.output_type == "stream" else output.data.get("text/plain", "")
        for cell in notebook.cells
        if "varies" not in cell.metadata.get("tags", ())
        for output in cell.get("outputs", ())
    ]
