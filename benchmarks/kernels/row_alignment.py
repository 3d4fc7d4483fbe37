"""How long does a product whose rows are no multiple of 16 bytes take, in cuBLAS and in tilecast?

``python benchmarks/kernels/row_alignment.py`` on one GPU. A vocabulary of 50,257 words has such
rows. TMA does not store them, so the threads of a tilecast kernel do. Microseconds of a launch
among several in a CUDA graph: of ``torch.mm`` and of the kernel that the model prefers, each as it
is asked for and for the next longer rows that TMA stores, and of a copy of these to where they
belong.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import torch

from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.describe.layout import padded
from tilecast.inductor_hook.run.static import loaded_kernel
from tilecast.inductor_hook.select.selection import first, hardware_of
from tilecast.inductor_hook.settings import unbenchmarked
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.candidates import spec_for
from tilecast.kernels.spec import KernelSpec

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import Measure, Row, Sweep, ratios
from steps import captured, milliseconds

M = (1, 4, 16, 64, 256, 1024, 4096)
FAMILIES = (
    *((50257, 768), (50257, 1600), (51866, 1280), (30522, 1024), (1001, 4096), (4099, 4096)),
    *((12290, 2048), (2001, 512), (50260, 768), (12292, 2048), (4100, 4096), (2004, 512)),
)
"""(n, k): vocabularies of GPT-2, Whisper and BERT, ImageNet's classes, and others."""
BATCHED = (
    *((192, 77, 77, 64), (64, 197, 197, 64), (16, 1500, 1500, 64), (192, 13, 13, 64)),
    *((512, 1, 50, 128), (64, 4, 1001, 128)),
)
"""(batch, m, n, k): scores of attention over CLIP's, ViT's and Whisper's lengths, and few rows."""
LAUNCHES, REPLAYS = 20, 9


@contextmanager
def measuring() -> Iterator[Measure]:
    """Have all kernels compiled, as many at a time as there are cores."""
    for extents in PROBLEMS.values():
        for spec in _specs(extents):
            object_builder().start(spec)
    object_builder().settle()
    yield measure


def measure(extents: tuple[int, ...]) -> list[Row]:
    """Microseconds of both products, of those with longer rows, and of the copy."""
    *several, m, n, k = extents
    longer = padded(n, 2)
    tensor = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    x, weight = tensor(*several, m, k), tensor(*several, longer, k)
    rows, out = tensor(*several, m, longer), tensor(*several, m, n)
    library = torch.bmm if several else torch.mm
    ours, ours_longer = (loaded_kernel(spec, 0) for spec in _specs(extents))
    short, whole = weight[..., :n, :].mT, weight.mT
    calls: dict[str, Callable[[], object]] = {
        "library": lambda: library(x, short, out=out),
        "library, longer": lambda: library(x, whole, out=rows),
        "ours": lambda: ours(x, short, out),
        "ours, longer": lambda: ours_longer(x, whole, rows),
        "copy": lambda: out.copy_(rows[..., :n]),
    }
    took = {name: _microseconds(call) for name, call in calls.items()}
    return [{"row_bytes": 2 * n, "microseconds": took}]


def _specs(extents: tuple[int, ...]) -> tuple[KernelSpec, KernelSpec]:
    """The kernel that the model prefers, for rows that begin anywhere and for the longer ones."""
    *several, m, n, k = extents
    problem = GemmProblem(m, padded(n, 2), k, *several, operands=LINEAR_BF16)
    settings = unbenchmarked(None, "robust")
    config = first(settings, problem, hardware_of(0, settings)).prediction.config
    return spec_for(config, problem, True), spec_for(config, problem)


def _microseconds(call: Callable[[], object]) -> float:
    def launches() -> None:
        for _ in range(LAUNCHES):
            call()

    replay = captured(launches)
    return 1e3 * median(milliseconds(replay, 1) for _ in range(REPLAYS)) / LAUNCHES


def figures(rows: Sequence[Row]) -> Row:
    """By what the bytes of a row are a multiple of: times over others."""
    found: Row = {}
    for multiple in (2, 4, 8):
        times = [
            row["microseconds"]
            for row in rows
            if row["row_bytes"] % multiple == 0 and row["row_bytes"] % (2 * multiple)
        ]
        if times:
            of = {name: [one[name] for one in times] for name in times[0]}
            copied = [a + b for a, b in zip(of["ours, longer"], of["copy"], strict=True)]
            found[f"multiples of {multiple} bytes"] = {
                "library to its longer rows": ratios(of["library"], of["library, longer"]),
                "library to ours": ratios(of["library"], of["ours"]),
                "ours to its longer rows": ratios(of["ours"], of["ours, longer"]),
                "ours to its longer rows and a copy": ratios(of["ours"], copied),
            }
    return found


PROBLEMS: dict[str, tuple[int, ...]] = {
    "x".join(map(str, extents)): extents
    for extents in (*((m, n, k) for m in M for n, k in FAMILIES), *BATCHED)
}
SETTINGS = {"launches": LAUNCHES, "replays": REPLAYS}
SWEEP = Sweep("problem", PROBLEMS, measuring, figures, 5.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
