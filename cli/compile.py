"""Compile kernels ahead of time, with no GPU, into the object cache."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilecast.cli import options as shared
from tilecast.cli.report import Report, Table
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmOperands, GemmProblem
from tilecast.kernels.cutlass_sm90 import space

if TYPE_CHECKING:
    from tilecast.kernels.builder import CompileResult
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
    parser.add_argument("--cache", type=Path, help="object cache (default: that of this user)")
    parser.add_argument("--workers", help="processes (default: one per core)")


def run(options: argparse.Namespace) -> Report:
    """Compile what is missing and say what each kernel takes."""
    from tilecast.kernels.builder import compile_all
    from tilecast.kernels.object_cache import ObjectCache, default_root

    workers = shared.parallel("--workers", options.workers)
    specs = _specs(options)
    cache = ObjectCache(options.cache or default_root())
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
    problems = [shared.named_problem(text, operands) for text in options.problems]
    if options.config and (problems or options.top):
        raise TilecastError(
            "--config stands alone; allowed: configs, or problems with or without -k"
        )
    if options.top and not problems:
        raise TilecastError("-k needs problems to rank for; allowed: MxNxK in front of it")
    if problems:
        chosen = _of_problems(problems, options, gpu)
    elif options.config:
        chosen = [(_runnable(name, operands, gpu), False) for name in options.config]
    else:
        chosen = [(config, False) for config in space.valid_configs(operands, gpu)]
    return [
        KernelSpec(config, operands, batched, gpu.arch) for config, batched in dict.fromkeys(chosen)
    ]


def _of_problems(
    problems: Sequence[GemmProblem], options: argparse.Namespace, gpu: Hardware
) -> list[tuple[KernelConfig, bool]]:
    """Configs for problems, with ``-k`` those that the model ranks first, and whether batched."""
    from tilecast.inductor_hook.selection import Settings, shortlist

    if options.top is None:
        return [(c, p.batch > 1) for p in problems for c in space.candidates(p, gpu)]
    folder = str(options.model) if options.model else None
    # As the hook asks, so that it finds what it asks for.
    settings = Settings(shared.top(options.top) or "auto", folder, options.power)
    return [
        (prediction.config, problem.batch > 1)
        for problem in problems
        for prediction in shortlist(settings, problem, gpu)
    ]


def _runnable(name: str, operands: GemmOperands, gpu: Hardware) -> KernelConfig:
    """Read the name of a config that runs, whether or not the pilot left it in the space."""
    config = KernelConfig.parse(name)
    for rule, complaint in space.complaints(config, operands, gpu):
        if rule in space.RULES:
            raise TilecastError(
                f"config {name} is invalid for {operands.dtype} {operands.layout} on {gpu.name}: "
                f"{complaint}; allowed: what `tilecast space --list` prints; "
                f"see `tilecast space --why {name}`"
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
