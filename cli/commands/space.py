"""Say which configs there are: how many, why the others are out, and which suit a problem."""

from __future__ import annotations

import argparse

from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.output.output import Answer
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels import candidates
from tilecast.kernels.families import parse_config
from tilecast.kernels.family import KernelFamily
from tilecast.reporting.table import Table

NAME = "space"
HELP = "list and count configs; say why one is invalid"

_COLUMNS = {"rule": "", "takes away": ",", "left": ",", "because": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    shared.add_problem(parser)
    config, about = argtypes.reads(parse_config), "say which rules this config breaks"
    parser.add_argument("--why", type=config, metavar="CONFIG", help=about)
    parser.add_argument("--list", action="store_true", help="print every config's name")


def run(options: argparse.Namespace) -> Answer:
    """Answer for one config, for one problem, or for the whole space."""
    target = options.operands, resolve.gpu(options), resolve.problem_if_any(options)
    if options.why is not None:
        return _why(options.why, *target)
    return _counts(*target, names=options.list)


def _why(
    config: KernelConfig, operands: GemmOperands, gpu: Hardware, problem: GemmProblem | None
) -> Answer:
    broken = list(candidates.violations(config, operands, gpu, problem))
    target = f"{operands} on {gpu.name}" + (f" for {problem}" if problem else "")
    document = {
        "config": config.name,
        "operands": operands.text,
        "gpu": gpu.name,
        "problem": str(problem) if problem else None,
        "valid": not broken,
        "broken_rules": [
            {"rule": found.rule.name, "reason": found.rule.reason, "violation": found.text}
            for found in broken
        ],
    }
    if not broken:
        return Answer(document, [f"{config} is a candidate: {target}"])
    rows = [(found.rule.name, found.text, found.rule.reason) for found in broken]
    title = f"{config} is no candidate: {target}"
    return Answer(document, [Table(title, {"rule": "", "what is wrong": "", "because": ""}, rows)])


def _counts(
    operands: GemmOperands, gpu: Hardware, problem: GemmProblem | None, *, names: bool
) -> Answer:
    """How many configs each rule of each family takes away, and what is left."""
    kept = (
        candidates.candidates(problem, gpu) if problem else candidates.space(operands, gpu).configs
    )
    listed = [config.name for config in kept]
    what = f"Candidates for {problem} ({operands})" if problem else f"The space for {operands}"
    tables: list[Table | str] = []
    families = {}
    for family in candidates.families_on(gpu):
        steps = _steps(family, operands, gpu, problem)
        families[family.name] = steps
        rows = [tuple(step.values()) for step in steps]
        tables.append(Table(f"{what} on {gpu.name}: {family.name}", _COLUMNS, rows))
    document = {
        "gpu": gpu.name,
        "operands": operands.text,
        "problem": str(problem) if problem else None,
        "count": len(listed),
        "families": families,
    }
    if not names:
        return Answer(document, tables)
    return Answer(document | {"configs": listed}, [*tables, "\n".join(listed)])


def _steps(
    family: KernelFamily, operands: GemmOperands, gpu: Hardware, problem: GemmProblem | None
) -> list[dict[str, object]]:
    """What each rule takes away and leaves, counted at the first rule that a config breaks."""
    left, rules = candidates.rules_applied(family, operands, gpu, problem)
    begin = "the space" if problem else "points of the axes"
    steps: list[dict[str, object]] = [{"rule": begin, "taken": None, "left": left, "reason": ""}]
    for rule, kept in rules:
        steps.append({"rule": rule.name, "taken": left - kept, "left": kept, "reason": rule.reason})
        left = kept
    return steps
