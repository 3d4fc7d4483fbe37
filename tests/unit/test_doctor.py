"""The doctor: what it looks at, what it makes of it, and what it tells to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tilecast.cli import checks
from tilecast.models import artifact


@pytest.fixture
def shipped(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model among those that come with the package."""
    folder = tmp_path / "models" / "H200-bfloat16-rcr"
    shutil.copytree(model_folder, folder)
    monkeypatch.setattr(artifact, "SHIPPED", folder.parent)
    return folder


def test_this_machine_is_usable(answer: Callable[..., dict], shipped: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    document = answer("doctor", "--cache", str(cache))
    assert document["usable"]
    subjects = {finding["subject"]: finding for finding in document["findings"]}
    for name in ("python", "torch", "nvidia-cutlass-dsl", "xgboost-cpu", "model", "object cache"):
        assert subjects[name]["works"], subjects[name]
    assert subjects["model"]["found"] == shipped.name
    assert not cache.exists()


def test_cache_that_cannot_be_written(answer: Callable[..., dict], shipped: Path) -> None:
    document = answer("doctor", "--cache", "/proc/tilecast", status=1)
    assert not document["usable"]
    (finding,) = [f for f in document["findings"] if not f["works"] and f["needed"]]
    assert finding["subject"] == "object cache"
    assert "--cache" in finding["advice"]


def test_models(shipped: Path) -> None:
    assert [f.found for f in checks.check_models([])] == ["H200-bfloat16-rcr"]
    ours, other = checks.check_models(["NVIDIA H100 80GB HBM3"])
    assert (ours.works, other.works, other.needed) == (True, False, False)
    assert "train with `tilecast train`" in other.advice
    (shipped / "manifest.json").write_text("{}")
    (damaged,) = checks.check_models([])
    assert (damaged.works, damaged.needed) == (False, True)
    assert "is refused" in damaged.advice


def _absent(name: str) -> str:
    raise checks.PackageNotFoundError(name)


def _broken(name: str) -> object:
    raise ImportError("libcuda.so.1:\n cannot open")


def _fine(name: str) -> object:
    return None


def test_packages() -> None:
    check = checks.check_package
    gone = check("torch", "torch", ">=2.11", needed=True, version_of=_absent, load=_fine)
    assert (gone.found, gone.works) == ("not installed", False)
    assert gone.advice == "run `pip install 'torch>=2.11'`"
    other = check("x", "x", "==4.8.1", needed=True, version_of=lambda _: "4.9.0", load=_fine)
    assert (other.found, other.works) == ("4.9.0, not 4.8.1", False)
    broken = check("x", "x", "", needed=True, version_of=lambda _: "1", load=_broken)
    assert broken.found == "1, which does not import (ImportError: libcuda.so.1: cannot open)"
    assert broken.advice == "reinstall it: run `pip install --force-reinstall 'x'`"
    fine = check("x", "x", "==1", needed=True, version_of=lambda _: "1", load=_fine)
    assert fine.works


def test_accepts_the_other_build_of_xgboost() -> None:
    def only_xgboost(name: str) -> str:
        return "3.2.0" if name == "xgboost" else _absent(name)

    finding = checks.check_package(
        "xgboost-cpu", "xgboost", ">=3.2", needed=True, version_of=only_xgboost, load=_fine
    )
    assert finding.works


def test_python_and_gpus() -> None:
    assert checks.check_python((3, 11)).works
    assert not checks.check_python((3, 10)).works
    (none,) = checks.check_gpus([])
    assert not none.needed
    known, unknown = checks.check_gpus(["NVIDIA H200", "NVIDIA H200", "Tesla K80"])
    assert (known.found, known.works) == ("2 x NVIDIA H200, known as H200", True)
    assert "describe a new one" in unknown.advice
    assert checks.usable([none, known, unknown])


def test_reads_the_pins_of_this_package() -> None:
    wanted = checks.requirements()
    assert wanted["nvidia-cutlass-dsl"].startswith("==")
    assert wanted["nvidia-cutlass-operators"].startswith("==")
    assert "torch" in wanted
