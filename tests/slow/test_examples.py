"""The examples run where there is no GPU, with PyTorch's own kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_runs(path: Path) -> None:
    run = subprocess.run((sys.executable, path), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("tilecast: {")
    assert "problems" in run.stdout or "'not covered: mm': 3" in run.stdout
