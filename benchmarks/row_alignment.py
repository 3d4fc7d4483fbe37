"""How much longer does the library take where rows of the result are no multiple of 16 bytes?

``python benchmarks/row_alignment.py`` on one GPU. A vocabulary of 50,257 words has such rows. TMA
does not write them, so ours writes longer ones, which are copied; whether that pays depends on what
the library takes for them. Microseconds of a launch among several in a CUDA graph: of ``torch.mm``
as it is asked for and for the longer rows, and of the copy.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from statistics import median

import torch
from runner import Row, Sweep, ratios
from steps import captured, milliseconds

from tilecast.inductor_hook.layout import padded

M = (1, 4, 16, 64, 256, 1024, 4096)
FAMILIES = (
    *((50257, 768), (50257, 1600), (51866, 1280), (30522, 1024), (1001, 4096), (4099, 4096)),
    *((12290, 2048), (2001, 512), (50260, 768), (12292, 2048), (4100, 4096), (2004, 512)),
)
"""(n, k): vocabularies of GPT-2, Whisper and BERT, ImageNet's classes, and others."""
LAUNCHES, REPLAYS = 20, 9


def measure(extents: tuple[int, int, int]) -> list[Row]:
    """Microseconds of the product, of that with longer rows, and of the copy."""
    m, n, k = extents
    longer = padded(n, 2)
    tensor = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    x = tensor(m, k)

    def product(columns: int) -> float:
        weight, out = tensor(columns, k), tensor(m, columns)
        return _microseconds(lambda: torch.mm(x, weight.t(), out=out))

    rows, out = tensor(m, longer), tensor(m, n)
    took = {"product": product(n), "longer": product(longer)}
    took["copy"] = _microseconds(lambda: out.copy_(rows[:, :n]))
    return [{"row_bytes": 2 * n, "microseconds": took}]


def _microseconds(call: Callable[[], object]) -> float:
    def launches() -> None:
        for _ in range(LAUNCHES):
            call()

    replay = captured(launches)
    return 1e3 * median(milliseconds(replay, 1) for _ in range(REPLAYS)) / LAUNCHES


def figures(rows: Sequence[Row]) -> Row:
    """By what the bytes of a row are a multiple of: the library's times over those beside it."""
    found: Row = {}
    for multiple in (2, 4, 8):
        times = [
            row["microseconds"]
            for row in rows
            if row["row_bytes"] % multiple == 0 and row["row_bytes"] % (2 * multiple)
        ]
        if times:
            product, longer, copy = (
                [one[name] for one in times] for name in ("product", "longer", "copy")
            )
            both = [a + b for a, b in zip(longer, copy, strict=True)]
            found[f"multiples of {multiple} bytes"] = {
                "product to longer rows": ratios(product, longer),
                "product to longer rows and copy": ratios(product, both),
            }
    return found


PROBLEMS = {f"{m}x{n}x{k}": (m, n, k) for m in M for n, k in FAMILIES}
SETTINGS = {"launches": LAUNCHES, "replays": REPLAYS}
SWEEP = Sweep("problem", PROBLEMS, lambda: nullcontext(measure), figures, 5.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
