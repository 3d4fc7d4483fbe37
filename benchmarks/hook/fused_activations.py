"""What does an activation in a tilecast kernel gain over one in a Triton template, or behind ATen?

``python benchmarks/hook/fused_activations.py`` on one GPU. Layers of models, a product, mostly a
bias, and an activation, are compiled with ATEN,TRITON and with tilecast beside both, fused or not.
Triton's choices compete for what is not fused alone; so the least speed says what leaving them out
of the comparison costs. A step is a CUDA graph of a layer for each of so many weights that the L2
cache does not hold them, as in a model; all take turns (`steps`). Compiling has fresh Inductor
caches, and tilecast's kernels compiled before.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from tilecast.kernels.build.builder import object_builder

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import Measure, Row, Sweep, ratios
from steps import ROUNDS, captured, seconds, timed
from variants import Variant, competing, compiled, gemm_calls, share_ptxas

RIVAL, FUSED = "ATEN,TRITON", "ATEN,TRITON,TILECAST k=5"
VARIANTS = (RIVAL, FUSED, f"{FUSED} unfused")
WHAT = ("milliseconds", "compile_seconds")
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "silu-mul": lambda x: F.silu((halves := x.chunk(2, -1))[0]) * halves[1],
}


class Layer(NamedTuple):
    """A product of x (rows, k) and a weight, (n, k) or, of a Conv1D, (k, n)."""

    n: int
    k: int
    activation: str
    bias: bool = True
    row_major: bool = False


LAYERS = {
    "GPT-2 XL": Layer(6400, 1600, "gelu-tanh", row_major=True),
    "BERT large": Layer(4096, 1024, "gelu"),
    "ViT-H": Layer(5120, 1280, "gelu"),
    "Phi-2": Layer(10240, 2560, "gelu-tanh"),
    "OPT 6.7B": Layer(16384, 4096, "relu"),
    "Falcon 7B": Layer(18176, 4544, "gelu", bias=False),
    "T5 XL": Layer(5120, 2048, "relu", bias=False),
    "silu": Layer(11008, 4096, "silu", bias=False),
}
ROWS = (16, 512, 4096)
COLD_BYTES = 128e6  # of weights, which exceed the L2 cache
CASES = {f"{name} {rows}": (LAYERS[name], rows) for rows in ROWS for name in LAYERS}


@contextmanager
def measuring() -> Iterator[Measure]:
    """Have Triton's kernels compiled once."""
    share_ptxas()
    yield measure


def measure(case: tuple[Layer, int]) -> list[Row]:
    """Compile and time a case; a row has figures by variant."""
    from torch._inductor.utils import fresh_cache

    layer, rows = case
    torch.manual_seed(0)
    copies = math.ceil(COLD_BYTES / (2 * layer.n * layer.k))
    stored = (copies, layer.k, layer.n) if layer.row_major else (copies, layer.n, layer.k)
    with torch.device("cuda"):
        x, bias, weights = (
            torch.randn(shape, dtype=torch.bfloat16)
            for shape in ((rows, layer.k), (layer.n,), stored)
        )
    if not layer.row_major:
        weights = weights.mT
    activation = ACTIVATIONS[layer.activation]

    def run(weight: torch.Tensor) -> torch.Tensor:
        product = torch.addmm(bias, x, weight) if layer.bias else x @ weight
        return activation(product)

    steps, found = {}, {}
    for variant in map(Variant, ("TILECAST k=5", *VARIANTS)):  # the first brings kernels
        torch._dynamo.reset()
        layer_of = compiled(run, variant, only_gemms=True)
        with competing(variant) as sources, fresh_cache():
            taken = seconds(partial(layer_of, weights[0]))
            object_builder().settle()
        steps[variant.name] = captured(partial(_each, layer_of, weights))
        found[variant.name] = {"compile_seconds": taken, "gemms": gemm_calls("\n".join(sources))}
    for name, times in timed({name: steps[name] for name in VARIANTS}).items():
        found[name] |= times
    return [{"variants": {name: found[name] for name in VARIANTS}}]


def _each(layer_of: Callable[[torch.Tensor], torch.Tensor], weights: torch.Tensor) -> None:
    for weight in weights:
        layer_of(weight)


def figures(rows: Sequence[Row]) -> Row:
    """Speed, and speed of compiling, over ATen and Triton."""

    def values(variant: str, what: str) -> list[float]:
        return [row["variants"][variant][what] for row in rows]

    return {
        variant: {what: ratios(values(RIVAL, what), values(variant, what)) for what in WHAT}
        for variant in VARIANTS[1:]
    }


SETTINGS = {
    "rounds": ROUNDS,
    "cold_bytes": COLD_BYTES,
    "layers": {name: one._asdict() for name, one in LAYERS.items()},
}
SWEEP = Sweep("case", CASES, measuring, figures, 20.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
