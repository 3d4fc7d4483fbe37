"""What does `torch.addmm` take with its bias as a row, and with the row expanded to a matrix?

``python benchmarks/addmm_bias.py``. Code that Inductor generates hands over the row; since 2.12 its
autotuner times the matrix (tilecast.inductor_hook.timing.decide.time_as_it_runs).
"""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product

import runner
import torch
from runner import Row
from steps import captured, timed

SHAPES = {
    "Qwen2.5 7B QKV": (4608, 3584),
    "GPT-2 XL QKV": (4800, 1600),
    "GPT-2 XL up": (6400, 1600),
    "GPT-2 XL down": (1600, 6400),
    "BERT large attention": (1024, 1024),
    "BERT large up": (4096, 1024),
    "ViT-H down": (1280, 5120),
}  # n, k
M = (16, 64, 200, 512, 2048, 4096)
Shape = tuple[int, int, int]


def measure(shape: Shape) -> list[Row]:
    """Milliseconds with either bias, and of the product alone."""
    m, n, k = shape
    a, weight, bias = (
        torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((m, k), (n, k), (n,))
    )
    out, b, matrix = torch.empty_like(a @ weight.t()), weight.t(), bias.expand(m, n)
    steps = {
        "row": lambda: torch.addmm(bias, a, b, out=out),
        "matrix": lambda: torch.addmm(matrix, a, b, out=out),
        "no bias": lambda: torch.mm(a, b, out=out),
    }
    return [{"milliseconds": timed({name: captured(step) for name, step in steps.items()})}]


def figures(rows: Sequence[Row]) -> Row:
    """How many times a row's time a matrix takes."""
    times = [
        [row["milliseconds"][bias]["milliseconds"] for row in rows] for bias in ("matrix", "row")
    ]
    return {"matrix over row": runner.ratios(*times)}


ITEMS: dict[str, Shape] = {f"{m}x{n}x{k}": (m, n, k) for (n, k), m in product(SHAPES.values(), M)}
SWEEP = runner.Sweep(
    "problem", ITEMS, lambda: nullcontext(measure), figures, 3.0, {"shapes": SHAPES}
)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
