"""Checks of this machine: which parts of tilecast work, and what to do about the others."""

from __future__ import annotations

import importlib
import os
import platform
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
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.shipped import shipped_keys
from tilecast.models.runtime.artifact import load
from tilecast.models.runtime.learned import model_for
from tilecast.models.runtime.nearest_gpu import shipped_for, terms

_PACKAGES = (
    ("torch", "torch", True),
    ("nvidia-cutlass-dsl", "cutlass.cute", True),
    ("quack-kernels", "tilecast.kernels.quack_sm90.kernel", True),
    ("apache-tvm-ffi", "tvm_ffi", True),
    ("xgboost-cpu", "xgboost", True),
    ("scikit-learn", "sklearn", True),
    ("pandas", "pandas", True),
    ("pyarrow", "pyarrow", True),
    ("nvidia-matmul-heuristics", "nvMatmulHeuristics", False),
)
"""Distribution, the module that is imported from it, and whether tilecast needs it."""

_SAME_MODULE = {"xgboost-cpu": "xgboost"}
"""Distributions that another one can replace."""


def examine(cache_root: Path) -> list[Finding]:
    """Run every check, in the order in which a missing piece would matter."""
    required = map(Requirement, requires("tilecast") or ())
    wanted = {one.name: one.specifier for one in required}
    try:
        names = visible_gpu_names()
    except ImportError:  # of a package that is a finding of its own
        names = []
    gpus, here = check_gpus(names)
    return [
        Finding("python", platform.python_version(), True),
        *(
            check_package(name, module, wanted.get(name, SpecifierSet()), needed=needed)
            for name, module, needed in _PACKAGES
        ),
        *check_torch_operators(wanted.get(DSL, SpecifierSet())),
        *gpus,
        *check_models(here),
        *check_cublas(here),
        check_cache(cache_root),
    ]


def check_package(name: str, module: str, wanted: SpecifierSet, *, needed: bool) -> Finding:
    """One distribution: whether it is installed, of a fitting version, and can be imported."""
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
    try:
        importlib.import_module(module)
    # Whatever the import raises is the finding.
    except Exception as error:
        advice = f"reinstall it: run `pip install --force-reinstall '{name}{wanted}'`"
        shown = f"{found}, which does not import ({one_line(error)})"
        return Finding(name, shown, False, needed, advice)
    return Finding(name, found, True, needed)


def check_gpus(names: list[str]) -> tuple[list[Finding], list[Hardware]]:
    """The GPUs of this machine, and those that tilecast can use; most commands need none."""
    if not names:
        advice = "predict, compile and train work; collect and running kernels need a GPU"
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
    if folder := environment.get(MODEL):
        yield _check_named_model(folder, here)
    for gpu in dict.fromkeys([default, *here]):
        needed = gpu is default
        try:
            artifact = shipped_for(gpu)
            if artifact.trained_for:
                yield Finding("model", f"none for {gpu.name}", False, needed, terms(artifact))
            else:
                yield Finding("model", artifact.name, True, needed)
        except TilecastError as error:
            yield Finding("model", f"none for {gpu.name}", False, needed, str(error))


def _check_named_model(folder: str, here: Sequence[Hardware]) -> Finding:
    """Whether the model that `MODEL` names loads and is for one of the GPUs that are here."""
    try:
        gpu = load(Path(folder)).hardware
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
    folder = environment.get(MODEL)
    for gpu in here:
        # `check_models` reports a model that does not load.
        with suppress(TilecastError):
            artifact = model_for(gpu, Path(folder) if folder else None)
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
