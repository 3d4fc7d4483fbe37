"""What does a user wait for? Importing, predicting from a cold start, ranking, training.

``python benchmarks/hook/import_and_rank.py`` on 2 cores that do nothing else. Ranking is of all
candidates of a problem, warm, in one thread; training is `tilecast train` on the shipped data, of
all operands and of those that most problems have.
"""

import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

# Before the numerical libraries are loaded, which look at it once.
os.environ["OMP_NUM_THREADS"] = "1"


from tilecast.data_collection.dataset.dataset import read_dataset, write_dataset
from tilecast.data_collection.problems.suites import suite
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.candidates import remembered
from tilecast.models.runtime.learned import load_heuristic

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from runner import Row

PROBLEMS = 120  # ranked; spread evenly over the training suite
ROUNDS = 5  # times that each problem is ranked
REPEATS = 9  # fresh processes of each kind
CLI = ("-m", "tilecast.cli.main")
PREDICT = (*CLI, "predict", "48x10240x8192", "--json")
JOBS = 2
HEURISTICS = Path(__file__).parents[2] / "heuristics"
_spread = partial(runner.quantiles, median=0.5, p95=0.95, worst=1.0)


def warm_ranking() -> Row:
    """Milliseconds to rank all candidates of a problem, in one thread, with the model loaded."""
    gpu = hardware("H200")
    heuristic = load_heuristic(gpu, LINEAR_BF16)
    every = suite("training")
    problems = [every[i * len(every) // PROBLEMS] for i in range(PROBLEMS)]
    fresh, ranked, decided, counts = [], [], [], []
    for turn in range(ROUNDS + 1):
        for problem in problems:
            remembered.cache_clear()  # it would cost nothing
            start = time.perf_counter()
            configs = heuristic.candidates(problem)
            middle = time.perf_counter()
            heuristic.rank(problem, configs, limit=5)
            end = time.perf_counter()
            heuristic.first(problem, configs)
            first = time.perf_counter()
            if turn:  # the first round warms up
                ranked.append(1e3 * (end - middle))
                fresh.append(1e3 * (end - start))
                decided.append(1e3 * (first - end))
                counts.append(len(configs))
    return {
        "candidates": runner.quantiles(counts, median=0.5, most=1.0),
        "rank_milliseconds": _spread(ranked),
        "candidates_and_rank_milliseconds": _spread(fresh),
        "rank_and_compare_with_library_milliseconds": _spread(decided),
    }


def cold_starts() -> Row:
    """Seconds of fresh interpreters: doing nothing, importing all of the domain, predicting."""
    stems = sorted(path.stem for path in HEURISTICS.glob("*.py") if path.stem != "__init__")
    code = f"import {', '.join(f'tilecast.heuristics.{stem}' for stem in stems)}"
    _, torch_loaded = runner.python("-c", f"{code}, sys; print('torch' in sys.modules)")
    wanted = {"pass": ("-c", "pass"), "import_heuristics": ("-c", code), "predict": PREDICT}
    found: Row = {
        name: _spread([runner.python(*arguments)[0] for _ in range(REPEATS)])
        for name, arguments in wanted.items()
    }
    beyond = found["import_heuristics"]["median"] - found["pass"]["median"]
    found["import_heuristics_beyond_pass"] = beyond
    found["import_heuristics_without_torch"] = torch_loaded.strip() == "False"
    return found


def train_seconds(folder: Path, *options: str) -> float:
    """Of `tilecast train`."""
    train = (*CLI, "train", "--out", str(folder / "model"), "--jobs", str(JOBS), *options)
    return runner.python(*train)[0]


def of_one_operand(path: Path) -> None:
    """Write the problems of the shipped data that have the operands of a bf16 ``nn.Linear``."""
    shipped = read_dataset(runner.DATA)
    rows: Any = shipped.rows[shipped.rows["operands"] == LINEAR_BF16.text]
    write_dataset(replace(shipped, rows=rows), path)


def main() -> None:
    """Measure, and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    figures: dict[str, Any] = {"warm": warm_ranking()}
    figures["torch_loaded_by_ranking"] = "torch" in sys.modules
    del os.environ["OMP_NUM_THREADS"]  # other processes take what threads they like
    figures["cold"] = cold_starts()
    with tempfile.TemporaryDirectory() as name:
        figures["train_seconds"] = train_seconds(folder := Path(name))
        of_one_operand(part := folder / "part.parquet")
        figures["train_one_operand_seconds"] = train_seconds(folder, "--data", str(part))
    settings = {"problems": PROBLEMS, "rounds": ROUNDS, "repeats": REPEATS, "jobs": JOBS}
    runner.write(options, settings, figures)


if __name__ == "__main__":
    main()
