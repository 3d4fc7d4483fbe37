"""Compile kernels ahead of time, with no GPU, into the object cache."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.output.output import Answer
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, space
from tilecast.kernels.families import family_of, parse_config
from tilecast.kernels.family import HARDWARE
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.spec import KernelSpec
from tilecast.reporting.table import Table

if TYPE_CHECKING:
    from tilecast.kernels.build.builder import CompileResult
    from tilecast.kernels.objects.cache import ObjectCache

NAME = "compile"
HELP = "compile kernels ahead of time into the object cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    about = "problems to compile candidates for (default: the whole space)"
    parser.add_argument("extents", nargs="*", metavar="MxNxK", help=about)
    shared.add_own_problems(parser)
    about = "only the N that the model ranks first, or auto for as many as it thinks worth it"
    parser.add_argument("-k", metavar="N", dest="top", type=argtypes.top, help=about)
    shared.add_model(parser)
    config = {"type": argtypes.reads(parse_config), "action": "append", "default": []}
    parser.add_argument("--config", metavar="NAME", help="compile this one; repeatable", **config)
    about = (
        f"the N, at most {_MOST_COMMON}, that the model names most often among its first five; 500 "
        "hold four of five first choices, for any extents and for layers of language models"
    )
    common = argtypes.integer(1, _MOST_COMMON)
    parser.add_argument("--common", type=common, metavar="N", help=about)
    shared.add_operands(parser, model=True)
    shared.add_compiling(parser)


def run(options: argparse.Namespace) -> Answer:
    """Compile what is missing and say what each kernel takes."""
    from rich.console import Console
    from rich.progress import track

    from tilecast.kernels.build.builder import compile_all
    from tilecast.kernels.objects.cache import ObjectCache, default_root

    specs = _specs(options)
    cache = ObjectCache(options.cache or default_root())
    resolve.check_writable(cache.root)
    start = time.perf_counter()
    console, results = Console(stderr=True), compile_all(specs, cache, resolve.workers(options))
    hidden = not console.is_terminal
    done = list(track(results, "compiling", len(specs), console=console, disable=hidden))
    return _answer(done, cache, time.perf_counter() - start)


def _specs(options: argparse.Namespace) -> list[KernelSpec]:
    """The kernels that the options ask for, each once."""
    from tilecast.cli.options.mnk import Written, as_written

    gpu, operands = resolve.gpu(options), options.operands
    _check_together(options)
    asked = [as_written(text, operands) for text in options.extents]
    asked += [Written(problem, problem.n) for problem in resolve.own_problems(options)]
    problems = list(dict.fromkeys(one.problem for one in asked))
    ranked = set(problems if options.top is None else _ranked(problems, options))
    for config in options.config:
        _check_runs(config, operands, gpu)
    specs = [
        spec
        for one in dict.fromkeys(asked)
        if one.problem in ranked
        for spec in one.specs(_configs(one.problem, options))
    ]
    if not problems:
        configs = options.config or _common(options) or space(operands, gpu).configs
        specs = [KernelSpec(config, operands) for config in configs]
    return list(dict.fromkeys(specs))


def _check_together(options: argparse.Namespace) -> None:
    """See that no option is given that excludes another one, or lacks the one it belongs to."""
    resolve.check_own_problems(options)
    ranked, own = options.top is not None, resolve.names_own_problems(options)
    asked = own or bool(options.extents)
    if options.common and (options.config or asked or ranked):
        raise TilecastError(
            "--common stands alone; allowed: --common, configs, or problems with or without -k"
        )
    if options.config and (asked or ranked):
        raise TilecastError(
            "--config stands alone; allowed: configs, or problems with or without -k"
        )
    if own and not options.extents and options.operands != LINEAR_BF16:
        raise TilecastError(
            "--operands is for MxNxK; allowed with --problems: a column of operands in the file"
        )
    if ranked and not asked:
        raise TilecastError(
            "-k needs problems to rank for; allowed: MxNxK, --problems or --hf-config beside it"
        )
    resolve.check_ranks(options, ranked or options.common is not None, "-k or --common")


def _ranked(problems: Sequence[GemmProblem], options: argparse.Namespace) -> Sequence[GemmProblem]:
    """Those of some problems, of which there is one at least, that the model ranks, or decides.

    Raises:
        TilecastError: it does so for none of them.
    """
    from tilecast.models.runtime.known_operands import check_decides_for, decides_for
    from tilecast.models.runtime.learned import load_heuristic_for

    heuristic = load_heuristic_for(resolve.gpu(options), problems, options.power, options.model)
    alone, measured = options.top == 1, heuristic.artifact.measured
    if alone and not any(decides_for(measured, problem.operands) for problem in problems):
        check_decides_for(measured, problems[0].operands)
    return resolve.ranked(heuristic, problems, alone=alone)


def _configs(problem: GemmProblem, options: argparse.Namespace) -> Iterable[KernelConfig]:
    """The candidates of a problem; with ``-k`` those that the hook would ask for."""
    if options.top is None:
        return candidates(problem, resolve.gpu(options))
    from tilecast.inductor_hook.select.selection import shortlist

    predictions = shortlist(resolve.settings(options), problem, resolve.gpu(options))
    return [prediction.config for prediction in predictions]


def _common(options: argparse.Namespace) -> Sequence[KernelConfig]:
    """What ``--common`` asks for, or as many as first choices need at all; none without it."""
    if options.common is None:
        return ()
    from tilecast.models.apply.frequent_configs import common_configs
    from tilecast.models.runtime.learned import load_heuristic

    heuristic = load_heuristic(resolve.gpu(options), options.operands, options.power, options.model)
    return common_configs(heuristic, options.operands, resolve.gpu(options))[: options.common]


def _check_runs(config: KernelConfig, operands: GemmOperands, gpu: Hardware) -> None:
    """See that a config runs, whether or not a pilot left it in the space."""
    for found in family_of(config).violations(config, operands, gpu):
        if found.rule.kind == HARDWARE:
            raise TilecastError(
                f"config {config} is invalid for {operands} on {gpu.name}: {found.text}; allowed: "
                f"what `tilecast space --list` prints; see `tilecast space --why {config}`"
            )


def _answer(results: Sequence[CompileResult], cache: ObjectCache, seconds: float) -> Answer:
    failed = [result for result in results if result.error]
    compiled = [result for result in results if result.seconds and not result.error]
    # Configs of two families do not compare.
    ordered = sorted(results, key=lambda r: (r.spec.config.family, r.spec.config))
    kernels = [_facts(result, cache) for result in ordered]
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
    return Answer(
        summary | {"kernels": kernels},
        [*([table] if len(kernels) <= _MOST else []), line],
        status=1 if failed else 0,
    )


def _facts(result: CompileResult, cache: ObjectCache) -> dict[str, object]:
    found = cache.resources(result.spec)
    return {
        "config": result.spec.config.name,
        "key": kernel_key(result.spec),
        "registers": found and found.registers,
        "spill_bytes": found and found.spill_bytes,
        "seconds": round(result.seconds, 3),
        "error": result.error,
    }


_SHOWN = {"config": "", "registers": "d", "spill_bytes": "d", "seconds": ".2f", "error": ""}
_MOST_COMMON = 2000
"""More than first choices need."""
_MOST = 60
"""Longer tables are of no use to a person; ``--json`` has them whole."""
