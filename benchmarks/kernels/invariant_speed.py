"""What do rows with the same bits in every batch cost, on the layers of language models?

``python benchmarks/kernels/invariant_speed.py`` on one GPU. `torch.mm` at its default, and in a
process of its own with ``CUBLAS_WORKSPACE_CONFIG=:0:0``, which leaves cuBLAS no workspace to split
k in; the first three kernels of the model among those that agree bit for bit, and its first choice
among all; and, where batch_invariant_ops (github.com/thinking-machines-lab) is installed, its
kernel of Triton with one fixed tile. Timed as `tilecast collect` times kernels: CUDA graphs over
several operand sets, from a clean L2, rounds interleaved, idle gaps. The other process's times are
set against those of `torch.mm` at its default in this one.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tilecast.data_collection.problems.language_models import DEEPSEEK_V3, MODELS
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select.selection import first, hardware_of, shortlist
from tilecast.inductor_hook.settings import Settings, unbenchmarked
from tilecast.kernels.candidates import spec_for
from tilecast.kernels.spec import KernelSpec

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from races import Call, Races, medians
from runner import Measure, Row, Sweep, ratios

M = (1, 16, 64, 256, 1024, 4096)
NAMES = ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-8B", "gpt-oss-20b")
K = 3  # kernels of the mode that are timed
ROUNDS = 12
LIBRARY, WORKSPACE, FREE = "torch.mm", "torch.mm without workspace", "first of all"
TRITON = "batch_invariant_ops"
OWN = [f"invariant {place}" for place in range(1, K + 1)]
_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
MOST_N = 32_768  # wider ones, vocabularies, are the same case as those before and take longest


def families() -> list[tuple[int, int]]:
    """(n, k) of the models' layers on one GPU, each once."""
    layers = [
        family
        for model in MODELS
        if model.name in NAMES
        for family in [*model.layers()][: len([*model.layers()]) // len(model.shards)]
    ]
    return [f for f in dict.fromkeys((*layers, *DEEPSEEK_V3)) if f[0] <= MOST_N]


class InvariantRaces(Races):
    """Times kernels by name beside `torch.mm`."""

    def __init__(self, other: Any = None):
        """Bind the first device; ``other`` is the process without a workspace."""
        super().__init__()
        self.other = other

    def timed(self, problem: GemmProblem, calls: Mapping[str, Call]) -> dict[str, float]:
        """Microseconds by name."""
        self.calls = dict(calls)
        return medians(self.bench(problem, careful=False), calls, "burst", ROUNDS)

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Race all on one problem."""
        named = chosen(problem)
        kernels = self.kernels(named.values())
        # One that has two names is timed once.
        once = {spec: name for name, spec in reversed(named.items())}
        calls = {name: kernels[spec] for spec, name in once.items()}
        times = self.timed(problem, {LIBRARY: _library, **FIXED, **calls})
        times |= {name: times[once[spec]] for name, spec in named.items()}
        if self.other:
            torch.cuda.empty_cache()
            self.other.stdin.write(f"{problem}\n")
            self.other.stdin.flush()
            times[WORKSPACE] = json.loads(self.other.stdout.readline())
        configs = {name: spec.config.name for name, spec in named.items()}
        return [{"device": self.card, "configs": configs, "microseconds": times}]


def chosen(problem: GemmProblem) -> dict[str, KernelSpec]:
    """The kernels to time, by name."""
    free = unbenchmarked(None, "robust")
    gpu = hardware_of(0, free)
    settings, other = Settings(K, invariant=True), first(free, problem, gpu).prediction.config
    posed = settings.posed(problem)
    own = (spec_for(one.config, posed) for one in shortlist(settings, posed, gpu))
    return {**dict(zip(OWN, own, strict=False)), FREE: spec_for(other, problem)}


def _fixed() -> dict[str, Call]:
    """The kernel of the package of that name, if there is one."""
    try:
        multiply = import_module(TRITON).matmul_persistent
    except ImportError:
        return {}
    return {TRITON: lambda a, b, out: multiply(a, b)}


FIXED = _fixed()


def _library(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(a, b, out=out)


@contextmanager
def measuring() -> Iterator[Measure]:
    """Compile all kernels, and begin the process without a workspace."""
    environment = {**os.environ, _VARIABLE: ":0:0"}
    other = subprocess.Popen(
        [sys.executable, __file__, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        races = InvariantRaces(other)
        races.kernels({spec for one in PROBLEMS.values() for spec in chosen(one).values()})
        yield races.measure
    finally:
        other.kill()
        other.wait()


def serve() -> None:
    """Time `torch.mm` on each problem of the standard input; a line of JSON each."""
    races = InvariantRaces()
    for line in sys.stdin:
        (taken,) = races.timed(PROBLEMS[line.strip()], {LIBRARY: _library}).values()
        print(json.dumps(taken), flush=True)
        torch.cuda.empty_cache()


def figures(rows: Sequence[Row]) -> Row:
    """Times of others over the mode's first choice, and over the best of its first three."""
    groups = {"all": rows}
    groups |= {f"{m} rows": [r for r in rows if r["problem"].startswith(f"{m}x")] for m in M}
    few = tuple(f"{m}x" for m in M if m <= 16)
    groups["16 rows and fewer"] = [row for row in rows if row["problem"].startswith(few)]
    found: Row = {}
    for name, part in groups.items():
        times = [row["microseconds"] for row in part]
        if not times:
            continue
        one = [time[OWN[0]] for time in times]
        best = [min(time[name] for name in OWN if name in time) for time in times]
        free = [time[FREE] for time in times]
        library = [time[LIBRARY] for time in times]
        found[name] = {
            "torch.mm over the first": ratios(library, one),
            "torch.mm over the best of three": ratios(library, best),
            "the first over the first of all": ratios(one, free),
        }
        fixed = [(time[TRITON], time[OWN[0]]) for time in times if TRITON in time]
        if fixed:
            found[name][f"{TRITON} over the first"] = ratios(*zip(*fixed, strict=True))
        if all(WORKSPACE in time for time in times):
            other = [time[WORKSPACE] for time in times]
            found[name]["without workspace over torch.mm"] = ratios(other, library)
            found[name]["without workspace over the first"] = ratios(other, one)
    return found


# In no order, so that those of a run that is cut short stand for all.
_ALL = random.Random(0).sample(
    [(m, n, k) for n, k in families() for m in M], len(M) * len(families())
)
PROBLEMS = {f"{m}x{n}x{k}": GemmProblem(m, n, k) for m, n, k in _ALL}
SETTINGS = {"rounds": ROUNDS, "models": [*NAMES, "DeepSeek-V3"], "kernels": K}
SWEEP = Sweep("problem", PROBLEMS, measuring, figures, 3.0, SETTINGS)

if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else SWEEP.main(__file__, __doc__)
