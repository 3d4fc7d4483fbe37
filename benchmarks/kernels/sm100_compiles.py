"""Does the compiler take what the rules of `quack_sm100` leave, for Blackwell, without a GPU?

``python benchmarks/kernels/sm100_compiles.py``. Every tile, with every depth and cluster that the
rules leave it, with and without a split of k, is compiled for one of the kinds of operands in turn;
how many share k, the raster and an exchange of A and B are drawn. One more config of each kind
comes to these, a tenth of the classes of groups and of gates, and all of blocks that are scaled.
Nothing is run.
"""

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.candidates import rules_applied, space
from tilecast.kernels.families import FAMILIES
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import Measure, Row, Sweep

GPU = hardware("B200")
KINDS = (
    *("bf16:rcr", "bf16:rrr", "bf16:ccr", "bf16:rcc", "bf16:rcr>fp32", "fp16:rcr"),
    *("bf16:rcr:bias+gelu", "e4m3:rcr>bf16:tensor-scales", "e5m2:rcr>bf16:row-scales+bias"),
    "e4m3:rcr>bf16@fp32:row-scales",
)
BLOCKS = "e4m3:rcr>bf16:block-scales"
"""Its tiles are fewer, and all of them are compiled for it."""
OTHERS = (
    *("bf16:rcr:row-groups", "bf16:crr:k-groups", "fp16:rrr:row-groups+silu"),
    *("e4m3:rcr>bf16:row-groups+row-scales", "bf16:rcr:bias+silu-mul"),
    *("bf16:rcr:row-groups+silu-mul", "e4m3:rcr>bf16:row-scales+mul-gelu"),
)
"""Groups differ from the rest in what hands out tiles, gates in how they are stored."""
WORKERS = 1


def drawn(operands: GemmOperands) -> list[KernelSpec]:
    """The configs of the classes whose turn it is, and one more; every third for a batch.

    A class is a tile, a depth, a cluster, and whether k is split.
    """
    source, classes = random.Random(operands.text), {}
    table = space(operands, GPU)
    c = table.columns
    split = c.split_k > 1
    keys = zip(c.tile_m, c.tile_n, c.tile_k, c.cluster_m, c.cluster_n, split, strict=True)
    for key, config in zip(keys, table.configs, strict=True):
        classes.setdefault(key, []).append(config)
    kinds = next(kinds for kinds in (KINDS, OTHERS, (BLOCKS,)) if operands.text in kinds)
    turn, step = kinds.index(operands.text), len(KINDS) if len(kinds) > 1 else 1
    configs = [source.choice(found) for found in list(classes.values())[turn::step]]
    configs.append(source.choice([one for one in table.configs if one not in configs]))
    batches = kinds == KINDS  # as PyTorch has it
    return [KernelSpec(c, operands, batched=batches and i % 3 == 2) for i, c in enumerate(configs)]


@contextmanager
def measuring() -> Iterator[Measure]:
    """Compiles into a cache that goes with it."""
    with tempfile.TemporaryDirectory() as folder:
        objects = ObjectCache(Path(folder, "objects"))

        def measure(operands: GemmOperands) -> list[Row]:
            rows = []
            for result in compile_all(drawn(operands), objects, WORKERS):
                found = objects.resources(result.spec)
                rows.append(
                    {
                        "config": result.spec.config.name,
                        "batched": result.spec.batched,
                        "seconds": round(result.seconds, 1),
                        "registers": found and found.registers,
                        "spill_bytes": found and found.spill_bytes,
                        "error": result.error,
                    }
                )
            return rows

        yield measure


def figures(rows: Sequence[Row]) -> Row:
    """What became of all of them."""
    compiled = [row for row in rows if row["error"] is None]
    return {
        "configs": len(rows),
        "compiled": len(compiled),
        "refused_by_the_compiler": len(rows) - len(compiled),
        "most_registers": max(row["registers"] for row in compiled),
        "most_spill_bytes": max(row["spill_bytes"] for row in compiled),
        "median_seconds": float(np.median([row["seconds"] for row in compiled])),
    }


def refused() -> dict[str, int]:
    """Points of the axes in bf16, and how many of them each rule in turn takes away."""
    operands = GemmOperands.parse(KINDS[0])
    left, rules = rules_applied(FAMILIES["quack_sm100"], operands, GPU, None)
    taken = {"points": left}
    for rule, kept in rules:
        taken[rule.name], left = left - kept, kept
    return taken


if __name__ == "__main__":
    Sweep(
        "operands",
        {text: GemmOperands.parse(text) for text in (*KINDS, *OTHERS, BLOCKS)},
        measuring,
        figures,
        longest=120,
        settings={"gpu": GPU.name, "workers": WORKERS, "refused_by_rules": refused()},
    ).main(__file__, __doc__)
