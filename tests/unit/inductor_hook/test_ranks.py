"""What k = 1 takes depends on settings, problem and GPU model alone: every rank takes the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings

PRODUCTS = (
    *(("bf16:rcr", *extents) for extents in ((16, 6144, 4096), (512, 4096, 4096), (192, 264, 512))),
    *(("bf16:rrr", *extents) for extents in ((16, 4096, 6144), (512, 4096, 4096))),
    *(("bf16:crr", *extents) for extents in ((4096, 6144, 512), (1024, 512, 192))),
)
"""Of training steps: forward, gradients of the inputs, gradients of the weights."""

RANK = f"""
import json, os, sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "helpers")!r})
import torch
from hook_graph import choices_of, lowering, node, source_of
from torch._inductor.kernel_inputs import MMKernelInputs
from tilecast.data_collection.gpu import gpu_model
from tilecast.inductor_hook import install
from tilecast.kernels.build.builder import ObjectBuilder

gpu_model.visible_gpu_names = lambda: ["NVIDIA H200"] * 8  # here is none
ObjectBuilder.start = lambda builder, spec: None
rank = int(os.environ["LOCAL_RANK"])
install(k=1)

def told(text, m, n, k):
    majors = text.split(":")[1]
    with lowering():
        a = node("a", [m, k], [k, 1] if majors[0] == "r" else [1, m], device=f"cuda:{{rank}}")
        b = node("b", [k, n], [n, 1] if majors[1] == "r" else [1, k], device=f"cuda:{{rank}}")
        (choice,) = choices_of(MMKernelInputs([a, b]), "mm")
    return choice.choice.configs[0].name, source_of(choice)

# One rank meets them in another order, which only numbers the names of the functions.
found = {{str(product): told(*product) for product in {PRODUCTS!r}[:: -1 if rank else 1]}}
print(json.dumps(found, sort_keys=True))
"""


def _told(rank: int, cache: Path) -> dict[str, list[str]]:
    """The config and the source of each product in a process that knows nothing of others."""
    process = subprocess.run(
        [sys.executable, "-c", RANK],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "LOCAL_RANK": str(rank),
            "PYTHONHASHSEED": str(rank + 1),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / str(rank)),
            "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "TILECAST",
        },
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def _unnumbered(source: str) -> str:
    return re.sub(r"tilecast_matmul_\d+", "tilecast_matmul", source)


def test_every_rank_takes_the_same(tmp_path: Path) -> None:
    here, there = (_told(rank, tmp_path) for rank in range(2))
    assert len(here) == len(PRODUCTS)
    for product, (config, source) in here.items():
        assert there[product][0] == config
        assert _unnumbered(there[product][1]) == _unnumbered(source)
        assert repr(config) in source
    for text, *extents in PRODUCTS:
        problem = GemmProblem(*extents, operands=GemmOperands.parse(text))
        (best,) = shortlist(Settings(k=1), problem, hardware("H200"))
        assert here[str((text, *extents))][0] == best.config.name
