"""What commands make of the options that they share, and combinations that are refused at once.

Every function raises a TilecastError where a value is refused.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tilecast.cli.options.argtypes import AUTO, parallel
from tilecast.cli.options.arguments import DEFAULT_POWER
from tilecast.cli.options.mnk import TypedProblem, parse_mnk
from tilecast.cli.options.output_paths import check_writable
from tilecast.cli.output.output import print_note
from tilecast.data_collection.gpu.gpu_model import first_hardware
from tilecast.data_collection.problems.model_files import model_problems
from tilecast.data_collection.problems.problem_files import read_problems
from tilecast.data_collection.problems.suites import problems
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS, Hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.models.runtime.known_operands import (
    check_decides_for,
    check_ranks_for,
    decides_for,
    ranks_for,
)
from tilecast.models.runtime.learned import LearnedHeuristic
from tilecast.models.runtime.manifest import model_hardware

_TP = (1,)
_ROWS = (1, 16, 256, 4096)


def gpu(options: argparse.Namespace) -> Hardware:
    """The named GPU, or that of the named model, or this machine's, or else the default one."""
    return gpu_of(getattr(options, "model", None), options.gpu)


def gpu_of(folder: Path | None, named: Hardware | None = None) -> Hardware:
    """The same, of the folder of a model and of a GPU.

    A model of the named GPU describes it by what was measured, not by a data sheet.
    """
    if folder is None:
        return named or first_hardware() or GPUS[0]
    of_model = model_hardware(folder)
    return of_model if named is None or of_model.same_gpu(named) else named


def problem(options: argparse.Namespace) -> TypedProblem | None:
    """The problem that the options name; None where they name none."""
    return None if options.problem is None else parse_mnk(options.problem, options.operands)


def problems_named(options: argparse.Namespace) -> tuple[TypedProblem, ...]:
    """The distinct problems that were typed, and those of the named files, in this order."""
    own = names_own_problems(options)
    if own and not options.typed and options.operands != LINEAR_BF16:
        raise TilecastError(
            "--operands is for MxNxK; allowed with --problems: a column of operands in the file"
        )
    typed = [parse_mnk(text, options.operands) for text in options.typed]
    typed += [TypedProblem(one, one.n) for one in own_problems(options)]
    if options.invariant:
        typed = [replace(one, problem=one.problem.invariant()) for one in typed]
    return tuple(dict.fromkeys(typed))


def names_own_problems(options: argparse.Namespace) -> bool:
    """Whether the options name problem files or model configurations."""
    return bool(options.problems or options.hf_config)


def own_problems(options: argparse.Namespace) -> tuple[GemmProblem, ...]:
    """The distinct problems of the named files, in their order.

    A note on standard error says which layers of a model are no problem.
    """
    if not options.hf_config and (options.tp or options.rows):
        raise TilecastError("--tp and --rows shape a model's layers; allowed: with --hf-config")
    found = [problem for file in options.problems for problem in read_problems(file)]
    for file in options.hf_config:
        products, missing = model_problems(file, options.tp or _TP, options.rows or _ROWS)
        found += products
        if missing:
            print_note(f"left out of {file}: {'; '.join(missing)}")
    return tuple(dict.fromkeys(found))


def suite_and_own_problems(options: argparse.Namespace) -> tuple[GemmProblem, ...]:
    """The distinct problems of the named suites and files; the training suite where none is."""
    own = own_problems(options)
    suites = options.suite or ([] if own else ["training"])
    return tuple(dict.fromkeys([*problems(suites), *own]))


def ranked(
    heuristic: LearnedHeuristic, problems: Iterable[GemmProblem], *, alone: bool = False
) -> tuple[GemmProblem, ...]:
    """Those of some problems that a model ranks; a note on standard error counts the others.

    What `TILECAST_RECORD` wrote may hold operands that no model knows. Where the model knows none
    of the problems, or no config suits those that it knows, the first of them is refused.

    Args:
        heuristic: the model.
        problems: of any operands; one at least.
        alone: whether the model has to decide without a benchmark, which it does for fewer
            operands.
    """
    model, problems = heuristic.artifact, tuple(problems)
    takes = partial(decides_for, model.measured) if alone else partial(ranks_for, model.operands)
    known = tuple(problem for problem in problems if takes(problem.operands))
    if not known:
        check_ranks_for(model.operands, problems[0].operands)
        check_decides_for(model.measured, problems[0].operands)
    taken = tuple(problem for problem in known if len(heuristic.candidates(problem)))
    if not taken:
        heuristic.first(known[0], heuristic.candidates(known[0]))  # says why
    if len(taken) < len(known):
        none = ", ".join(str(problem) for problem in known if problem not in taken)
        print_note(f"left out: {none[:200]}, which no config suits")
    others = Counter(p.operands.text for p in problems if not takes(p.operands))
    if others:
        count = others.total()
        print_note(
            f"left out: {count} problem{'s' * (count > 1)} of {', '.join(others)}, which the model "
            "has not seen"
        )
    return taken


def check_ranks(options: argparse.Namespace, ranks: bool, allowed: str) -> None:
    """See that --model and --power are given only where a model ranks, with the allowed options."""
    if not ranks and (options.model or options.power != DEFAULT_POWER):
        raise TilecastError(f"--model and --power choose what ranks; allowed: with {allowed}")


def object_cache(options: argparse.Namespace, *, write: bool = False) -> ObjectCache:
    """The named object cache, or this user's; with ``write`` it has to be writable."""
    cache = ObjectCache(options.cache or default_root())
    if write:
        check_writable(cache.root)
    return cache


def cluster(options: argparse.Namespace) -> str | None:
    """The address of the Ray cluster; None for this host."""
    if options.engine != "ray":
        if options.address is not None:
            raise TilecastError("--address names a Ray cluster; allowed: with --engine ray")
        return None
    for name in ("devices", "workers"):
        if getattr(options, name) is not None:
            raise TilecastError(
                f"--{name} is of this host; allowed: without --engine ray, which takes all GPUs "
                "and cores of its cluster"
            )
    return AUTO if options.address is None else options.address


def workers(options: argparse.Namespace) -> int:
    """How many processes work on this host while nothing is measured."""
    return options.workers or parallel(AUTO)


def compilers(options: argparse.Namespace, devices: Sequence[int]) -> int:
    """How many processes compile while others measure, each of which spins on a core."""
    return options.workers or max(1, parallel(AUTO) - len(devices))
