"""Say which configs there are: how many, why the others are out, and which suit a problem."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tilecast.cli import options as shared
from tilecast.cli.report import Report, Table
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmOperands, GemmProblem
from tilecast.kernels.cutlass_sm90 import space

NAME = "space"
HELP = "list and count configs; say why one is invalid"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    shared.add_problem(parser, required=False)
    parser.add_argument("--why", metavar="CONFIG", help="say which rules this config breaks")
    parser.add_argument("--list", action="store_true", help="print every config's name")


def run(options: argparse.Namespace) -> Report:
    """Answer for one config, for one problem, or for the whole space."""
    gpu, operands = hardware(options.gpu), shared.operands(options)
    problem = shared.problem_if_any(options)
    if options.why is not None:
        return _why(KernelConfig.parse(options.why), operands, gpu, problem)
    if problem is not None:
        return _of_problem(problem, gpu, names=options.list)
    return _whole(operands, gpu, names=options.list)


def _why(
    config: KernelConfig, operands: GemmOperands, gpu: Hardware, problem: GemmProblem | None
) -> Report:
    broken = list(space.complaints(config, operands, gpu, problem))
    target = f"{operands.dtype} {operands.layout} on {gpu.name}" + (
        f" for {problem}" if problem else ""
    )
    document = {
        "config": config.name,
        "gpu": gpu.name,
        "problem": str(problem) if problem else None,
        "valid": not broken,
        "broken_rules": [
            {"rule": rule.name, "reason": rule.reason, "complaint": text} for rule, text in broken
        ],
    }
    if not broken:
        return Report(document, [f"{config} is a candidate: {target}"])
    rows = [(rule.name, text, rule.reason) for rule, text in broken]
    title = f"{config} is no candidate: {target}"
    return Report(document, [Table(title, {"rule": "", "what is wrong": "", "because": ""}, rows)])


def _of_problem(problem: GemmProblem, gpu: Hardware, *, names: bool) -> Report:
    whole = space.valid_configs(problem.operands, gpu)
    taken = _taken(whole, problem.operands, gpu, problem)
    stored = problem.operands
    title = f"Candidates for {problem} ({stored.dtype} {stored.layout}) on {gpu.name}"
    kept = space.candidates(problem, gpu)
    return _counts(title, "the space", len(whole), space.PROBLEM_RULES, taken, kept, names)


def _whole(operands: GemmOperands, gpu: Hardware, *, names: bool) -> Report:
    taken = _taken(_points(), operands, gpu, None)
    title = f"The space for {operands.dtype} {operands.layout} on {gpu.name}"
    rules, kept = space.RULES + space.MEASURED_RULES, space.valid_configs(operands, gpu)
    return _counts(title, "points of the axes", space.points(), rules, taken, kept, names)


def _points() -> Iterator[KernelConfig]:
    """Every point that the axes span, valid or not."""
    for tile, cluster, schedule, raster, swizzle, swap_ab in itertools.product(
        itertools.product(space.TILE_M, space.TILE_N, space.TILE_K),
        space.CLUSTERS,
        itertools.product(space.STAGES, space.WARP_GROUPS, space.CTAS_PER_SM),
        space.RASTERS,
        space.SWIZZLES,
        (False, True),
    ):
        yield KernelConfig(*tile, *cluster, *schedule, raster, swizzle, swap_ab=swap_ab)


def _taken(
    configs: Iterable[KernelConfig],
    operands: GemmOperands,
    gpu: Hardware,
    problem: GemmProblem | None,
) -> Counter[str]:
    """How many configs each rule takes away, counted at the first rule that a config breaks."""
    firsts = (next(space.complaints(c, operands, gpu, problem), None) for c in configs)
    return Counter(first[0].name for first in firsts if first)


def _counts(
    title: str,
    start: str,
    total: int,
    rules: Sequence[space.Rule | space.ProblemRule],
    taken: Counter[str],
    kept: Sequence[KernelConfig],
    names: bool,
) -> Report:
    steps: list[tuple[str, int | None, int, str]] = [(start, None, total, "")]
    for rule in rules:
        total -= taken[rule.name]
        steps.append((rule.name, taken[rule.name], total, rule.reason))
    document = {
        "title": title,
        "steps": [
            {"rule": rule, "taken": gone or 0, "left": left, "reason": reason}
            for rule, gone, left, reason in steps
        ],
        "count": len(kept),
    }
    table = Table(title, {"rule": "", "takes away": ",", "left": ",", "because": ""}, steps)
    if not names:
        return Report(document, [table])
    listed = [config.name for config in kept]
    return Report(document | {"configs": listed}, [table, "\n".join(listed)])
