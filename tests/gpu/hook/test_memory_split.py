"""Compiled products that a split through memory does: in graphs, in C++, with a bias."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch.nn.functional as F
from on_gpu.hook import check_cuda_graphs_of_torch, hooked
from on_gpu.tensors import bf16

M, N, K = 256, 512, 16384
KERNEL = "memory_64x128x64_c2x1x8_s8_coop_o1_rm8"


@pytest.fixture
def named(tmp_path: Path) -> str:
    """A file that names the kernel, alone, for the product with and without a bias."""
    rows = [f"{M},{N},{K},{operands},{KERNEL}" for operands in ("bf16:rcr", "bf16:rcr:bias")]
    path = tmp_path / "choices.csv"
    path.write_text("\n".join(["m,n,k,operands,config", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize("bias", [False, True], ids=["bare", "bias"])
@pytest.mark.parametrize("cpp", [False, True], ids=["Python", "C++"])
def test_generated_code_calls_it(
    request: pytest.FixtureRequest, close: Callable[..., str], named: str, cpp: bool, bias: bool
) -> None:
    if cpp:
        request.getfixturevalue("cpp_wrapper")
    operands = bf16(M, K), bf16(N, K), *([bf16(N)] if bias else [])
    assert KERNEL in close(F.linear, *operands, k=1, choices=named)


def test_a_graph_replays_it_on_new_inputs(named: str) -> None:
    with hooked(1, choices=named):
        check_cuda_graphs_of_torch(M, bf16(N, K), bf16(N))
