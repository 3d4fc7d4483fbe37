"""How long do missing kernels take, from the first that is asked for?

``python benchmarks/cold_kernels.py`` on a host that does nothing else, in a checkout, which brings
no kernels; it needs no GPU. The kernels that the model names first for the GEMMs of
``compile_time.py`` are compiled into an empty cache by as many processes as the host has cores, 16
at most, which have yet to start. Told of each turn: seconds until the first kernel is there and
until all are, and what one takes in its process.
"""

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import runner
from compile_time import PROBLEMS
from runner import Row

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import ObjectBuilder
from tilecast.kernels.candidates import candidates
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.shipped import SHIPPED, shipped_keys
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime.learned import load_heuristic

K, TURNS = 5, 5
_spread = partial(runner.quantiles, least=0.0, median=0.5, most=1.0)


def kernels() -> list[KernelSpec]:
    """The first `K` of each GEMM, each kernel once."""
    gpu, found = hardware("H200"), []
    for problem in (GemmProblem(*extents) for extents in PROBLEMS):
        heuristic = load_heuristic(gpu, problem.operands)
        ranking = heuristic.rank(problem, candidates(problem, gpu), limit=K)
        found += [KernelSpec.for_problem(config, problem) for config in ranking]
    return [*dict.fromkeys(found)]


def turn(specs: list[KernelSpec]) -> Row:
    """Compile all from a cold start.

    Raises:
        RuntimeError: one does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        builder = ObjectBuilder(ObjectCache(Path(folder, "objects")))
        begun, done, taken = time.perf_counter(), [], []
        for result in builder.build(specs):
            if result.error:
                raise RuntimeError(f"{result.spec}: {result.error}")
            done.append(time.perf_counter() - begun)
            taken.append(result.seconds)
        builder.close()
    return {"first": done[0], "all": done[-1], "each": _spread(taken)}


def main() -> None:
    """Measure, and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    if shipped_keys():
        raise TilecastError(f"{SHIPPED} brings kernels; allowed: a checkout without; remove it")
    specs = kernels()
    turns = [turn(specs) for _ in range(TURNS)]
    figures: dict[str, Any] = {
        name: _spread([found[name] for found in turns]) for name in ("first", "all")
    }
    figures["each"] = turns[0]["each"]
    settings = {"k": K, "turns": TURNS, "kernels": len(specs), "cores": os.cpu_count()}
    runner.write(options, settings, figures)


if __name__ == "__main__":
    main()
