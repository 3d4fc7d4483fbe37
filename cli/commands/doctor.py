"""Say what is installed and works on this machine, what is missing, and what to do about it.

With a problem it also says whether max-autotune would get tilecast kernels for it, or why not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilecast.cli.diagnosis.finding import Finding
from tilecast.cli.diagnosis.machine import PACKAGES, PROPRIETARY, examine
from tilecast.cli.diagnosis.problem import explain
from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.mnk import parse_mnk
from tilecast.cli.output.output import Output
from tilecast.cli.output.progress import show_steps
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.inductor_hook.names import MODEL
from tilecast.inductor_hook.settings import Settings, from_environment
from tilecast.kernels.candidates import space
from tilecast.kernels.objects.cache import ObjectCache

_SECONDS = 3.0
"""Of the checks, most of which PyTorch's import takes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    arguments.add_problem(parser, model=True)
    about = f"folder of a model (default: that of {MODEL}, or the shipped one)"
    parser.add_argument("--model", type=argtypes.path, help=about)
    about = "burst, sustained or robust (default: that of TILECAST_POWER, or robust)"
    parser.add_argument("--power", type=argtypes.power, help=about)
    about = "the k of install(k=...) (default: that of TILECAST_K, or 5)"
    parser.add_argument("-k", dest="top", type=argtypes.top, metavar="N", help=about)
    parser.add_argument("--cache", type=argtypes.path, help="object cache to look at")


def run(options: argparse.Namespace) -> Output:
    """Check everything; exit status 1 when something that is needed does not work."""
    objects = resolve.object_cache(options)
    model = str(options.model) if options.model else None
    typed = {"k": options.top, "model": model, "power": options.power}
    typed = {name: value for name, value in typed.items() if value is not None}
    if options.problem is not None:
        space(options.operands, resolve.gpu(options))  # raises where no kernel takes them
    elif options.operands != LINEAR_BF16:
        raise TilecastError("--operands are those of a problem; allowed: with MxNxK")
    Settings(**typed)  # what is refused comes before the checks, which take seconds
    about = [] if options.problem is None else list(_explained(options, typed, objects))
    with show_steps("looking at packages, GPUs, models and the cache", 1, _SECONDS):
        findings = examine(objects.root)
    usable = all(finding.works for finding in findings if finding.needed)
    gpus = [one.found for one in findings if one.subject == "gpu" and one.works]
    runs = usable and bool(gpus) and all(one.works for one in findings if one.subject == "CUDA")
    document = {
        "usable": usable,
        "runs_kernels": runs,
        "findings": [asdict(finding) for finding in findings],
        "problem": [asdict(finding) for finding in about],
    }
    lines = [*report_lines(findings, about, options.problem, document)]
    return Output(document, lines, status=int(not usable))


def report_lines(
    findings: Sequence[Finding],
    about: Sequence[Finding],
    problem: str | None,
    document: Mapping[str, Any],
) -> Iterator[str]:
    """What works, what to do about the rest, what was found, and what there is of a problem."""
    if document["runs_kernels"]:
        gpus = (one.found for one in findings if one.subject == "gpu" and one.works)
        yield f"Everything works here: kernels run on {', '.join(gpus)}."
    elif document["usable"]:
        draws = any(one.subject == "plotly" and one.works for one in findings)
        last = "train, evaluate and report" if draws else "train and evaluate"
        yield f"Here predict, compile, {last} work."
        yield "Kernels do not run here, so collect, tune and campaign do not work: see below."
    else:
        yield "tilecast does not work here: see what is NEEDED."
    if todo := [one for one in findings if not one.works]:
        yield "\nTo do"
        for finding in sorted(todo, key=lambda one: not one.needed):
            yield from _advised(finding)
    yield "\nFound"
    working = [finding for finding in findings if finding.works]
    packages = [one for one in working if one.subject in ("python", *PACKAGES)]
    named = [f"{one.subject} {one.found}" for one in packages if one.subject not in PROPRIETARY]
    owned = [f"{one.subject} {one.found}" for one in packages if one.subject in PROPRIETARY]
    yield f"- packages: {', '.join(named)}"
    if owned:
        yield f"- proprietary packages of NVIDIA: {', '.join(owned)}"
    for finding in working:
        if finding not in packages:
            yield f"- {finding.subject}: {finding.found}"
    if about:
        yield f"\n{problem} under max-autotune"
        for finding in about:
            yield from _advised(finding)


def _advised(finding: Finding) -> Iterator[str]:
    """A finding, and below it what to do where it does not work."""
    needed = "NEEDED: " if finding.needed and not finding.works else ""
    yield f"- {needed}{finding.subject}: {finding.found}"
    if not finding.works:
        yield f"  -> {finding.advice}"


def _explained(
    options: argparse.Namespace, typed: dict[str, Any], objects: ObjectCache
) -> Iterable[Finding]:
    """What there is to say of the problem under the options, and the variables beside them."""
    problem = parse_mnk(options.problem, options.operands)
    try:
        wanted = from_environment(os.environ) | typed
        settings = Settings(**wanted)
    except TilecastError as error:
        return [Finding("settings", "refused", False, False, str(error))]
    model = Path(wanted["model"]) if wanted["model"] else None
    return explain(problem, resolve.gpu_of(model, options.gpu), settings, objects)
