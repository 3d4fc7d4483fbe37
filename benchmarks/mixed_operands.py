"""What does a weight of int8 give that is converted inside the kernel? bf16 times int8, scaled.

``python benchmarks/mixed_operands.py --items :12 --deadline 75`` on one GPU. Beside the kernels of
`MIXED` stand what PyTorch runs eagerly, which converts the whole weight first, and, on a weight
that is bf16 already, `torch.mm` and our own kernels. Every kernel is checked as `tilecast collect`
does, then all are screened and the best raced, as it times kernels: CUDA graphs over several
operand sets, from a clean L2, rounds interleaved, with idle gaps. The items from 12 on have
`torch.compile` in the race, whose autotuning takes longer than all else.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle, product
from statistics import median
from typing import Any, cast

import torch
from runner import Row, Sweep, ratios

from tilecast.data_collection.timing.gpu_session import COLD_FACTOR, MIN_SETS, GpuSession
from tilecast.data_collection.timing.protocol import Entrant, without_drift
from tilecast.data_collection.timing.tensors import random_inputs, reference
from tilecast.data_collection.timing.torch_reference import torch_launch
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.candidates import candidates
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime.learned import load_heuristic

GPU = hardware("H200")
MIXED = GemmOperands.parse("bf16xint8:rcr:column-scales")
SHAPES = ((4096, 4096), (28672, 4096), (4096, 14336))
M = (16, 64, 256, 1024)
COMPILED = (16, 256)  # m, with the last of the shapes
PLAIN, PER_KIND = 6, 2  # configs of a problem: of bf16, of each kind of mixed ones
FINALISTS = {"mixed": 5, "plain": 3}
SCREENED, RACED = 2, 12  # rounds
LIBRARY, CUBLAS, COMPILE = "mm(x, w.to(bf16)) * scale", "torch.mm in bf16", "torch.compile"
RIVALS = (LIBRARY, CUBLAS, "plain", COMPILE)
MAX_RELATIVE_ERROR = 1e-2  # of what is compiled by others

Call = Callable[..., object]


def kind(config: QuackConfig) -> tuple[object, ...]:
    """What is varied for certain, since converting takes time that a model of bf16 knows not of."""
    return config.tile_m, config.split_k > 1, config.ctas_per_sm, config.schedule


def specs(problem: GemmProblem) -> dict[str, KernelSpec]:
    """The kernels to time by name: the first of bf16 by its model, and of each kind of mixed ones.

    The model knows no mixed kernel; it ranks them as it ranks the same tile for bf16.
    """
    bf16 = replace(problem, operands=LINEAR_BF16)
    found = load_heuristic(GPU, LINEAR_BF16, "burst").rank(bf16, candidates(bf16, GPU))
    ranking = cast("Sequence[QuackConfig]", found)
    places = {replace(config, stages=0): place for place, config in enumerate(ranking)}
    kinds: dict[tuple[object, ...], list[QuackConfig]] = {}
    mixed = cast("Sequence[QuackConfig]", candidates(problem, GPU))
    for config in sorted(mixed, key=lambda c: places.get(replace(c, stages=0), len(places))):
        kinds.setdefault(kind(config), []).append(config)
    chosen = [config for group in kinds.values() for config in group[:PER_KIND]]
    return {
        **{f"mixed {config}": KernelSpec(config, MIXED) for config in chosen},
        **{f"plain {config}": KernelSpec(config, LINEAR_BF16) for config in ranking[:PLAIN]},
    }


class MixedSession(GpuSession):
    """Times kernels by name, and what PyTorch runs, on the inputs of a mixed problem."""

    def __init__(self):
        """Bind the first device that is visible, once all kernels are compiled."""
        objects = ObjectCache(default_root())
        every = [spec for problem, _ in ITEMS.values() for spec in specs(problem).values()]
        failed = [r for r in compile_all(every, objects, len(os.sched_getaffinity(0))) if r.error]
        if failed:
            raise RuntimeError(f"{failed[0].spec}: {failed[0].error}")
        super().__init__(objects, 0, lambda entrant: None)
        self.calls: dict[str, Call] = {}
        self.wrong: dict[KernelSpec, str | None] = {}
        self.outputs: list[torch.Tensor] = []

    def launcher(self, entrant: Entrant, problem: GemmProblem) -> Call:
        """What makes the call of a name."""
        return self.calls[cast(str, entrant)]

    def measure(self, item: tuple[GemmProblem, bool]) -> list[Row]:
        """Check all, screen ours, then race the best with each other and with the rest."""
        problem, compiles = item
        weights = bf16_weights(problem)

        def on_bf16(launch: Call) -> Call:
            return lambda a, b, out, scale: launch(a, next(weights), out)

        self.calls, wrong = {}, {}
        for name, spec in specs(problem).items():
            if spec not in self.wrong:
                print(f"check {spec}", flush=True)  # the last one, should it crash
                self.wrong[spec] = self.check(spec)
            if self.wrong[spec]:
                wrong[name] = self.wrong[spec]
            else:
                launch = self._kernel(spec)
                self.calls[name] = on_bf16(launch) if name.startswith("plain") else launch
        names = list(self.calls)
        bench = self.bench(problem, careful=False)

        def timed(names: Sequence[str], rounds: int) -> dict[str, float]:
            # A bench tells entrants apart and asks the session what launches them, no more.
            found = bench.time(cast("list[Entrant]", names), "burst", rounds)
            self.outputs.clear()
            return dict(zip(names, map(median, without_drift(found)), strict=True))

        screened = timed(names, SCREENED)
        fastest = sorted(screened, key=screened.__getitem__)
        ours = [[n for n in fastest if n.startswith(start)] for start in FINALISTS]
        best = [n for o, count in zip(ours, FINALISTS.values(), strict=True) for n in o[:count]]
        self.calls[LIBRARY] = torch_launch(problem.operands)
        self.calls[CUBLAS] = on_bf16(lambda a, b, out: torch.mm(a, b, out=out))
        if compiles:
            self.calls[COMPILE] = self._compiled(problem)
        rivals = [name for name in RIVALS if name in self.calls]
        times = timed([*best, *rivals], RACED)
        row = {"screened": screened, "wrong": wrong, "microseconds": times}
        return [{"device": self.card, **row}]

    def _compiled(self, problem: GemmProblem) -> Call:
        """What Inductor makes of the expression, on these extents.

        Raises:
            RuntimeError: its result is wrong.
        """
        torch._dynamo.reset()
        options: dict[str, Any] = {"mode": "max-autotune-no-cudagraphs", "dynamic": False}
        call = torch.compile(lambda a, b, scale: torch.mm(a, b.to(a.dtype)) * scale, **options)
        a, b, scale = random_inputs(problem)
        right = reference(problem, (a, b, scale))
        error = torch.linalg.norm(call(a, b, scale).float() - right) / torch.linalg.norm(right)
        if not error < MAX_RELATIVE_ERROR:
            raise RuntimeError(f"{COMPILE} is {error:.2g} off on {problem}")
        # Kept until the graphs are gone, so that each launch writes to memory of its own.
        return lambda a, b, out, scale: self.outputs.append(call(a, b, scale))


def bf16_weights(problem: GemmProblem) -> Iterator[torch.Tensor]:
    """Weights (k, n) of bf16 by turns, as many as exceed the L2 together like a bench's own."""
    bf16 = replace(problem, operands=LINEAR_BF16)
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(MIN_SETS, math.ceil(COLD_FACTOR * l2_bytes / bf16.min_bytes))
    return cycle([random_inputs(bf16)[1] for _ in range(count)])


def least(row: Row) -> dict[str, float]:
    """Microseconds of ours, the best each, and of the rest."""
    times = row["microseconds"]
    found = {name: time for name, time in times.items() if name in RIVALS}
    for start in FINALISTS:
        of_ours = [time for name, time in times.items() if name.startswith(start)]
        if of_ours:  # none is left where all were wrong
            found[start] = min(of_ours)
    return found


def figures(rows: Sequence[Row]) -> Row:
    """The best of each problem, and for each m how many times its time the others take."""
    found = {row["problem"]: least(row) for row in rows}
    extents = {name: int(name.split("x")[0]) for name in found}
    return {
        "microseconds": found,
        "over_mixed": {
            str(m): {
                rival: ratios(*zip(*pairs, strict=True))
                for rival in RIVALS
                if (pairs := [(t[rival], t["mixed"]) for n, t in found.items()
                              if extents[n] == m and {rival, "mixed"} <= t.keys()])
            }
            for m in sorted(set(extents.values()))
        },
        "wrong": {name: text for row in rows for name, text in row["wrong"].items()},
    }  # fmt: skip


ITEMS = {
    **{
        str(problem): (problem, False)
        for (n, k), m in product(SHAPES, M)
        for problem in [GemmProblem(m, n, k, operands=MIXED)]
    },
    **{
        f"{problem} {COMPILE}": (problem, True)
        for m in COMPILED
        for problem in [GemmProblem(m, *SHAPES[-1], operands=MIXED)]
    },
}
SETTINGS = {
    "operands": MIXED.text,
    "rounds": RACED,
    "screened_rounds": SCREENED,
    "finalists": FINALISTS,
    "plain": PLAIN,
    "per_kind": PER_KIND,
}
SWEEP = Sweep("problem", ITEMS, lambda: nullcontext(MixedSession().measure), figures, 6.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
