"""Compile kernels ahead of time, with no GPU, into the object cache."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tilecast.cli import options as shared
from tilecast.cli.report import Report, Table
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, space
from tilecast.kernels.families import family_of, parse_config
from tilecast.kernels.family import HARDWARE

if TYPE_CHECKING:
    from tilecast.kernels.compiler import CompileResult
    from tilecast.kernels.object_cache import ObjectCache
    from tilecast.kernels.spec import KernelSpec

NAME = "compile"
HELP = "compile kernels ahead of time into the object cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "problems",
        nargs="*",
        metavar="MxNxK",
        help="problems to compile candidates for (default: the whole space)",
    )
    parser.add_argument(
        "-k",
        metavar="N",
        dest="top",
        help="only the N that the model ranks first, or auto for as many as it thinks worth it",
    )
    shared.add_model(parser)
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME",
        help="compile this config; repeatable",
    )
    shared.add_operands(parser)
    shared.add_cache(parser)
    shared.add_workers(parser)


def run(options: argparse.Namespace) -> Report:
    """Compile what is missing and say what each kernel takes."""
    from tilecast.kernels.compiler import compile_all
    from tilecast.kernels.object_cache import ObjectCache, default_root

    workers = shared.parallel("--workers", options.workers)
    specs = _specs(options)
    cache = ObjectCache(options.cache or default_root())
    shared.check_writable(cache.root)
    start = time.perf_counter()
    results = _with_progress(compile_all(specs, cache, workers), len(specs))
    return _report(results, cache, time.perf_counter() - start)


def _specs(options: argparse.Namespace) -> list[KernelSpec]:
    """The kernels that the options ask for, each once.

    Raises:
        TilecastError: options exclude each other, or one has a value that is not allowed.
    """
    from tilecast.kernels.spec import KernelSpec

    gpu, operands = hardware(options.gpu), shared.operands(options)
    problems = [GemmProblem.parse(text, operands) for text in options.problems]
    _check_together(options)
    if problems:
        specs = [
            KernelSpec.for_problem(config, problem)
            for problem, configs in _chosen(problems, options, gpu)
            for config in configs
        ]
    elif options.config:
        specs = [KernelSpec(_runnable(name, operands, gpu), operands) for name in options.config]
    else:
        specs = [KernelSpec(config, operands) for config in space(operands, gpu).configs]
    return list(dict.fromkeys(specs))


def _check_together(options: argparse.Namespace) -> None:
    """See that options that need or exclude others are given with or without them.

    Raises:
        TilecastError: they are not.
    """
    ranked = options.top is not None
    if options.config and (options.problems or ranked):
        raise TilecastError(
            "--config stands alone; allowed: configs, or problems with or without -k"
        )
    if ranked and not options.problems:
        raise TilecastError("-k needs problems to rank for; allowed: MxNxK in front of it")
    if not ranked:
        shared.check_no_model(options, "with -k")


def _chosen(
    problems: Sequence[GemmProblem], options: argparse.Namespace, gpu: Hardware
) -> Iterator[tuple[GemmProblem, Iterable[KernelConfig]]]:
    """Each problem with its candidates; with ``-k`` with those that the hook would ask for."""
    if options.top is None:
        yield from ((problem, candidates(problem, gpu)) for problem in problems)
        return
    from tilecast.inductor_hook.selection import shortlist

    settings = shared.settings(options)
    for problem in problems:
        yield problem, [found.config for found in shortlist(settings, problem, gpu)]


def _runnable(name: str, operands: GemmOperands, gpu: Hardware) -> KernelConfig:
    """Read the name of a config that runs, whether or not a pilot left it in the space."""
    config = parse_config(name)
    for found in family_of(config).violations(config, operands, gpu):
        if found.rule.kind == HARDWARE:
            raise TilecastError(
                f"config {name} is invalid for {operands} on {gpu.name}: {found.text}; allowed: "
                f"what `tilecast space --list` prints; see `tilecast space --why {name}`"
            )
    return config


def _with_progress(results: Iterable[CompileResult], total: int) -> list[CompileResult]:
    """Collect results while a bar on standard error shows how far they are."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return list(
        track(results, "compiling", total, console=console, disable=not console.is_terminal)
    )


def _report(results: Sequence[CompileResult], cache: ObjectCache, seconds: float) -> Report:
    failed = [result for result in results if result.error]
    compiled = [result for result in results if result.seconds and not result.error]
    kernels = []
    for result in sorted(results, key=lambda result: result.spec.config):
        facts = cache.resources(result.spec)
        kernels.append(
            {
                "config": result.spec.config.name,
                "key": result.spec.key,
                "registers": facts.registers if facts else None,
                "spill_bytes": facts.spill_bytes if facts else None,
                "seconds": round(result.seconds, 3),
                "error": result.error,
            }
        )
    summary = {
        "cache": str(cache.root),
        "asked": len(results),
        "compiled": len(compiled),
        "found": len(results) - len(compiled) - len(failed),
        "failed": len(failed),
        "spilling": sum(bool(kernel["spill_bytes"]) for kernel in kernels),
        "seconds": round(seconds, 3),
    }
    shown = [[kernel[name] for name in _SHOWN] for kernel in kernels]
    table = Table(f"Kernels in {cache.root}", _SHOWN, shown)
    line = (
        "{compiled} compiled in {seconds:.1f} s, {found} found, {failed} failed, {spilling} spill"
    ).format(**summary)
    return Report(
        summary | {"kernels": kernels},
        [*([table] if len(kernels) <= _MOST else []), line],
        status=1 if failed else 0,
    )


_SHOWN = {"config": "", "registers": "d", "spill_bytes": "d", "seconds": ".2f", "error": ""}
_MOST = 60
"""Longer tables are of no use to a person; ``--json`` has them whole."""
