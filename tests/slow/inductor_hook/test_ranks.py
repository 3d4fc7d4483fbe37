"""Ranks of one job take the same kernels, though each decides in a process of its own."""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import pairwise
from pathlib import Path

from hook_graph import choices_of, lowering, node, source_of
from processes import printed, started
from torch._inductor.kernel_inputs import MMKernelInputs

from tilecast.data_collection.gpu import gpu_model
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.build.builder import ObjectBuilder

CHECKPOINTED = Path(__file__).with_name("checkpointed_rank.py")
PATH = {"PYTHONPATH": os.pathsep.join(sys.path)}
PRODUCTS = (
    *(("bf16:rcr", 16, 6144, 4096), ("bf16:rcr", 192, 264, 512)),
    *(("bf16:rrr", 512, 4096, 4096), ("bf16:crr", 1024, 512, 192)),
)
"""Of training steps: forward, gradients of the inputs, gradients of the weights."""


def _taken(rank: int) -> dict[str, tuple[str, str]]:
    """The config and the source of each product.

    One rank meets them in another order, which only numbers the names of the functions.
    """
    install(k=1)
    found = {}
    for text, m, n, k in PRODUCTS[:: -1 if rank else 1]:
        majors = text.split(":")[1]
        with lowering():
            a = node("a", [m, k], [k, 1] if majors[0] == "r" else [1, m], device=f"cuda:{rank}")
            b = node("b", [k, n], [n, 1] if majors[1] == "r" else [1, k], device=f"cuda:{rank}")
            (choice,) = choices_of(MMKernelInputs([a, b]), "mm")
        source = re.sub(r"tilecast_matmul_\d+", "tilecast_matmul", source_of(choice))
        found[f"{text} {m} {n} {k}"] = choice.choice.configs[0].name, source
    return found


def test_every_rank_takes_the_same(hook: object, tmp_path: Path) -> None:
    """What k = 1 takes depends on settings, problem and GPU model alone."""
    other = started(
        __file__,
        **PATH,
        LOCAL_RANK="1",
        PYTHONHASHSEED="2",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
        TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS="TILECAST",
    )
    here = _taken(0)
    ((there,),) = printed(other)
    assert {name: tuple(told) for name, told in json.loads(there).items()} == here
    for (text, *extents), (config, source) in zip(PRODUCTS, here.values(), strict=True):
        problem = GemmProblem(*extents, operands=GemmOperands.parse(text))
        (best,) = shortlist(Settings(k=1), problem, hardware("H200"))
        assert config == best.config.name and repr(config) in source


def test_no_call_of_two_ranks_changes_kernel_before_the_boundary(tmp_path: Path) -> None:
    """Kernels come to be compiled between a forward and its recomputation on one rank."""
    names = PATH | {"TILECAST_CACHE": str(tmp_path / "objects")}
    ranks = [started(CHECKPOINTED, rank, tmp_path / "store", **names) for rank in range(2)]
    reports = [json.loads(line) for (line,) in printed(*ranks)]
    for rank in reports:
        before, behind = rank["phases"]
        assert before.keys() == behind.keys()
        # Three layers with their recomputation, gradients of three weights and of two inputs.
        assert len(before) == 8
        assert sorted(map(len, before.values())) == [3] * 5 + [6] * 3
        changes = sum(x != y for who in before.values() for x, y in pairwise(who))
        assert changes == 0
        # On one rank gradients are met first behind the moment at which kernels are there.
        recomputed = [who for who in before.values() if len(who) == 6]
        assert recomputed == [["torch"] * 6] * 3
        assert [set(who) for who in behind.values()] == [{"tilecast"}] * 8
    assert reports[0]["weights"] == reports[1]["weights"]


if __name__ == "__main__":
    gpu_model.visible_gpu_names = lambda: ["NVIDIA H200"] * 8  # here is none
    ObjectBuilder.start = lambda builder, spec: None  # type: ignore[method-assign]
    print(json.dumps(_taken(1)))
