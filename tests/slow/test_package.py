"""A source distribution holds the whole project, and the wheel made from it works by itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}
MADE = shutil.ignore_patterns("shipped.zip", "__pycache__", "*.egg-info", ".*")
"""What is not the project's, or only a checkout's; and two folders of `ROOT`."""


def run(folder: Path, code: str, *arguments: object, **environment: str) -> str:
    done = subprocess.run(
        (sys.executable, "-c", code, *map(str, arguments)),
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's files, without a repository around them."""
    folder = tmp_path_factory.mktemp("package") / "copy"
    shutil.copytree(
        ROOT,
        folder,
        ignore=lambda path, names: (
            MADE(path, names) | ({"build", "dist"} if Path(path) == ROOT else set())
        ),
    )
    return folder


@pytest.fixture(scope="module")
def sdist(copy: Path) -> Path:
    """The source distribution, unpacked."""
    before = files(copy)
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(copy, code, copy.parent)
    [packed] = copy.parent.glob("*.tar.gz")
    with tarfile.open(packed) as file:
        file.extractall(copy.parent, filter="data")
    folder = copy.parent / packed.name.removesuffix(".tar.gz")
    assert before <= files(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """The wheel, built from the source distribution and unpacked."""
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run(sdist, code, sdist.parent)
    [packed] = sdist.parent.glob("*.whl")
    folder = sdist.parent / "wheel"
    with zipfile.ZipFile(packed) as file:
        file.extractall(folder)
    return folder


def test_the_wheel_has_the_packages_and_nothing_else(copy: Path, wheel: Path) -> None:
    named = {name for name in files(copy) if name.split("/")[0] in PACKAGES}
    wanted = {f"tilecast/{name}" for name in named | {"__init__.py", "py.typed"}}
    assert wanted == {name for name in files(wheel) if ".dist-info/" not in name}


def test_metadata_says_what_it_needs_and_where_it_comes_from(wheel: Path) -> None:
    [path] = wheel.glob("*.dist-info/METADATA")
    stated = Parser().parsestr(path.read_text())
    assert stated["Requires-Python"] == ">=3.11"
    assert "torch>=2.11" in stated.get_all("Requires-Dist", [])
    assert "Typing :: Typed" in stated.get_all("Classifier", [])
    assert stated["Author"] and stated.get_all("Project-URL")
    entries = path.with_name("entry_points.txt").read_text()
    assert "tilecast = tilecast.cli.main:main" in entries and "[torch.backends]" in entries


def test_it_predicts(wheel: Path, tmp_path: Path) -> None:
    code = """
import sys
import tilecast.cli.main, tilecast.models.runtime.artifact as artifact
assert artifact.__file__.startswith(sys.argv[1]), artifact.__file__
tilecast.cli.main.main("predict 16x6144x4096 --gpu H200 -k 3 --json".split())
"""
    answer = json.loads(run(tmp_path, code, wheel, PYTHONPATH=str(wheel)))
    assert len(answer["ranking"]) == 3
