"""Count the configs that there are, say why the others are out, and which suit a problem."""

from __future__ import annotations

import argparse

from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.output.output import Output
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels import candidates
from tilecast.kernels.families import parse_config
from tilecast.kernels.family import KernelFamily
from tilecast.reporting.table import Table

_COLUMNS = {"rule": "", "takes away": ",", "left": ",", "because": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    arguments.add_problem(parser)
    config, about = argtypes.reads(parse_config), "say which rules this config breaks"
    parser.add_argument("--why", type=config, metavar="CONFIG", help=about)
    parser.add_argument("--list", action="store_true", help="print every config's name")


def run(options: argparse.Namespace) -> Output:
    """Explain one config, or count those of a problem or of the whole space."""
    typed = resolve.problem(options)
    target = options.operands, resolve.gpu(options), typed and typed.problem
    if options.why is not None:
        return _why(options.why, *target)
    return _counts(*target, names=options.list)


def _why(
    config: KernelConfig, operands: GemmOperands, gpu: Hardware, problem: GemmProblem | None
) -> Output:
    broken = list(candidates.broken_rules(config, operands, gpu, problem))
    target = f"{operands} on {gpu.name}" + (f" for {problem}" if problem else "")
    document = {
        "config": config.name,
        "operands": operands.text,
        "gpu": gpu.name,
        "problem": str(problem) if problem else None,
        "valid": not broken,
        "broken_rules": [{"rule": rule.name, "reason": rule.reason} for rule in broken],
    }
    if not broken:
        return Output(document, [f"{config} is a candidate: {target}"])
    rows = [(rule.name, rule.reason) for rule in broken]
    title = f"{config} is no candidate: {target}"
    return Output(document, [Table(title, {"rule": "", "because": ""}, rows)])


def _counts(
    operands: GemmOperands, gpu: Hardware, problem: GemmProblem | None, *, names: bool
) -> Output:
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
        return Output(document, tables)
    return Output(document | {"configs": listed}, [*tables, "\n".join(listed)])


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
