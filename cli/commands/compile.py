"""Compile kernels ahead of time, with no GPU, into the object cache."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence

from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.output_paths import check_writable
from tilecast.cli.output.output import Output
from tilecast.cli.output.progress import SECONDS_TO_RANK, show_each, show_steps
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.build.builder import CompileResult, compile_all
from tilecast.kernels.candidates import candidates, space
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.spec import KernelSpec
from tilecast.models.apply.frequent_configs import FIRST, by_frequency, common_problems
from tilecast.models.runtime.learned import LearnedHeuristic, load_heuristic, model_for
from tilecast.models.runtime.nearest_gpu import known_gpus
from tilecast.reporting.table import Table

_COLUMNS = {"config": "", "registers": "d", "spill_bytes": "d", "seconds": ".2f", "error": ""}
_MOST_COMMON = 2000
"""More than first choices need."""
_SECONDS = 0.9
"""Of one process for a kernel, on average."""
_LONGEST_TABLE = 60
"""Longer tables are of no use to a person; ``--json`` has them whole."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    arguments.add_problems(parser)
    about = "only the N that the model ranks first; auto leaves N to the model"
    parser.add_argument("-k", metavar="N", dest="top", type=argtypes.top, help=about)
    arguments.add_model(parser)
    about = (
        f"the N, at most {_MOST_COMMON}, that the model ranks most often among its first five; 500 "
        "hold four of five first choices, for any extents and for layers of language models"
    )
    common = argtypes.integer(1, _MOST_COMMON)
    parser.add_argument("--common", type=common, metavar="N", help=about)
    about = "the whole space: thousands of kernels, half an hour of two cores"
    parser.add_argument("--all", action="store_true", help=about)
    arguments.add_compiling(parser)


def run(options: argparse.Namespace) -> Output:
    """Compile what is missing and say what each kernel takes."""
    specs = _specs(options)
    cache, workers = resolve.object_cache(options), resolve.workers(options)
    if missing := {kernel_key(spec) for spec in specs} - cache.sizes().keys():
        check_writable(cache.root)
    start = time.perf_counter()
    with show_steps("compile", len(specs), _SECONDS * len(missing) / workers) as step:
        done = []
        for result in compile_all(specs, cache, workers):
            done.append(result)
            step()
    return compile_output(done, cache, time.perf_counter() - start)


def _specs(options: argparse.Namespace) -> list[KernelSpec]:
    """The kernels that the options ask for, each once."""
    gpu, operands = resolve.gpu(options), options.operands
    typed = resolve.problems_named(options)
    _check_together(options, asked=bool(typed))
    if options.all:
        return [KernelSpec(config, operands) for config in space(operands, gpu).configs]
    if options.common:
        heuristic = load_heuristic(gpu, operands, options.power, options.model)
        shortlists = (
            heuristic.rank(problem, heuristic.candidates(problem), limit=FIRST)
            for problem in show_each("rank", common_problems(operands), SECONDS_TO_RANK)
        )
        return [KernelSpec(one, operands) for one in by_frequency(shortlists)[: options.common]]
    ranked = {one.problem for one in typed}
    if options.top is not None and (options.model or known_gpus(gpu)):
        heuristic = LearnedHeuristic(model_for(gpu, options.model), options.power)
        problems = dict.fromkeys(one.problem for one in typed)
        ranked = set(resolve.ranked(heuristic, problems, alone=options.top == 1))
    asked = [one for one in typed if one.problem in ranked]
    specs = [
        spec
        for one in show_each("rank", asked, SECONDS_TO_RANK)
        for spec in one.specs(_configs(one.problem, options))
    ]
    if not specs:
        raise TilecastError(
            f"no config suits {', '.join(map(str, typed))[:200]} on {gpu.name}, as each breaks a "
            "rule; allowed: other extents; `tilecast space MxNxK` counts what each rule takes away"
        )
    return list(dict.fromkeys(specs))


def _check_together(options: argparse.Namespace, *, asked: bool) -> None:
    """See that something is asked for, and that no option excludes another one."""
    ranked = options.top is not None
    if options.common and (asked or ranked or options.all):
        raise TilecastError("--common stands alone; allowed: that, or problems with or without -k")
    if options.all and (asked or ranked):
        raise TilecastError("--all stands alone; allowed: that, or problems with or without -k")
    if options.invariant and not asked:
        raise TilecastError("--invariant needs problems to choose for; allowed: MxNxK beside it")
    if ranked and not asked:
        raise TilecastError(
            "-k needs problems to rank for; allowed: MxNxK, --problems or --hf-config beside it"
        )
    resolve.check_ranks(options, ranked or options.common is not None, "-k or --common")
    if not (asked or options.common or options.all):
        raise TilecastError(
            "nothing to compile is named; allowed: MxNxK, --problems, --hf-config, --common N, or "
            "--all for the whole space, which takes two cores half an hour"
        )


def _configs(problem: GemmProblem, options: argparse.Namespace) -> Iterable[KernelConfig]:
    """The candidates of a problem; with ``-k`` those that the hook would ask for."""
    if options.top is None:
        return candidates(problem, resolve.gpu(options), invariant=options.invariant)
    model = options.model and str(options.model)
    settings = Settings(options.top, model, options.power, invariant=options.invariant)
    return [one.config for one in shortlist(settings, problem, resolve.gpu(options))]


def compile_output(results: Sequence[CompileResult], cache: ObjectCache, seconds: float) -> Output:
    """What was compiled; the exit status is 1 where a kernel failed."""
    failed = [result for result in results if result.error]
    compiled = [result for result in results if result.seconds and not result.error]
    # Configs of two families do not compare.
    ordered = sorted(results, key=lambda r: (r.spec.config.family, r.spec.config))
    kernels = [_kernel_facts(result, cache) for result in ordered]
    summary = {
        "cache": str(cache.root),
        "asked": len(results),
        "compiled": len(compiled),
        "found": len(results) - len(compiled) - len(failed),
        "failed": len(failed),
        "spilling": sum(bool(kernel["spill_bytes"]) for kernel in kernels),
        "seconds": round(seconds, 3),
    }
    rows = [[kernel[name] for name in _COLUMNS] for kernel in kernels]
    table = Table(f"Kernels in {cache.root}", _COLUMNS, rows)
    line = (
        "{compiled} compiled in {seconds:.1f} s, {found} found, {failed} failed, {spilling} spill"
    ).format(**summary)
    tables = [*([table] if len(kernels) <= _LONGEST_TABLE else []), line]
    return Output(summary | {"kernels": kernels}, tables, status=1 if failed else 0)


def _kernel_facts(result: CompileResult, cache: ObjectCache) -> dict[str, object]:
    found = cache.resources(result.spec)
    return {
        "config": result.spec.config.name,
        "key": kernel_key(result.spec),
        "registers": found and found.registers,
        "spill_bytes": found and found.spill_bytes,
        "seconds": round(result.seconds, 3),
        "error": result.error,
    }
