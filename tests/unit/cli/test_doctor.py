"""The doctor: what it looks at, what it makes of it, and what it tells to do."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures import change_manifest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tilecast.cli.commands.doctor import report_lines
from tilecast.cli.diagnosis import machine
from tilecast.cli.diagnosis.finding import Finding
from tilecast.cli.diagnosis.problem import check_settings
from tilecast.cli.diagnosis.torch_facts import TorchFacts
from tilecast.cli.diagnosis.torch_operators import SUBJECT, compare
from tilecast.heuristics.hardware import hardware
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
    assert not document["runs_kernels"]
    subjects = {finding["subject"]: finding for finding in document["findings"]}
    for name in ("python", "torch", "nvidia-cutlass-dsl", "xgboost-cpu", "model", "object cache"):
        assert subjects[name]["works"], subjects[name]
    assert subjects["model"]["found"] == shipped.name
    assert not cache.exists()


@pytest.mark.parametrize(
    ("plotly", "works"),
    [
        (True, "predict, compile, train, evaluate and report"),
        (False, "predict, compile, train and evaluate"),
    ],
    ids=["drawn", "without plotly"],
)
def test_reports_are_said_to_work_where_they_can_be_drawn(plotly: bool, works: str) -> None:
    found = [Finding("plotly", "6.3.0" if plotly else "not installed", plotly, needed=False)]
    document = {"usable": True, "runs_kernels": False}
    assert next(report_lines(found, (), None, document)) == f"Here {works} work."


def test_models(shipped: Path) -> None:
    assert [f.found for f in machine.check_models([])] == ["H200"]
    ours, other = machine.check_models([hardware("H100")])
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
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"TILECAST_MODEL": str(MODEL_FOLDER)}
    for names in ([], ["H200"], ["H100", "H200"]):
        here = [*map(hardware, names)]
        ours, *others = machine.check_models(here, named)
        assert (ours.found, ours.works) == (f"TILECAST_MODEL={MODEL_FOLDER}, for H200", True)
        assert others == list(machine.check_models(here, {}))
    other, *_ = machine.check_models([hardware("H100")], named)
    assert (other.works, other.needed) == (False, True)
    assert other.advice == "name one for H100, or unset TILECAST_MODEL"
    at_home = {"TILECAST_MODEL": f"~/{MODEL_FOLDER.name}"}
    monkeypatch.setenv("HOME", str(MODEL_FOLDER.parent))
    found = next(machine.check_models([], at_home)).found
    assert found == f"TILECAST_MODEL={MODEL_FOLDER}, for H200"
    assert len(list(machine.check_models([], {"TILECAST_MODEL": "~nobody-of-this-name"}))) == 1
    assert len(list(machine.check_models([], {"TILECAST_MODEL": ""}))) == 1


MEASURED = {"cuBLAS": ["13.1.0.3"], "driver": ["580.1", "580.2"]}


@pytest.mark.parametrize(
    ("here", "works"),
    [
        ({"cuBLAS": ["13.1.0.3"], "driver": ["580.2"]}, {"cuBLAS": True, "driver": True}),
        ({"cuBLAS": ["13.2"], "driver": ["580.1"]}, {"cuBLAS": False, "driver": True}),
        ({"driver": ["580.1", "581"]}, {"driver": False}),
    ],
)
def test_versions_beside_which_the_model_was_not_measured_are_a_warning(
    another_model: Path, monkeypatch: pytest.MonkeyPatch, here: dict, works: dict[str, bool]
) -> None:
    monkeypatch.setattr(machine, "cublas_here", lambda: here)
    change_manifest(another_model, lambda manifest: manifest["facts"].update(library=MEASURED))
    named = {"TILECAST_MODEL": str(another_model)}
    findings = list(machine.check_cublas([hardware("H200")], named))
    assert {finding.subject: finding.works for finding in findings} == works
    assert not any(finding.needed for finding in findings)
    assert "compared with 13.1.0.3" in findings[0].advice or "cuBLAS" not in works
    assert list(machine.check_cublas([hardware("H100")], named)) == []
    assert list(machine.check_cublas([hardware("H200")], {"TILECAST_MODEL": "/nonexist"})) == []


@pytest.fixture
def other_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a module of that code in PyTorch's place, in the processes that begin from now on."""
    before = os.environ.get("PYTHONPATH", "")

    def write(code: str) -> None:
        (tmp_path / "torch.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{before}")

    return write


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("raise OSError('libc10.so:\\nno such file')", "OSError: libc10.so: no such file"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "status -11"),
        ("import time; time.sleep(600)", "it takes more than 1 s"),
    ],
    ids=["missing", "broken", "crashes", "hangs"],
)
def test_a_torch_that_does_not_import_is_told_and_the_rest_is_looked_at(
    answer: Callable[..., dict],
    shipped: Path,
    other_torch: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    error: str,
) -> None:
    other_torch(code)
    if "sleep" in code:
        monkeypatch.setattr(machine, "_IMPORT_SECONDS", 1)
    document = answer("doctor", "--cache", str(tmp_path / "cache"), status=1)
    findings = {finding["subject"]: finding for finding in document["findings"]}
    assert not findings["torch"]["works"]
    assert findings["torch"]["found"].endswith(f", which does not import ({error})")
    assert findings["gpu"]["found"] == "none visible"
    assert findings["object cache"]["works"]
    assert "inductor" not in findings


ANOTHER_TORCH = """
import sys, types
print("a word on the way")
print("a warning", file=sys.stderr)
__version__, version = "2.12.1+cu130", types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(is_available=lambda: False)
"""


def test_what_is_told_of_torch_is_what_a_process_of_its_own_imports(
    other_torch: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With its warnings; nothing else imports it where there is no GPU."""
    other_torch(ANOTHER_TORCH)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    findings = machine.examine(tmp_path / "cache")
    assert "torch" not in sys.modules
    found = [finding.found for finding in findings]
    assert "PyTorch 2.12" in found
    assert not any(finding.subject in ("CUDA", SUBJECT) for finding in findings)
    assert capsys.readouterr().err == "tilecast: a warning\n"


@pytest.mark.parametrize(
    ("name", "wanted", "installed", "found"),
    [
        ("x", ">=2.11", {}, "not installed"),
        ("x", "==4.8.1", {"x": "4.9.0"}, "4.9.0, not ==4.8.1"),
        ("x", "<5,>=3.2", {"x": "5.0"}, "5.0, not <5,>=3.2"),
        ("x", ">=2.11", {"x": "2.15.0.dev20261101+cu130"}, ""),
        ("xgboost-cpu", ">=3.2", {"xgboost": "3.2.0"}, ""),
    ],
)
def test_a_package_must_be_there_and_fit(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    wanted: str,
    installed: dict[str, str],
    found: str,
) -> None:
    def version(name: str) -> str:
        if name in installed:
            return installed[name]
        raise machine.PackageNotFoundError(name)

    monkeypatch.setattr(machine, "version", version)
    finding = machine.check_package(name, SpecifierSet(wanted), needed=True)
    assert finding.works == (not found)
    if found:
        assert finding.found == found
        assert f"'{name}{SpecifierSet(wanted)}'" in finding.advice


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("json", ""),
        ("nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("os; os.abort()", "status -6"),
    ],
)
def test_what_does_not_import_or_ends_the_process_is_told(module: str, why: str) -> None:
    assert machine.ended(machine.begin("-c", f"import {module}")) == ("", why)


@pytest.mark.parametrize(
    ("cuda", "available", "gpus", "found"),
    [
        (None, False, [], "is built without it"),
        (None, False, ["NVIDIA H200"], "is built without it"),
        ("13.0", False, ["NVIDIA H200"], "finds no GPU"),
        ("13.0", False, [], None),
        ("13.0", True, ["NVIDIA H200"], None),
    ],
)
def test_a_torch_without_cuda_runs_no_kernels(
    cuda: str | None, available: bool, gpus: list, found: str
) -> None:
    torch = TorchFacts("2.15.0", cuda, available, None)
    findings = list(machine.check_cuda(torch, gpus))
    assert [one.found.removeprefix("torch 2.15.0 ") for one in findings] == (
        [found] if found else []
    )
    assert not any(one.works or one.needed for one in findings)


def test_gpus_are_named_as_tilecast_knows_them() -> None:
    (none,), here = machine.check_gpus([])
    assert (none.needed, here) == (False, [])
    (known, unknown), here = machine.check_gpus(["NVIDIA H200", "NVIDIA H200", "Tesla K80"])
    assert here == [hardware("H200")]
    assert (known.found, known.works) == ("2 x NVIDIA H200, known as H200", True)
    assert unknown.advice.startswith("CUDA device 2 does not say what it is")
    assert not unknown.needed


@pytest.mark.parametrize(("mode", "advice"), [(0o777, "may hold code of others"), (0o700, "")])
def test_the_object_cache_is_counted_unless_others_may_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, advice: str
) -> None:
    monkeypatch.setattr(machine, "shipped_keys", lambda: {"a": "1", "b": "1"})
    tmp_path.chmod(mode)
    finding = machine.check_cache(tmp_path)
    assert finding.works == (not advice)
    assert advice in finding.advice
    assert finding.works == (finding.found == f"{tmp_path}: 0 objects; 2 came with tilecast")


def test_settings_of_the_environment_that_the_hook_refuses_are_told(
    answer: Callable[..., dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILECAST_K", "banana")
    monkeypatch.setenv("TILECAST_POWER", "foo")
    document = answer("doctor", "64x4096x4096", "--cache", str(tmp_path / "cache"), status=1)
    k, power = [f for f in document["findings"] if not f["works"] and f["needed"]]
    assert k["found"] == "TILECAST_K=banana, which is refused"
    assert "allowed: 1 to 64, or 'auto'" in k["advice"]
    assert power["found"] == "TILECAST_POWER=foo, which is refused"
    (refused,) = document["problem"]
    assert not refused["works"]


def test_a_problem_is_explained_as_the_environment_has_it(
    answer: Callable[..., dict],
    leaving_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TILECAST_K", "1")
    monkeypatch.setenv("TILECAST_MODEL", str(leaving_model))
    asked = ("doctor", "512x4096x4096", "--cache", str(tmp_path / "cache"))
    assert answer(*asked)["problem"][1]["found"].startswith("1: ")
    assert answer(*asked, "-k", "4")["problem"][1]["found"].startswith("4: ")


OTHER_DSL = "run `pip install 'nvidia-cutlass-dsl[cu13]==4.8.0'`, or set TORCH_"


@pytest.mark.parametrize(
    ("installed", "listed", "works", "advice"),
    [
        ("4.8.0", "4.6.2 4.7.1 4.8.0", True, ""),
        ("4.8.1", "4.6.2 4.7.1 4.8.0", False, OTHER_DSL),
        ("4.8.0", "4.5.2", False, "set TORCH_NATIVE_SKIP_VERSION_CHECK=1 to use them untested"),
    ],
)
def test_operators_of_pytorch_that_want_another_cute_dsl(
    installed: str, listed: str, works: bool, advice: str
) -> None:
    """Of those that tilecast takes one is named."""
    wanted = set(map(Version, listed.split()))
    finding = compare(Version(installed), wanted, SpecifierSet(">=4.8.0,<4.9"))
    assert finding.works == works
    assert finding.advice.startswith(advice)
    assert works == (not finding.advice)


def test_rows_that_are_the_same_in_every_batch_are_one_line() -> None:
    (found,) = check_settings({"TILECAST_INVARIANT": "1"})
    assert found.works
    assert "rows have the same bits in every batch" in found.found
    assert list(check_settings({"TILECAST_INVARIANT": "0"})) == []
