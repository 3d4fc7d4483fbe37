"""Why max-autotune gets tilecast kernels for a problem, or none: for ``tilecast doctor``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import entry_points

from packaging.version import Version

from tilecast.cli.diagnosis.finding import Finding
from tilecast.cli.options.mnk import TypedProblem
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.inductor_hook.names import VARIABLE, names
from tilecast.inductor_hook.patch.torch_versions import OLDEST
from tilecast.inductor_hook.select.selection import decided, shortlist
from tilecast.inductor_hook.settings import Settings, from_environment
from tilecast.kernels.objects.cache import ObjectCache

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def check_hook(torch: str, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Whether a script with these variables would get tilecast kernels without a line of code.

    ``torch`` is the version of PyTorch that imports.
    """
    found = Version(torch).release[:2]
    yield Finding(
        "inductor",
        f"PyTorch {found[0]}.{found[1]}",
        found >= OLDEST,
        needed=False,
        advice=f"install PyTorch {OLDEST[0]}.{OLDEST[1]} or later for max-autotune",
    )
    named = names(environment.get(VARIABLE, ""))
    yield Finding(
        "inductor",
        f"{VARIABLE} {'names' if named else 'does not name'} TILECAST",
        named,
        needed=False,
        advice=f"set {VARIABLE}=ATEN,TRITON,TILECAST, or call tilecast.inductor_hook.install()",
    )
    loads = any(entry.name == "tilecast" for entry in entry_points(group="torch.backends"))
    switched_off = environment.get(_AUTOLOAD, "1") != "1"
    yield Finding(
        "inductor",
        f"{_AUTOLOAD} is off" if switched_off else "loaded by import torch" if loads else "unknown",
        loads and not switched_off,
        needed=False,
        advice=f"unset {_AUTOLOAD}" if switched_off else "install tilecast again",
    )


def check_settings(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """The variables that the hook refuses; `check_models` checks the one that names a model."""
    try:
        named = from_environment(environment)
    except TilecastError as error:
        yield Finding("inductor", "a variable is refused", False, advice=f"{error}; or unset it")
        return
    for name in ("k", "power"):
        try:
            Settings(**{name: named[name]})
        except TilecastError as error:
            shown = f"TILECAST_{name.upper()}={named[name]}, which is refused"
            yield Finding("inductor", shown, False, advice=f"{error}; or unset it")
    if named["invariant"]:
        found = "TILECAST_INVARIANT: rows have the same bits in every batch, compiled and eager"
        yield Finding("inductor", found, True)


def explain(
    typed: TypedProblem, gpu: Hardware, settings: Settings, objects: ObjectCache
) -> Iterator[Finding]:
    """The steps from a problem to tilecast kernels, up to the first that fails."""
    typed = replace(typed, problem=settings.posed(typed.problem))
    problem = typed.problem
    ranked_as = f", ranked as {problem}" if typed.unaligned else ""
    yield Finding("problem", f"{typed} {problem.operands}{ranked_as}", True, False)
    operands = problem.operands
    vector = "m = 1" if problem.m == 1 else "n = 1" if typed.columns == 1 else None
    bare = operands.a.dtype.bits == 16 and not (operands.epilogue or operands.groups)
    if vector and bare and not settings.invariant:
        yield Finding(
            "inductor",
            'no GEMM with mode="max-autotune", which makes a multiply and a sum of 16-bit products '
            f"with {vector}",
            False,
            False,
            'compile with options={"max_autotune_gemm": True}, or multiply by a wider matrix',
        )
        return
    try:
        predictions = shortlist(settings, problem, gpu)
    except TilecastError as error:
        yield Finding("model", f"none decides for {gpu.name}", False, False, str(error))
        return
    shown = ", ".join(prediction.config.name for prediction in predictions)
    choice = decided(settings, problem, gpu, typed.unaligned) if settings.k == 1 else None
    if choice and choice.deferred:
        shown += f", timed beside {problem.library_call}, which may take no more than "
        shown += f"{choice.library_over:.2f}x as long"
    yield Finding("choices", f"{len(predictions)}: {shown}", True, False)
    specs = typed.specs(prediction.config for prediction in predictions)
    compiled = sum(objects.resources(spec) is not None for spec in specs)
    yield Finding(
        "compiled",
        f"{compiled} of {len(specs)} in {objects.root}",
        compiled == len(specs),
        False,
        "the first compile of a graph takes a second more; this command avoids that: "
        f"`tilecast compile -k {len(specs)} {typed} --operands '{problem.operands}'"
        f"{' --invariant' if settings.invariant else ''}`",
    )
