"""Checks of this machine: which parts of tilecast work, and what to do about the others."""

from __future__ import annotations

import json
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

from tilecast.cli.diagnosis import torch_facts
from tilecast.cli.diagnosis.finding import Finding
from tilecast.cli.diagnosis.problem import check_hook, check_settings
from tilecast.cli.diagnosis.torch_facts import TorchFacts
from tilecast.cli.diagnosis.torch_operators import DSL, check_torch_operators
from tilecast.cli.options.output_paths import check_writable
from tilecast.cli.output.output import print_note
from tilecast.data_collection.gpu.environment import cublas_here
from tilecast.data_collection.gpu.gpu_model import hardware_of, visible_gpu_names
from tilecast.heuristics.errors import TilecastError
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
    "plotly": False,
}
"""Distributions, and whether tilecast needs them."""
PROPRIETARY = ("nvidia-cutlass-dsl", "nvidia-matmul-heuristics")
"""Those of them whose licences are NVIDIA's and not open source."""

_IMPORT_SECONDS = 60
_SAME_MODULE = {"xgboost-cpu": "xgboost"}
"""Distributions that another one can replace."""


def examine(cache_root: Path) -> list[Finding]:
    """Run every check, in the order in which a missing piece would matter.

    PyTorch and CuTe DSL are imported meanwhile, each in a process of its own: native code may end
    that. They collect no garbage and do not tidy up, which is a third of what they take. The other
    packages take seconds and seldom fail alone.
    """
    torch_process = begin("-m", torch_facts.__name__)
    dsl_process = begin("-c", "import gc, os; gc.disable(); import cutlass.cute; os._exit(0)")
    required = map(Requirement, requires("tilecast") or ())
    wanted = {one.name: one.specifier for one in required}
    packages = {
        name: check_package(name, wanted.get(name, SpecifierSet()), needed=needed)
        for name, needed in PACKAGES.items()
    }
    try:
        names = visible_gpu_names()
    except ImportError:  # of a package that is a finding of its own
        names = []
    gpus, here = check_gpus(names)
    findings = [*gpus, *check_models(here), *check_cublas(here), check_cache(cache_root)]
    printed, error = ended(torch_process)
    packages["torch"] = _unless(error, packages["torch"], wanted["torch"])
    packages[DSL] = _unless(ended(dsl_process)[1], packages[DSL], wanted[DSL])
    torch = None if error else TorchFacts(**json.loads(printed.splitlines()[-1]))
    return [
        Finding("python", platform.python_version(), True),
        *packages.values(),
        *(check_cuda(torch, names) if torch and packages["torch"].works else ()),
        *(check_torch_operators(torch.cute_dsl, wanted[DSL]) if torch else ()),
        *findings,
        *(check_hook(torch.version) if torch else ()),
        *check_settings(),
    ]


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


def check_cuda(torch: TorchFacts, gpus: Sequence[str]) -> Iterator[Finding]:
    """Whether this PyTorch runs kernels, where there are GPUs or not."""
    if torch.cuda is None:
        advice = (
            "to run kernels, install a CUDA build of the same version, as "
            "https://pytorch.org/get-started/locally says"
        )
        found = f"torch {torch.version} is built without it"
        yield Finding("CUDA", found, False, False, advice)
    elif gpus and not torch.sees_gpu:
        advice = "`python -c 'import torch; torch.cuda.init()'` says why; often the driver is older"
        yield Finding("CUDA", f"torch {torch.version} finds no GPU", False, False, advice)


def begin(*arguments: str) -> subprocess.Popen[str]:
    """Begin to run Python in a process of its own, which imports from no folder but those set."""
    command = [sys.executable, "-P", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, errors="replace")


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process printed, and in a line why it failed, which is empty where it did not.

    What it warned of is a note on standard error.
    """
    try:
        printed, said = process.communicate(timeout=_IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return "", f"it takes more than {_IMPORT_SECONDS} s"
    if process.returncode == 0:
        if said.strip():
            print_note(said)
        return printed, ""
    return "", (said.strip().splitlines() or [f"status {process.returncode}"])[-1][:300]


def _unless(error: str, finding: Finding, wanted: SpecifierSet) -> Finding:
    """The finding, or where it works and there is an error that the package does not import."""
    if not error or not finding.works:
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
