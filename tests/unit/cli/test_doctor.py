"""The doctor: what it looks at, what it makes of it, and what it tells to do."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tilecast.cli.diagnosis import machine
from tilecast.cli.diagnosis.finding import Finding
from tilecast.cli.diagnosis.torch_operators import compare
from tilecast.models.runtime import artifact

MODEL_FOLDER = artifact.SHIPPED / "H200"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model among those that come with the package."""
    folder = tmp_path / "models" / "H200"
    shutil.copytree(MODEL_FOLDER, folder)
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
    assert machine.check_cache(tmp_path).works
    tmp_path.chmod(0o777)
    finding = machine.check_cache(tmp_path)
    assert not finding.works
    assert "may hold code of others" in finding.advice


def test_kernels_that_came_with_tilecast_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.check_cache(tmp_path).found == f"{tmp_path}: 0 objects; 0 came with tilecast"
    monkeypatch.setattr(machine, "shipped_keys", lambda: {"a": "1", "b": "1"})
    assert machine.check_cache(tmp_path).found.endswith("0 objects; 2 came with tilecast")


def test_models(shipped: Path) -> None:
    assert [f.found for f in machine.check_models([])] == ["H200"]
    ours, other = machine.check_models(["NVIDIA H100 80GB HBM3"])
    assert (ours.works, other.works, other.needed) == (True, False, False)
    assert other.advice.startswith("H100 has no model of its own and uses the H200 model")
    (shipped / "manifest.json").write_text("{}")
    (damaged,) = machine.check_models([])
    assert (damaged.works, damaged.needed) == (False, True)
    assert "is refused" in damaged.advice


def test_the_model_that_the_environment_names_must_load(
    answer: Callable[..., dict], shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILECAST_MODEL", "/nonexist")
    document = answer("doctor", "--cache", str(tmp_path / "cache"), status=1)
    (finding,) = [f for f in document["findings"] if not f["works"] and f["needed"]]
    assert (finding["subject"], document["usable"]) == ("model", False)
    assert finding["found"] == "TILECAST_MODEL=/nonexist, which does not load"
    assert "model /nonexist is refused: manifest.json cannot be read" in finding["advice"]


def test_the_model_that_the_environment_names_is_for_a_gpu(
    shipped: Path,
) -> None:
    named = {"TILECAST_MODEL": str(MODEL_FOLDER)}
    for names in ([], ["NVIDIA H200"], ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]):
        ours, *others = machine.check_models(names, named)
        assert (ours.found, ours.works) == (f"TILECAST_MODEL={MODEL_FOLDER}, for H200", True)
        assert others == list(machine.check_models(names, {}))
    other, *_ = machine.check_models(["NVIDIA H100 80GB HBM3"], named)
    assert (other.works, other.needed) == (False, True)
    assert other.advice == "name one for H100, or unset TILECAST_MODEL"
    assert len(list(machine.check_models([], {"TILECAST_MODEL": ""}))) == 1


MEASURED = {"cuBLAS": ["13.1.0.3"], "driver": ["580.1", "580.2"]}


def test_the_library_that_was_measured_is_fine() -> None:
    here = {"cuBLAS": ["13.1.0.3"], "driver": ["580.2"]}
    findings = list(machine.compare_versions(MEASURED, here))
    shown = [(finding.subject, finding.found, finding.works) for finding in findings]
    assert shown == [("cuBLAS", "13.1.0.3", True), ("driver", "580.2", True)]


def test_another_library_is_a_warning() -> None:
    cublas, driver = machine.compare_versions(MEASURED, {"cuBLAS": ["13.2"], "driver": ["580.1"]})
    assert driver.works
    assert not cublas.works
    assert not cublas.needed
    assert "compared with 13.1.0.3" in cublas.advice


def test_versions_that_one_side_does_not_tell_are_passed_over() -> None:
    assert list(machine.compare_versions({}, MEASURED)) == []
    assert list(machine.compare_versions(MEASURED, {})) == []
    assert list(machine.check_cublas([])) == []


def test_the_shipped_model_is_compared_on_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"cuBLAS": ["0.1"], "driver": ["0.2"]}
    monkeypatch.setattr("tilecast.cli.diagnosis.machine.cublas_here", lambda: here)
    findings = list(machine.check_cublas(["NVIDIA H200"]))
    assert [(finding.subject, finding.works) for finding in findings] == [
        ("cuBLAS", False),
        ("driver", False),
    ]


def test_a_model_that_the_environment_names_is_compared_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilecast.cli.diagnosis.machine.cublas_here", lambda: MEASURED)
    model = artifact.load(MODEL_FOLDER)
    artifact.save(replace(model, facts={**model.facts, "library": MEASURED}), tmp_path)
    named = {"TILECAST_MODEL": str(tmp_path)}
    findings = list(machine.check_cublas(["NVIDIA H200"], named))
    assert [(finding.subject, finding.works) for finding in findings] == [
        ("cuBLAS", True),
        ("driver", True),
    ]
    assert list(machine.check_cublas(["NVIDIA H100 80GB HBM3"], named)) == []
    assert list(machine.check_cublas(["NVIDIA H200"], {"TILECAST_MODEL": "/nonexist"})) == []


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finding]:
    """Checks a package that is wanted, as if some were installed and importing raised or not."""

    def run(name: str, wanted: str, installed: dict[str, str], broken: str = "") -> Finding:
        def version(name: str) -> str:
            if name in installed:
                return installed[name]
            raise machine.PackageNotFoundError(name)

        def load(module: str) -> None:
            if broken:
                raise ImportError(broken)

        monkeypatch.setattr(machine, "version", version)
        monkeypatch.setattr(machine.importlib, "import_module", load)
        return machine.check_package(name, name, SpecifierSet(wanted), needed=True)

    return run


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (ModuleNotFoundError("No module named 'torch'"), "none visible"),
        (OSError("libc10.so: no such file"), "none visible (OSError: libc10.so: no such file)"),
    ],
    ids=["missing", "broken"],
)
def test_a_torch_that_does_not_import_is_told_and_the_rest_is_looked_at(
    answer: Callable[..., dict],
    shipped: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    found: str,
) -> None:
    class Broken(MetaPathFinder):
        def find_spec(self, fullname: str, *_: object) -> None:
            if fullname == "torch":
                raise error

    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    document = answer("doctor", "--cache", str(tmp_path / "cache"), status=1)
    findings = {finding["subject"]: finding for finding in document["findings"]}
    assert not findings["torch"]["works"]
    assert str(error) in findings["torch"]["found"]
    assert findings["gpu"]["found"] == found
    assert findings["object cache"]["works"]
    assert "inductor" not in findings


def test_a_driver_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise RuntimeError("CUDA driver initialization failed")

    monkeypatch.setattr(machine, "visible_gpus", fail)
    (gpu,) = [finding for finding in machine.examine(tmp_path) if finding.subject == "gpu"]
    assert gpu.found == "none visible (RuntimeError: CUDA driver initialization failed)"


def test_package_that_is_absent(check: Callable[..., Finding]) -> None:
    finding = check("torch", ">=2.11", {})
    assert (finding.found, finding.works) == ("not installed", False)
    assert finding.advice == "run `pip install 'torch>=2.11'`"


@pytest.mark.parametrize(
    ("found", "wanted"), [("4.9.0", "==4.8.1"), ("2.10.1", ">=2.11"), ("5.0", "<5,>=3.2")]
)
def test_package_of_another_version(
    check: Callable[..., Finding], found: str, wanted: str
) -> None:
    finding = check("x", wanted, {"x": found})
    assert (finding.found, finding.works) == (f"{found}, not {SpecifierSet(wanted)}", False)


@pytest.mark.parametrize(
    ("found", "wanted"), [("1", "==1"), ("2.15.0.dev20261101+cu130", ">=2.11"), ("4.8.1", "")]
)
def test_package_that_is_wanted(
    check: Callable[..., Finding], found: str, wanted: str
) -> None:
    assert check("x", wanted, {"x": found}).works


def test_package_that_does_not_import(check: Callable[..., Finding]) -> None:
    finding = check("x", "", {"x": "1"}, broken="libcuda.so.1:\n cannot open")
    assert finding.found == "1, which does not import (ImportError: libcuda.so.1: cannot open)"
    assert finding.advice == "reinstall it: run `pip install --force-reinstall 'x'`"


def test_accepts_the_other_build_of_xgboost(check: Callable[..., Finding]) -> None:
    assert check("xgboost-cpu", ">=3.2", {"xgboost": "3.2.0"}).works


def test_python_and_gpus() -> None:
    assert machine.check_python((3, 11)).works
    assert not machine.check_python((3, 10)).works
    (none,) = machine.check_gpus([])
    assert not none.needed
    known, unknown = machine.check_gpus(["NVIDIA H200", "NVIDIA H200", "Tesla K80"])
    assert (known.found, known.works) == ("2 x NVIDIA H200, known as H200", True)
    assert unknown.advice.startswith("CUDA device 2 does not say what it is")
    assert machine.usable([none, known, unknown])


def test_reads_the_pins_of_this_package() -> None:
    wanted = machine.requirements()
    assert str(wanted["nvidia-cutlass-dsl"]).startswith("==")
    assert str(wanted["nvidia-cutlass-operators"]).startswith("==")
    assert not wanted["torch"].contains("2.10")


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(**named: str) -> None:
        for name, value in named.items():
            monkeypatch.setenv(f"TILECAST_{name}", value)

    return put


def test_settings_of_the_environment_that_the_hook_refuses_are_told(
    answer: Callable[..., dict], variables: Callable[..., None], tmp_path: Path
) -> None:
    variables(K="banana", POWER="foo")
    document = answer("doctor", "64x4096x4096", "--cache", str(tmp_path / "cache"), status=1)
    k, power = [f for f in document["findings"] if not f["works"] and f["needed"]]
    assert k["found"] == "TILECAST_K=banana, which is refused"
    assert "allowed: 1 to 64, or 'auto'" in k["advice"]
    assert power["found"] == "TILECAST_POWER=foo, which is refused"
    (refused,) = document["problem"]
    assert not refused["works"]


def test_a_problem_is_explained_as_the_environment_has_it(
    answer: Callable[..., dict],
    variables: Callable[..., None],
    leaving_model: Path,
    tmp_path: Path,
) -> None:
    variables(K="1", MODEL=str(leaving_model))
    asked = ("doctor", "512x4096x4096", "--cache", str(tmp_path / "cache"))
    assert answer(*asked)["problem"][-1]["found"].startswith("falls back to torch.mm")
    assert answer(*asked, "-k", "4")["problem"][1]["found"].startswith("4: ")


@pytest.mark.parametrize(
    ("installed", "works", "advice"),
    [
        ("4.8.0", True, ""),
        ("4.8.1", False, "run `pip install 'nvidia-cutlass-dsl[cu13]==4.8.0'`, or set TORCH_"),
        ("4.9.0", False, "run `pip install 'nvidia-cutlass-dsl[cu13]==4.8.0'`, or set TORCH_"),
    ],
)
def test_operators_of_pytorch_that_want_another_cute_dsl(
    installed: str, works: bool, advice: str
) -> None:
    listed = {Version("4.6.2"), Version("4.7.1"), Version("4.8.0")}
    finding = compare(Version(installed), listed, SpecifierSet(">=4.8.0,<4.9"))
    assert finding.works == works
    assert finding.advice.startswith(advice)
    assert finding.found.endswith(installed)


def test_operators_of_pytorch_that_no_cute_dsl_of_ours_suits() -> None:
    finding = compare(Version("4.8.0"), {Version("4.5.2")}, SpecifierSet(">=4.8.0,<4.9"))
    assert finding.advice == "set TORCH_NATIVE_SKIP_VERSION_CHECK=1 to use them untested"
