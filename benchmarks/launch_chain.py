"""What does a programmatic dependent launch give? Eight decode products of Llama 3.1 8B in a graph.

``python benchmarks/launch_chain.py`` on one GPU. Each product reads what the one before it wrote;
the same kernels are compiled once as they are shipped, which may begin while the one before them
ends, and once as plain launches. Both graphs and one of ``torch.mm`` are replayed in turn.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import runner
import torch

from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.families import FAMILIES, parse_config
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

ROWS, LAYERS, ROUNDS = 16, 2, 200
GAP_SECONDS = 0.005
CHAIN = {
    (6144, 4096): "swap_64x16x64_c1x1x1_s12_coop_o1_rm8",
    (4096, 4096): "swap_64x16x128_c1x1x2_s11_coop_o1_rm8",
    (28672, 4096): "swap_128x16x128_c2x1x1_s6_coop_o1_rm8",
    (4096, 14336): "swap_64x16x128_c1x1x2_s11_coop_o1_rm8",
}  # n, k of QKV, attention output, gate and up, down; and the config that multiplies it

Launch = Callable[..., object]


class Plain(KernelSpec):
    """A kernel that is launched plainly; objects of one symbol do not load beside each other."""

    @property
    def symbol(self) -> str:
        """What its object exports."""
        return f"{super().symbol}_plain"


def compiled(name: str, dependent: bool) -> Launch:
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
    return FAMILIES[spec.config.family].launcher(getattr(module, spec.symbol), spec, 0)


def chain(launches: dict[tuple[int, int], Launch]) -> tuple[torch.cuda.CUDAGraph, list]:
    """A graph of all products, each on weights of its own, the first k of each result going on.

    Beside it the tensors that it reads and writes: it keeps none of them.
    """
    random: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    weights = [torch.randn(n, k, **random) / k**0.5 for _ in range(LAYERS) for n, k in CHAIN]
    results = [torch.empty(ROWS, max(w.shape[0], 14336), **random) for w in weights]
    first = torch.randn(ROWS, 4096, **random)

    def run() -> None:
        before = first
        for weight, whole in zip(weights, results, strict=True):
            n, k = weight.shape
            # Gate and up are 28672 wide, and down takes a half: no activation, which is not timed.
            launches[n, k](before[:, :k], weight.t(), whole[:, :n])
            before = whole

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph, [first, weights, results]


def main() -> None:
    """Measure, and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    kinds = {
        "dependent": {nk: compiled(name, True) for nk, name in CHAIN.items()},
        "plain": {nk: compiled(name, False) for nk, name in CHAIN.items()},
        "torch.mm": dict.fromkeys(CHAIN, lambda a, b, out: torch.mm(a, b, out=out)),
    }
    graphs = {kind: chain(launches) for kind, launches in kinds.items()}
    times: dict[str, list[float]] = {kind: [] for kind in graphs}
    for _ in range(ROUNDS):
        for kind, (graph, _) in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            time.sleep(GAP_SECONDS)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[kind].append(start.elapsed_time(end) * 1e3)
    medians = {kind: statistics.median(found) for kind, found in times.items()}
    figures = {
        "microseconds": medians,
        "plain_over_dependent": medians["plain"] / medians["dependent"],
        "library_over_dependent": medians["torch.mm"] / medians["dependent"],
        "bars": {"dependent_5_percent_faster": medians["plain"] >= 1.05 * medians["dependent"]},
    }
    settings = {
        "rows": ROWS,
        "launches": LAYERS * len(CHAIN),
        "rounds": ROUNDS,
        "configs": {f"{n}x{k}": name for (n, k), name in CHAIN.items()},
    }
    runner.write(options, settings, figures)


if __name__ == "__main__":
    main()
