"""Say what is installed and works on this machine, what is missing, and what to do about it.

With a problem it also says whether max-autotune would get tilecast kernels for it, or why not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilecast.cli.diagnosis.finding import Finding
from tilecast.cli.diagnosis.machine import examine
from tilecast.cli.diagnosis.problem import check_hook, check_settings, explain
from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.mnk import parse_mnk
from tilecast.cli.output.output import Output
from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook.names import MODEL
from tilecast.inductor_hook.settings import Settings, from_environment
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.reporting.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    about = "a problem, or BATCHxMxNxK"
    parser.add_argument("problem", nargs="?", metavar="MxNxK", help=about)
    arguments.add_operands(parser, model=True)
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
    Settings(**typed)  # what is refused comes before the checks, which take seconds
    about = [] if options.problem is None else list(_explained(options, typed, objects))
    findings = [*examine(objects.root), *check_hook(), *check_settings()]
    fine = all(finding.works for finding in findings if finding.needed)
    tables = [_table("This machine", findings)]
    if about:
        tables.append(_table(f"{options.problem} under max-autotune", about))
    verdict = "tilecast is usable" if fine else "tilecast is not usable: see what is MISSING"
    document = {
        "usable": fine,
        "findings": [asdict(finding) for finding in findings],
        "problem": [asdict(finding) for finding in about],
    }
    return Output(document, [*tables, verdict], status=0 if fine else 1)


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
    return explain(problem, options.gpu or resolve.gpu_of(model), settings, objects)


def _table(title: str, findings: Sequence[Finding]) -> Table:
    rows = [
        (
            "ok" if finding.works else "MISSING" if finding.needed else "absent",
            finding.subject,
            finding.found,
            "" if finding.works else finding.advice,
        )
        for finding in findings
    ]
    return Table(title, dict.fromkeys(("", "what", "found", "to do"), ""), rows)
