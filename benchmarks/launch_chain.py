"""What does a programmatic dependent launch give? Eight decode products in a CUDA graph.

``python benchmarks/launch_chain.py`` on one GPU. Each product reads what the one before it wrote;
the same kernels are compiled once as they are shipped, which may begin while the one before them
ends, and once as plain launches. Both graphs and one of ``torch.mm`` are replayed in turn. The
products are those of two layers of Llama 3.1 8B and, to show what a launch costs, eight small ones.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import runner
import torch

from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.families import FAMILIES, parse_config
from tilecast.kernels.objects.keys import kernel_symbol
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

ROWS, ROUNDS = 16, 200
GAP_SECONDS = 0.005
LAYER = (
    ((6144, 4096), "swap_64x16x64_c1x1x1_s12_coop_o1_rm8"),
    ((4096, 4096), "swap_64x16x128_c1x1x2_s11_coop_o1_rm8"),
    ((28672, 4096), "swap_128x16x128_c2x1x1_s6_coop_o1_rm8"),
    ((4096, 14336), "swap_64x16x128_c1x1x2_s11_coop_o1_rm8"),
)  # n, k of QKV, attention output, gate and up, down; and the config that multiplies it
SMALL = ((1024, 1024), "swap_64x16x128_c1x1x2_s11_coop_o1_rm8")
CHAINS = {"Llama 3.1 8B": LAYER * 2, "1024 x 1024": (SMALL,) * 8}

Launch = Callable[..., object]


class Plain(KernelSpec):
    """A kernel that is launched plainly; objects of one symbol do not load beside each other."""

    @property
    def symbol(self) -> str:
        """What its object exports."""
        return f"{super().symbol}_plain"


@cache
def compiled(name: str, *, dependent: bool) -> Launch:
    """A config's kernel, launched as a programmatic dependent or plainly."""
    import cutlass.cute as cute

    from tilecast.kernels.gemm_object import compile_gemm
    from tilecast.kernels.quack_sm90.kernel import TunableGemm

    spec = (KernelSpec if dependent else Plain)(parse_config(name), LINEAR_BF16)
    kernel = TunableGemm(cast("QuackConfig", spec.config), LINEAR_BF16)
    kernel.use_pdl = dependent
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        Path(file.name).write_bytes(compile_gemm(kernel, spec))
        module = cute.runtime.load_module(file.name, enable_tvm_ffi=True)
    return FAMILIES[spec.config.family].launcher(getattr(module, kernel_symbol(spec)), spec, 0)


def chain(products: Sequence[tuple[tuple[int, int], Launch]]) -> tuple[torch.cuda.CUDAGraph, list]:
    """A graph of products, each on weights of its own, the first k of each result going on.

    Beside it the tensors that it reads and writes: it keeps none of them.
    """
    random: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    weights = [torch.randn(n, k, **random) / k**0.5 for (n, k), _ in products]
    results = [torch.empty(ROWS, max(n, 14336), **random) for (n, _), _ in products]
    first = torch.randn(ROWS, 4096, **random)

    def run() -> None:
        before = first
        for weight, whole, (_, launch) in zip(weights, results, products, strict=True):
            n, k = weight.shape
            # Gate and up are 28672 wide, and down takes a half: no activation, which is not timed.
            launch(before[:, :k], weight.t(), whole[:, :n])
            before = whole

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph, [first, weights, results]


def measure(products: Sequence[tuple[tuple[int, int], str]]) -> runner.Row:
    """Microseconds of a chain launched in each way, replayed in turn."""
    ways = {
        "dependent": partial(compiled, dependent=True),
        "plain": partial(compiled, dependent=False),
        "torch.mm": lambda name: lambda a, b, out: torch.mm(a, b, out=out),
    }
    graphs = {
        way: chain([(nk, launch(name)) for nk, name in products]) for way, launch in ways.items()
    }
    times: dict[str, list[float]] = {way: [] for way in graphs}
    for _ in range(ROUNDS):
        for way, (graph, _) in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            time.sleep(GAP_SECONDS)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[way].append(start.elapsed_time(end) * 1e3)
    medians = {way: statistics.median(found) for way, found in times.items()}
    return {
        "microseconds": medians,
        "quartiles": {
            way: np.quantile(found, (0.25, 0.75)).tolist() for way, found in times.items()
        },
        "plain_over_dependent": medians["plain"] / medians["dependent"],
        "library_over_dependent": medians["torch.mm"] / medians["dependent"],
        "microseconds_saved_per_launch": (medians["plain"] - medians["dependent"]) / len(products),
    }


def main() -> None:
    """Measure, and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    figures = {name: measure(products) for name, products in CHAINS.items()}
    llama = figures["Llama 3.1 8B"]["plain_over_dependent"]
    figures["bars"] = {"dependent_5_percent_faster": llama >= 1.05}
    runner.write(options, {"rows": ROWS, "rounds": ROUNDS, "chains": CHAINS}, figures)


if __name__ == "__main__":
    main()
