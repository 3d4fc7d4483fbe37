"""Say what is installed and works on this machine, what is missing, and what to do about it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from tilecast.heuristics.cli.report import Report, Table

NAME = "doctor"
HELP = "check this machine: what is installed, what is missing, what to do"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--cache", type=Path, help="object cache (default: that of this user)")


def run(options: argparse.Namespace) -> Report:
    """Check everything; exit status 1 when something that is needed does not work."""
    from tilecast.heuristics.doctor import examine, usable
    from tilecast.kernels.object_cache import default_root

    findings = examine(options.cache or default_root())
    fine = usable(findings)
    marks = {(True, True): "ok", (True, False): "ok", (False, False): "absent"}
    rows = [
        (
            marks.get((finding.works, finding.needed), "MISSING"),
            finding.subject,
            finding.found,
            "" if finding.works else finding.advice,
        )
        for finding in findings
    ]
    return Report(
        {"usable": fine, "findings": [asdict(finding) for finding in findings]},
        [
            Table("This machine", {"": "", "what": "", "found": "", "to do": ""}, rows),
            "tilecast is usable" if fine else "tilecast is not usable: see what is MISSING",
        ],
        status=0 if fine else 1,
    )
