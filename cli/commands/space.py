"""Count the configs that there are, say why the others are out, and which suit a problem."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.output.output import Output
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels import candidates
from tilecast.kernels.families import parse_config
from tilecast.kernels.family import KernelFamily
from tilecast.models.runtime.learned import model_for
from tilecast.models.runtime.nearest_gpu import nearest_shipped
from tilecast.reporting.table import Table

_COLUMNS = {"rule": "", "takes away": ",", "left": ",", "because": ""}
_FAILED = "failed"
_WHY_FAILED = "where the model was measured, its kernel was wrong, hung, crashed or did not compile"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    arguments.add_problem(parser)
    config, about = argtypes.reads(parse_config), "say which rules this config breaks"
    parser.add_argument("--why", type=config, metavar="CONFIG", help=about)
    parser.add_argument("--list", action="store_true", help="print every config's name")
    about = "folder of a model, which knows the kernels that failed (default: the shipped one)"
    parser.add_argument("--model", type=argtypes.path, help=about)


def run(options: argparse.Namespace) -> Output:
    """Explain one config, or count those of a problem or of the whole space."""
    typed = resolve.problem(options)
    target = options.operands, resolve.gpu(options), typed and typed.problem
    failing = _failing(options.model, *target[:2])
    if options.why is not None:
        return _why(options.why, failing, *target)
    return _counts(failing, *target, names=options.list)


def _failing(
    folder: Path | None, operands: GemmOperands, gpu: Hardware
) -> Collection[KernelConfig]:
    """The configs that the model of a GPU never chooses; none where no model is for it."""
    model = model_for(gpu, folder) if folder else nearest_shipped(gpu)
    return model.failed(operands) if model else ()


def _why(
    config: KernelConfig,
    failing: Collection[KernelConfig],
    operands: GemmOperands,
    gpu: Hardware,
    problem: GemmProblem | None,
) -> Output:
    rules = candidates.broken_rules(config, operands, gpu, problem)
    rows = [(rule.name, rule.reason) for rule in rules]
    rows += [(_FAILED, _WHY_FAILED)] if config in failing else []
    target = f"{operands} on {gpu.name}" + (f" for {problem}" if problem else "")
    document = {
        "config": config.name,
        "operands": operands.text,
        "gpu": gpu.name,
        "problem": str(problem) if problem else None,
        "valid": not rows,
        "broken_rules": [{"rule": rule, "reason": reason} for rule, reason in rows],
    }
    if not rows:
        return Output(document, [f"{config} is a candidate: {target}"])
    title = f"{config} is no candidate: {target}"
    return Output(document, [Table(title, {"rule": "", "because": ""}, rows)])


def _counts(
    failing: Collection[KernelConfig],
    operands: GemmOperands,
    gpu: Hardware,
    problem: GemmProblem | None,
    *,
    names: bool,
) -> Output:
    """How many configs each rule of each family takes away, and what is left."""
    suited = (
        candidates.candidates(problem, gpu) if problem else candidates.space(operands, gpu).configs
    )
    failed = [config for config in suited if config in failing]
    listed = [config.name for config in suited if config not in failing]
    what = f"Candidates for {problem} ({operands})" if problem else f"The space for {operands}"
    tables: list[Table | str] = []
    families = {}
    for family in candidates.families_on(gpu):
        steps = _steps(family, operands, gpu, problem)
        if taken := sum(config.family == family.name for config in failed):
            left: Any = steps[-1]["left"]
            failures: dict[str, object] = {"rule": _FAILED, "taken": taken, "left": left - taken}
            steps.append(failures | {"reason": _WHY_FAILED})
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
