"""The doctor: what it looks at, what it makes of it, and what it tells to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tilecast.cli import checks
from tilecast.heuristics.errors import TilecastError
from tilecast.models import artifact


@pytest.fixture
def shipped(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model among those that come with the package."""
    folder = tmp_path / "models" / "H200-bf16-rcr"
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


def test_cache_that_others_may_write(tmp_path: Path) -> None:
    assert checks.check_cache(tmp_path).works
    tmp_path.chmod(0o777)
    finding = checks.check_cache(tmp_path)
    assert not finding.works
    assert "may hold code of others" in finding.advice


def test_models(shipped: Path) -> None:
    assert [f.found for f in checks.check_models([])] == ["H200-bf16-rcr"]
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
    gone = check(
        "torch", "torch", SpecifierSet(">=2.11"), needed=True, version_of=_absent, load=_fine
    )
    assert (gone.found, gone.works) == ("not installed", False)
    assert gone.advice == "run `pip install 'torch>=2.11'`"

    def installed(found: str, wanted: str, load: Callable[[str], object] = _fine):
        wants = SpecifierSet(wanted)
        return check("x", "x", wants, needed=True, version_of=lambda _: found, load=load)

    for found, wanted in (("4.9.0", "==4.8.1"), ("2.10.1", ">=2.11"), ("5.0", "<5,>=3.2")):
        finding = installed(found, wanted)
        assert (finding.found, finding.works) == (f"{found}, not {SpecifierSet(wanted)}", False)
    for found, wanted in (("1", "==1"), ("2.15.0.dev20261101+cu130", ">=2.11"), ("4.8.1", "")):
        assert installed(found, wanted).works
    broken = installed("1", "", _broken)
    assert broken.found == "1, which does not import (ImportError: libcuda.so.1: cannot open)"
    assert broken.advice == "reinstall it: run `pip install --force-reinstall 'x'`"


def test_accepts_the_other_build_of_xgboost() -> None:
    def only_xgboost(name: str) -> str:
        return "3.2.0" if name == "xgboost" else _absent(name)

    wanted = SpecifierSet(">=3.2")
    finding = checks.check_package(
        "xgboost-cpu", "xgboost", wanted, needed=True, version_of=only_xgboost, load=_fine
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
    assert str(wanted["nvidia-cutlass-dsl"]).startswith("==")
    assert str(wanted["nvidia-cutlass-operators"]).startswith("==")
    assert not wanted["torch"].contains("2.10")


def test_a_checkout_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "requires", _absent)
    with pytest.raises(TilecastError, match="tilecast is not installed; allowed: "):
        checks.requirements()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "'' is not a problem; allowed: MxNxK or BATCHxMxNxK"),
        (("512x4096",), "'512x4096' is not a problem; allowed: "),
        (("512x4096x4095",), "k=4095 breaks the 16-byte rule of A"),
        (("-k", "0"), "argument -k: '0' is out of range; allowed: auto, or an integer from 1"),
        (("--gpu", "B200"), "argument --gpu: gpu 'B200' is not known; allowed: "),
        (("--power", "eco"), "argument --power: power 'eco' is not known; allowed: "),
    ],
)
def test_refuses(refused: Callable[..., str], arguments: tuple[str, ...], message: str) -> None:
    assert refused("doctor", *arguments).startswith(message)
