"""What a user waits for: importing the package, predicting from a cold start, ranking when warm."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Before the numerical libraries are loaded, which look at it once.
os.environ["OMP_NUM_THREADS"] = "1"

import result

from tilecast.data_collection.suites import suite
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import LINEAR_BF16
from tilecast.kernels.cutlass_sm90.space import candidates
from tilecast.models.learned import load_heuristic

PROBLEMS = 120
"""Ranked; spread evenly over the training suite."""
PREDICT = ("predict", "--m", "48", "--n", "10240", "--k", "8192", "--json")
HEURISTICS = Path(__file__).parents[1] / "heuristics"


def wall_seconds(command: list[str], repeats: int) -> dict[str, float]:
    """Wall time of fresh processes."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return {"median": result.quantile(times, 0.5), "worst": max(times)}


def cold_starts(repeats: int, model: Path | None) -> dict[str, object]:
    """Fresh interpreters: doing nothing, importing every module of the domain, predicting."""
    modules = [
        f"tilecast.heuristics.{path.stem}"
        for path in sorted(HEURISTICS.glob("*.py"))
        if path.stem != "__init__"
    ]
    code = f"import {', '.join(modules)}"
    check = f"{code}, sys; sys.exit('torch' in sys.modules)"
    predict = [sys.executable, "-m", "tilecast.cli.main", *PREDICT]
    predict += ["--model", str(model)] if model else []
    nothing = wall_seconds([sys.executable, "-c", "pass"], repeats)
    imported = wall_seconds([sys.executable, "-c", code], repeats)
    return {
        "repeats": repeats,
        "pass": nothing,
        "import_heuristics": imported,
        "import_heuristics_beyond_pass": imported["median"] - nothing["median"],
        "import_heuristics_without_torch": subprocess.run(
            [sys.executable, "-c", check], stdout=subprocess.DEVNULL
        ).returncode
        == 0,
        "predict": wall_seconds(predict, repeats),
    }


def warm_ranking(rounds: int, model: Path | None) -> dict[str, object]:
    """Milliseconds to rank all candidates of a problem, in one thread, with the model loaded."""
    gpu = hardware("H200")
    heuristic = load_heuristic(gpu, LINEAR_BF16, folder=model)
    every = suite("training")
    problems = [every[i * len(every) // PROBLEMS] for i in range(PROBLEMS)]
    fresh, ranked, counts = [], [], []
    for turn in range(rounds + 1):
        for problem in problems:
            candidates.cache_clear()  # what it remembers would cost nothing
            start = time.perf_counter()
            configs = candidates(problem, gpu)
            middle = time.perf_counter()
            heuristic.rank(problem, configs, limit=5)
            end = time.perf_counter()
            if turn:  # the first round warms up
                ranked.append(1e3 * (end - middle))
                fresh.append(1e3 * (end - start))
                counts.append(len(configs))
    return {
        "problems": len(problems),
        "rounds": rounds,
        "candidates": {"median": result.quantile(counts, 0.5), "most": max(counts)},
        "rank_milliseconds": _spread(ranked),
        "candidates_and_rank_milliseconds": _spread(fresh),
    }


_SHARES: dict[str, Callable[[list[float]], float]] = {
    "median": lambda times: result.quantile(times, 0.5),
    "p95": lambda times: result.quantile(times, 0.95),
    "worst": max,
}


def _spread(times: list[float]) -> dict[str, float]:
    return {name: figure(times) for name, figure in _SHARES.items()}


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="fresh processes of each kind")
    parser.add_argument("--rounds", type=int, default=5, help="times that each problem is ranked")
    parser.add_argument("--model", type=Path, help="model folder (default: the shipped one)")
    result.add_out(parser)
    options = parser.parse_args()
    figures = {
        "warm": warm_ranking(options.rounds, options.model),
        "torch_loaded_by_ranking": "torch" in sys.modules,
        "cold": cold_starts(options.repeats, options.model),
    }
    result.finish(figures, options.out)


if __name__ == "__main__":
    main()
