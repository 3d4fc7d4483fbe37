"""Why max-autotune gives a multiplication a choice of ours, or none: for ``tilecast doctor``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points

from tilecast.cli.checks import Finding
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.autoload import VARIABLE, names
from tilecast.inductor_hook.selection import first, shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.inductor_hook.versions import OLDEST, torch_version
from tilecast.kernels.object_cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def check_hook(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Whether a script with these variables would get choices of ours without a line of code."""
    found = torch_version()
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


def explain(
    problem: GemmProblem, gpu: Hardware, settings: Settings, objects: ObjectCache
) -> Iterator[Finding]:
    """What stands between a multiplication and choices of ours, up to the first thing that does."""
    yield Finding("problem", f"{problem} {problem.operands}", True, False)
    try:
        predictions = shortlist(settings, problem, gpu)
    except TilecastError as error:
        yield Finding("model", f"none decides for {gpu.name}", False, False, str(error))
        return
    choice = first(settings, problem, gpu) if settings.k == 1 else None
    if choice and choice.deferred:
        yield Finding(
            "choices",
            f"left to {problem.library_call}, which may take no more than "
            f"{choice.library_over:.2f}x the time of {choice.prediction.config.name}",
            True,
            False,
        )
        return
    shown = ", ".join(prediction.config.name for prediction in predictions)
    yield Finding("choices", f"{len(predictions)}: {shown}", True, False)
    specs = [KernelSpec.for_problem(prediction.config, problem) for prediction in predictions]
    compiled = sum(objects.resources(spec) is not None for spec in specs)
    yield Finding(
        "compiled",
        f"{compiled} of {len(specs)} in {objects.root}",
        compiled == len(specs),
        False,
        f"the first compile of a graph takes a second more; `tilecast compile -k {len(specs)} "
        f"{problem} --operands '{problem.operands}'` spares it",
    )
