"""Say what is installed and works on this machine, what is missing, and what to do about it.

With a problem, also say whether max-autotune would get kernels of tilecast for it, and why not.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from tilecast.cli import given, values
from tilecast.cli import options as shared
from tilecast.cli.answer import Answer
from tilecast.cli.checks import Finding, examine, usable
from tilecast.reporting.table import Table

NAME = "doctor"
HELP = "check this machine, or why a multiplication gets no kernel of ours"
_COLUMNS = {"": "", "what": "", "found": "", "to do": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    about = "a multiplication, or BATCHxMxNxK"
    parser.add_argument("problem", nargs="?", metavar="MxNxK", help=about)
    shared.add_operands(parser)
    shared.add_model(parser)
    about = "what install(k=...) is given"
    parser.add_argument("-k", dest="top", type=values.top, default=5, metavar="N", help=about)
    parser.add_argument("--cache", type=values.path, help="object cache to look at")


def run(options: argparse.Namespace) -> Answer:
    """Check everything; exit status 1 when something that is needed does not work."""
    from tilecast.cli.diagnosis import as_written, check_hook, explain
    from tilecast.kernels.object_cache import ObjectCache, default_root

    objects = ObjectCache(options.cache or default_root())
    about: list[Finding] = []
    # First, because checking everything takes seconds.
    if options.problem is not None:
        problem, columns = as_written(options.problem, options.operands)
        about += explain(problem, columns, given.gpu(options), given.settings(options), objects)
    findings = [*examine(objects.root), *check_hook()]
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
