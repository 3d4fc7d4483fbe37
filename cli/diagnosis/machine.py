"""Checks of this machine: which parts of tilecast work, and what to do about the others."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tilecast.cli.diagnosis.finding import Finding
from tilecast.cli.diagnosis.torch_operators import DSL, check_torch_operators
from tilecast.cli.options.output_paths import check_writable
from tilecast.data_collection.gpu.environment import cublas_here
from tilecast.data_collection.gpu.gpu_model import hardware_of, visible_gpu_names
from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.hardware import GPUS, Hardware, known_gpu
from tilecast.inductor_hook.names import MODEL
from tilecast.inductor_hook.settings import named_path
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.shipped import shipped_keys
from tilecast.models.runtime import unmeasured
from tilecast.models.runtime.artifact import load
from tilecast.models.runtime.learned import model_for
from tilecast.models.runtime.nearest_gpu import known_gpus, shipped_for, terms

PACKAGES = {
    "torch": True,
    "nvidia-cutlass-dsl": True,
    "quack-kernels": True,
    "apache-tvm-ffi": True,
    "xgboost-cpu": True,
    "scikit-learn": True,
    "pandas": True,
    "pyarrow": True,
    "nvidia-matmul-heuristics": False,
}
"""Distributions, and whether tilecast needs them."""
_IMPORTED = ("nvidia-cutlass-dsl", "cutlass.cute")
"""A distribution, and the module that is imported of it in a process of its own: native code may
end that. Beside this only torch is imported; the others take seconds and seldom fail alone."""
PROPRIETARY = ("nvidia-cutlass-dsl", "nvidia-matmul-heuristics")
"""Those of them whose licences are NVIDIA's and not open source."""

_IMPORT_SECONDS = 60
_SAME_MODULE = {"xgboost-cpu": "xgboost"}
"""Distributions that another one can replace."""


def examine(cache_root: Path) -> list[Finding]:
    """Run every check, in the order in which a missing piece would matter."""
    required = map(Requirement, requires("tilecast") or ())
    wanted = {one.name: one.specifier for one in required}
    importing = begin_import(_IMPORTED[1])
    packages = {
        name: check_package(name, wanted.get(name, SpecifierSet()), needed=needed)
        for name, needed in PACKAGES.items()
    }
    if packages["torch"].works:
        packages["torch"] = check_torch(packages["torch"], wanted["torch"])
    try:
        names = visible_gpu_names()
    except ImportError:  # of a package that is a finding of its own
        names = []
    gpus, here = check_gpus(names)
    findings = [
        *(check_cuda(names) if packages["torch"].works else ()),
        *check_torch_operators(wanted.get(DSL, SpecifierSet())),
        *gpus,
        *check_models(here),
        *check_cublas(here),
        check_cache(cache_root),
    ]
    if packages[DSL].works:
        packages[DSL] = _unless(import_error(importing), packages[DSL], wanted[DSL])
    return [Finding("python", platform.python_version(), True), *packages.values(), *findings]


def check_package(name: str, wanted: SpecifierSet, *, needed: bool) -> Finding:
    """One distribution: whether it is installed, of a fitting version."""
    advice = f"run `pip install '{name}{wanted}'`"
    for distribution in filter(None, (name, _SAME_MODULE.get(name))):
        try:
            found = version(distribution)
            break
        except PackageNotFoundError:
            continue
    else:
        return Finding(name, "not installed", False, needed, advice)
    if not wanted.contains(found, prereleases=True):
        return Finding(name, f"{found}, not {wanted}", False, needed, advice)
    return Finding(name, found, True, needed)


def check_torch(finding: Finding, wanted: SpecifierSet) -> Finding:
    """The finding, or that torch does not import."""
    try:
        importlib.import_module("torch")
    # Whatever the import raises is the finding.
    except Exception as error:
        return _unless(one_line(error), finding, wanted)
    return finding


def check_cuda(gpus: Sequence[str]) -> Iterator[Finding]:
    """Whether this PyTorch runs kernels, where there are GPUs or not."""
    import torch

    if torch.version.cuda is None:
        advice = (
            "to run kernels, install a CUDA build of the same version, as "
            "https://pytorch.org/get-started/locally says"
        )
        yield Finding(
            "CUDA", f"torch {torch.__version__} is built without it", False, False, advice
        )
    elif gpus and not torch.cuda.is_available():
        advice = "`python -c 'import torch; torch.cuda.init()'` says why; often the driver is older"
        yield Finding("CUDA", f"torch {torch.__version__} finds no GPU", False, False, advice)


def begin_import(module: str) -> subprocess.Popen[str]:
    """Begin to import a module in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import {module}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def import_error(importing: subprocess.Popen[str]) -> str:
    """Why the import failed, in a line; nothing where it did not."""
    try:
        _, said = importing.communicate(timeout=_IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        importing.kill()
        return f"it takes more than {_IMPORT_SECONDS} s"
    if importing.returncode == 0:
        return ""
    return (said.strip().splitlines() or [f"status {importing.returncode}"])[-1][:300]


def _unless(error: str, finding: Finding, wanted: SpecifierSet) -> Finding:
    """The finding, or where there is an error that the package does not import."""
    if not error:
        return finding
    advice = f"reinstall it: run `pip install --force-reinstall '{finding.subject}{wanted}'`"
    shown = f"{finding.found}, which does not import ({error})"
    return Finding(finding.subject, shown, False, finding.needed, advice)


def check_gpus(names: list[str]) -> tuple[list[Finding], list[Hardware]]:
    """The GPUs of this machine, and those that tilecast can use; most commands need none."""
    if not names:
        advice = (
            "run kernels, collect, tune and campaign on a host with an NVIDIA "
            f"{', '.join(gpu.name for gpu in GPUS)} or another GPU of compute capability 9.0 or 10"
        )
        return [Finding("gpu", "none visible", False, False, advice)], []
    findings, here = [], []
    for name in dict.fromkeys(names):
        shown = f"{names.count(name)} x {name}"
        try:
            gpu = known_gpu(name) or hardware_of(names.index(name))
        except TilecastError as error:
            findings.append(Finding("gpu", shown, False, False, str(error)))
            continue
        how = "known" if gpu in GPUS else "described by its driver, and known"
        findings.append(Finding("gpu", f"{shown}, {how} as {gpu.name}", True, False))
        here.append(gpu)
    return findings, here


def check_models(
    here: Sequence[Hardware], environment: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """The model that `MODEL` names, and the shipped ones of the default GPU and of those here."""
    default = GPUS[0]
    if folder := _named_model(environment):
        yield _check_named_model(folder, here)
    for gpu in dict.fromkeys([default, *here]):
        needed = gpu is default
        if not known_gpus(gpu):
            yield Finding("model", f"none for {gpu.name}", False, False, unmeasured.terms(gpu))
            continue
        try:
            artifact = shipped_for(gpu)
            if artifact.trained_for:
                yield Finding("model", f"none for {gpu.name}", False, needed, terms(artifact))
            else:
                yield Finding("model", artifact.name, True, needed)
        except TilecastError as error:
            yield Finding("model", f"none for {gpu.name}", False, needed, str(error))


def _named_model(environment: Mapping[str, str]) -> Path | None:
    """The folder that `MODEL` names; what is no path is refused by the hook's settings."""
    with suppress(TilecastError):
        named = named_path(environment, MODEL)
        return Path(named) if named else None
    return None


def _check_named_model(folder: Path, here: Sequence[Hardware]) -> Finding:
    """Whether the model that `MODEL` names loads and is for one of the GPUs that are here."""
    try:
        gpu = load(folder).hardware
    except TilecastError as error:
        advice = f"{error}; or unset {MODEL}"
        return Finding("model", f"{MODEL}={folder}, which does not load", False, advice=advice)
    advice = f"name one for {', '.join(one.name for one in here)}, or unset {MODEL}"
    shown = f"{MODEL}={folder}, for {gpu.name}"
    return Finding("model", shown, not here or gpu in here, advice=advice)


def check_cublas(
    here: Sequence[Hardware], environment: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Whether the model of each GPU was compared with the cuBLAS and driver of this machine.

    What either side does not state is skipped.
    """
    folder = _named_model(environment)
    for gpu in here:
        # `check_models` reports a model that does not load.
        with suppress(TilecastError):
            artifact = model_for(gpu, folder)
            if artifact.trained_for:  # the model of another GPU never falls back to cuBLAS
                continue
            facts: Mapping[str, Any] = artifact.facts
            measured, installed = facts.get("library", {}), cublas_here()
            for name in sorted(measured.keys() & installed.keys()):
                yield Finding(
                    name,
                    ", ".join(installed[name]),
                    set(installed[name]) <= set(measured[name]),
                    False,
                    f"the model was compared with {', '.join(measured[name])}, so its choice "
                    "between a tilecast kernel and cuBLAS may be out of date; collect and train, "
                    "or use k=5, which benchmarks both",
                )


def check_cache(root: Path) -> Finding:
    """Whether the object cache is writable, and how many kernels it and the wheel hold."""
    try:
        check_writable(root)
        count = len(ObjectCache(root).sizes())
    except TilecastError as error:
        advice = f"{error}, with --cache or in TILECAST_CACHE"
        return Finding("object cache", str(root), False, advice=advice)
    found = f"{root}: {count} objects; {len(shipped_keys())} came with tilecast"
    return Finding("object cache", found, True)
