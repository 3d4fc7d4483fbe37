"""Say what is installed and works on this machine, what is missing, and what to do about it.

With a problem, also say whether max-autotune would get kernels of tilecast for it, and why not.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from pathlib import Path

from tilecast.cli import options as shared
from tilecast.cli.checks import Finding
from tilecast.cli.report import Report, Table
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware

NAME = "doctor"
HELP = "check this machine, or why a multiplication gets no kernel of ours"
_MARKS = {(True, True): "ok", (True, False): "ok", (False, False): "absent"}
_COLUMNS = {"": "", "what": "", "found": "", "to do": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "problem", nargs="?", metavar="MxNxK", help="a multiplication, or BATCHxMxNxK"
    )
    shared.add_operands(parser)
    shared.add_model(parser)
    parser.add_argument("-k", default="5", metavar="N", help="what install(k=...) is given")
    parser.add_argument("--cache", type=Path, help="object cache (default: that of this user)")


def run(options: argparse.Namespace) -> Report:
    """Check everything; exit status 1 when something that is needed does not work."""
    from tilecast.cli.checks import examine, usable
    from tilecast.cli.diagnosis import check_hook
    from tilecast.kernels.object_cache import default_root

    root = options.cache or default_root()
    findings = [*examine(root), *check_hook()]
    about = _explained(options, root) if options.problem else []
    fine = usable(findings)
    tables = [Table("This machine", _COLUMNS, _rows(findings))]
    if about:
        tables.append(Table(f"{options.problem} under max-autotune", _COLUMNS, _rows(about)))
    return Report(
        {
            "usable": fine,
            "findings": [asdict(finding) for finding in findings],
            "problem": [asdict(finding) for finding in about],
        },
        [*tables, "tilecast is usable" if fine else "tilecast is not usable: see what is MISSING"],
        status=0 if fine else 1,
    )


def _explained(options: argparse.Namespace, root: Path) -> list[Finding]:
    from tilecast.cli.diagnosis import explain
    from tilecast.inductor_hook.selection import Settings
    from tilecast.kernels.object_cache import ObjectCache

    if not re.fullmatch(r"(\d+x)?\d+x\d+x\d+", options.problem):
        raise TilecastError(
            f"problem {options.problem!r} is not understood; allowed: MxNxK or BATCHxMxNxK, such "
            "as 512x4096x4096"
        )
    *batch, m, n, k = map(int, options.problem.split("x"))
    count = shared.top(options.k) or "auto"
    settings = Settings(count, str(options.model) if options.model else None, options.power)
    operands, gpu = shared.operands(options), hardware(options.gpu)
    extents = (m, n, k, batch[0] if batch else 1)
    return list(explain(extents, operands, gpu, settings, ObjectCache(root)))


def _rows(findings: list[Finding]) -> list[tuple[str, ...]]:
    return [
        (
            _MARKS.get((finding.works, finding.needed), "MISSING"),
            finding.subject,
            finding.found,
            "" if finding.works else finding.advice,
        )
        for finding in findings
    ]
