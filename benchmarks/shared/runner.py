"""What every benchmark shares: options, provenance, deadline, processes, the form of a result.

``NAME.py`` writes ``results/NAME.json`` unless ``--out`` names another file; what was measured on
an H100, too, lies in ``results/h100``. A result has ``benchmark``, the script's name;
``provenance`` of each process that measured, with date, command, versions, environment and GPUs
with driver, clocks and power; ``settings``, what was measured and how; ``rows``, what was measured
item by item, each with the place of its ``run`` in ``provenance``; and ``figures``, what all of it
says, of a `Sweep` for each PyTorch apart.
"""

import argparse
import fcntl
import importlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.data_collection.gpu.environment import gpu_states, installed_version, public_command
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically
from tilecast.models.evaluation.regret import error_of_mean
from tilecast.models.learning.labels import spread

RESULTS = Path(__file__).parents[1] / "results"
DATA = Path(__file__).parents[2] / "data_collection" / "data" / "h200.parquet"
PACKAGES = (
    *("numpy", "pandas", "scikit-learn", "torch", "xgboost-cpu"),
    *("nvidia-cutlass-dsl", "quack-kernels", "nvidia-cutlass-operators"),
    *("nvidia-matmul-heuristics", "transformers", "torchao"),
)
SHOWN_K = (1, 3, 5)  # numbers of kernels that tables show regret at
DIGITS = 5  # of a figure that is rounded
SHARE = "measure every Nth item, from the one at I on (default: all)"
ONLY = "measure the items whose name contains one of these, in their order (default: all)"
VARIABLES = ("TILECAST", "TORCH", "TRITON")  # of the environment whose names begin so are noted
RESAMPLES = 10_000  # draws of families, which tell how far a difference is to be trusted
PROCESS_SECONDS = 600.0  # after which a process that should have ended is ended

Row = dict[str, Any]
Measure = Callable[[Any], Sequence[Row]]  # takes an item, returns what was measured


def parser(script: str, question: str | None) -> argparse.ArgumentParser:
    """The option that all have, ``--out``, of a benchmark with a ``__file__`` and ``__doc__``."""
    out = RESULTS / f"{Path(script).stem}.json"
    options = argparse.ArgumentParser(description=question)
    options.add_argument("--out", type=Path, default=out, help="result file (default: %(default)s)")
    options.set_defaults(benchmark=out.stem)
    return options


def provenance() -> Row:
    """Date, command, host, versions, telling variables and, where there are any, GPUs."""
    gpus = []
    with suppress(TilecastError):
        gpus = gpu_states()
    # A copy that lies beside the installed one is what runs, so modules are asked, too.
    modules = {name: sys.modules[name] for name in ("torch", "triton") if name in sys.modules}
    # With fewer threads, say, Inductor compiles longer.
    variables = {v: public_command([os.environ[v]]) for v in os.environ if v.startswith(VARIABLES)}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": public_command(["python", *sys.argv]),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := installed_version(name))},
        "imported": {name: module.__version__ for name, module in modules.items()},
        "environment": variables,
        "gpus": gpus,
    }


def facts(dataset: Dataset) -> Row:
    """What a result says of the data set that it is computed from."""
    names = ("date", "command", "gpus", "versions")
    runs = [{name: run[name] for name in names} for run in dataset.provenance["runs"]]
    return {"sha256": dataset.digest, "rows": len(dataset.rows), "runs": runs}


def quantiles(values: Sequence[float] | np.ndarray, **shares: float) -> dict[str, float]:
    """Named quantiles of some values, such as ``p95=0.95``."""
    return {name: float(np.quantile(values, share)) for name, share in shares.items()}


def share_without_gain(families: Sequence[object], differences: np.ndarray) -> float:
    """How often a gain is none where other problems are drawn: the share of sums of 0 or more.

    Families are drawn with replacement, not problems: those of one are right or wrong together.

    Args:
        families: of each problem.
        differences: float array [problems]: what is lost more than before.
    """
    names = sorted(set(families))  # type: ignore[type-var]
    sums = np.bincount([names.index(family) for family in families], differences)
    draws = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    return float((sums[draws].sum(1) >= 0).mean())


def python(*arguments: str) -> tuple[float, str]:
    """Run a fresh interpreter; returns the seconds that it took and what it printed."""
    start = time.perf_counter()
    out = subprocess.check_output([sys.executable, *arguments], text=True, timeout=PROCESS_SECONDS)
    return time.perf_counter() - start, out


def compact(document: Row) -> str:
    """JSON with one line per list of numbers."""
    text = json.dumps(document, indent=1)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


@contextmanager
def changing(options: argparse.Namespace) -> Iterator[Row]:
    """Inside, the result of `parser`'s options may be changed; no other process changes it."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    # The folder is what is locked: the file itself is replaced at every change.
    folder = os.open(options.out.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        document = _read(options)
        yield document
        write_atomically(options.out, lambda path: path.write_text(compact(document)))
    finally:
        os.close(folder)


def _read(options: argparse.Namespace) -> Row:
    if options.out.exists():
        return json.loads(options.out.read_text())
    empty = {"provenance": [], "settings": {}, "rows": [], "figures": {}}
    return {"benchmark": options.benchmark, **empty}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """How many times one is the other, where both are known: mean, percentiles, extremes."""
    logs = np.log(above) - np.log(below)
    logs = logs[np.isfinite(logs)]
    shares = {"least": 0.0, "p5": 0.05, "p95": 0.95, "most": 1.0}
    found = {"geomean": float(logs.mean())} | quantiles(logs, **shares)
    return {"problems": len(logs)} | {name: round(math.exp(v), 4) for name, v in found.items()}


def rounded(row: Row) -> Row:
    """The same with fewer digits."""
    return {name: round(x, DIGITS) if isinstance(x, float) else x for name, x in row.items()}


def shown_regret(lost: np.ndarray, families: Sequence[Hashable]) -> Row:
    """What problems lose at each of `SHOWN_K`, with the error of the mean.

    Args:
        lost: float64 [problems, numbers of kernels].
        families: of each problem.
    """
    errors = error_of_mean(lost, families)
    return {
        str(k): rounded({**spread(one), "error": float(error)})
        for k, one, error in zip(SHOWN_K, lost.T, errors, strict=True)
    }


def write(options: argparse.Namespace, settings: Row, figures: Row) -> None:
    """Keep a result that was measured in one go; print its figures as one line of JSON."""
    with changing(options) as document:
        document.update(provenance=[provenance()], settings=settings, figures=figures)
    print(json.dumps({"out": str(options.out), "figures": figures}))


@dataclass(frozen=True)
class Sweep:
    """Items that are measured one by one until time is up, on one GPU or several.

    Each is kept once it is done, so a run that is cut short goes on when it is started again.
    """

    key: str  # field of a row that names its item
    items: Mapping[str, Any]
    measuring: Callable[[], AbstractContextManager[Measure]]
    """Makes ready to measure on the first GPU that is visible."""
    figures: Callable[[Sequence[Row]], Row]
    longest: float  # seconds that an item may take
    settings: Row

    def main(self, script: str, question: str | None) -> None:
        """Measure what the options ask for and the result lacks; print figures as one JSON line."""
        options = parser(script, question)
        options.add_argument("only", nargs="*", metavar="TEXT", help=ONLY)
        options.add_argument("--share", type=share, default="0/1", metavar="I/N", help=SHARE)
        options.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs to spread over")
        options.add_argument("--deadline", type=float, default=600, metavar="SECONDS")
        asked = options.parse_args()
        if asked.gpus > 1:
            over_gpus(asked.gpus, asked)
        else:
            self.measure(asked)
        print(json.dumps({"out": str(asked.out), "figures": _read(asked)["figures"]}))

    def named(self, texts: Sequence[str]) -> list[tuple[str, Any]]:
        """Names and items whose name contains one of some texts, in their order; all without."""
        wanted = {name: self.items[name] for t in texts or [""] for name in self.items if t in name}
        return list(wanted.items())

    def measure(self, options: argparse.Namespace) -> None:
        """Measure items that the result lacks, one after the other, while the time allows."""
        end, longest = time.monotonic() + options.deadline, self.longest
        torch = importlib.import_module("torch").__version__
        with suppress(ImportError):
            importlib.import_module("triton")
        now = provenance()
        with changing(options) as document:
            document["settings"] = self.settings
            document["provenance"].append(now)
            run = len(document["provenance"]) - 1
            known = document["rows"]
        with self.measuring() as measure:
            for name, item in self.named(options.only)[options.share]:
                identity = {"torch": torch, self.key: name}
                if any(identity.items() <= row.items() for row in known):
                    continue
                start = time.monotonic()
                print(f"{identity}, {end - start:.0f} s left", flush=True)
                if end - start < longest:
                    break
                self.keep(options, identity, [{"run": run, **row} for row in measure(item)])
                # Others may take as long as the one that took longest.
                longest = max(longest, time.monotonic() - start)
        now = provenance()
        with changing(options) as document:
            document["provenance"][run]["end"] = {name: now[name] for name in ("date", "gpus")}

    def keep(self, options: argparse.Namespace, identity: Row, new: Sequence[Row]) -> None:
        """Put rows in the place of those with the same identity, and compute all figures anew."""
        with changing(options) as document:
            rows = [row for row in document["rows"] if not identity.items() <= row.items()]
            rows = document["rows"] = [*rows, *({**identity, **row} for row in new)]
            versions = sorted({row["torch"] for row in rows})
            document["figures"] = {
                v: self.figures([row for row in rows if row["torch"] == v]) for v in versions
            }


def share(text: str) -> slice:
    """``I/N`` as every Nth item of a list, from the one at I on.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found and int(found[1]) < int(found[2]):
        return slice(int(found[1]), None, int(found[2]))
    raise argparse.ArgumentTypeError(f"{text!r} is no share; allowed: I/N with I < N, such as 0/4")


def over_gpus(gpus: int, options: argparse.Namespace) -> None:
    """Run this script once per GPU, from the first on, each with its share of the items.

    Raises:
        subprocess.SubprocessError: one of them failed, or did not end in time.
    """
    command = [sys.executable, sys.argv[0], *options.only, f"--out={options.out}"]
    command += [f"--deadline={options.deadline}", "--share"]
    limit = options.deadline + PROCESS_SECONDS

    def run(gpu: int) -> None:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
        part = f"{gpu}/{gpus}"
        subprocess.run([*command, part], env=environment, timeout=limit, check=True)

    with ThreadPoolExecutor(gpus) as pool:
        list(pool.map(run, range(gpus)))
