"""Say what is installed and works on this machine, what is missing, and what to do about it.

With a problem, also say whether max-autotune would get kernels of tilecast for it, and why not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilecast.cli.diagnosis.machine import Finding, examine, usable
from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.output.output import Answer
from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook.names import MODEL
from tilecast.reporting.table import Table

if TYPE_CHECKING:
    from tilecast.kernels.objects.cache import ObjectCache

NAME = "doctor"
HELP = "check this machine, or why a multiplication gets no kernel of ours"
_COLUMNS = {"": "", "what": "", "found": "", "to do": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    about = "a multiplication, or BATCHxMxNxK"
    parser.add_argument("problem", nargs="?", metavar="MxNxK", help=about)
    shared.add_operands(parser, model=True)
    about = f"folder of a model (default: that of {MODEL}, or the shipped one)"
    parser.add_argument("--model", type=argtypes.path, help=about)
    about = "burst, sustained or robust (default: that of TILECAST_POWER, or robust)"
    parser.add_argument("--power", type=argtypes.power, help=about)
    about = "what install(k=...) is given (default: that of TILECAST_K, or 5)"
    parser.add_argument("-k", dest="top", type=argtypes.top, metavar="N", help=about)
    parser.add_argument("--cache", type=argtypes.path, help="object cache to look at")


def run(options: argparse.Namespace) -> Answer:
    """Check everything; exit status 1 when something that is needed does not work."""
    from tilecast.cli.diagnosis.problem import check_hook, check_settings
    from tilecast.inductor_hook.settings import Settings
    from tilecast.kernels.objects.cache import ObjectCache, default_root
    from tilecast.models.runtime.artifact import load

    objects = ObjectCache(options.cache or default_root())
    about: list[Finding] = []
    # First, because checking everything takes seconds.
    if options.model:
        load(options.model)
    named = _named(options)
    Settings(**named)
    if options.problem is not None:
        about += _explained(options, named, objects)
    findings = [*examine(objects.root), *check_hook(), *check_settings()]
    fine = usable(findings)
    tables = [Table("This machine", _COLUMNS, _rows(findings))]
    if about:
        tables.append(Table(f"{options.problem} under max-autotune", _COLUMNS, _rows(about)))
    return Answer(
        {
            "usable": fine,
            "findings": [asdict(finding) for finding in findings],
            "problem": [asdict(finding) for finding in about],
        },
        [*tables, "tilecast is usable" if fine else "tilecast is not usable: see what is MISSING"],
        status=0 if fine else 1,
    )


def _named(options: argparse.Namespace) -> dict[str, Any]:
    """What the options say of `Settings`."""
    model = str(options.model) if options.model else None
    found = {"k": options.top, "model": model, "power": options.power}
    return {name: value for name, value in found.items() if value is not None}


def _explained(
    options: argparse.Namespace, named: dict[str, Any], objects: ObjectCache
) -> Iterable[Finding]:
    """What is said of the problem, as options and, beside them, variables have it."""
    from tilecast.cli.diagnosis.problem import explain
    from tilecast.cli.options.mnk import as_written
    from tilecast.inductor_hook.settings import Settings, from_environment

    written = as_written(options.problem, options.operands)
    asked = from_environment(os.environ) | named
    try:
        settings = Settings(**asked)
    except TilecastError as error:
        return [Finding("settings", "refused", False, False, str(error))]
    model = Path(asked["model"]) if asked["model"] else None
    return explain(written, options.gpu or resolve.gpu_of(model), settings, objects)


def _rows(findings: list[Finding]) -> list[tuple[str, ...]]:
    return [
        (
            "ok" if finding.works else "MISSING" if finding.needed else "absent",
            finding.subject,
            finding.found,
            "" if finding.works else finding.advice,
        )
        for finding in findings
    ]
