"""Compiled products that a split through memory does: in graphs, in C++, with a bias."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.utils import fresh_cache, run_and_get_code

from tilecast.inductor_hook import installed

M, N, K = 256, 512, 16384
KERNEL = "memory_64x128x64_c2x1x8_s8_coop_o1_rm8"
SETTINGS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TILECAST"}
TOLERANCE = 1e-2
"""Rounding to bf16 costs 2^-8 = 0.4% at most, twice with a bias; a wrong element far more."""


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A file that names the kernel, alone, for the product with and without a bias."""
    rows = [f"{M},{N},{K},{operands},{KERNEL}" for operands in ("bf16:rcr", "bf16:rcr:bias")]
    path = tmp_path / "choices.csv"
    path.write_text("\n".join(["m,n,k,operands,config", *rows]) + "\n")
    return path


@pytest.fixture(autouse=True)
def afresh(gpu_with_a_model: None) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    counters.clear()


def _bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def _error(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor):
    right = F.linear(x.float(), weight.float(), *(one.float() for one in bias))
    return (torch.linalg.norm(found.float() - right) / torch.linalg.norm(right)).item()


def _failures() -> list[str]:
    return [event for event in counters["tilecast"] if event.startswith("failed")]


@pytest.mark.parametrize("bias", [False, True], ids=["bare", "bias"])
@pytest.mark.parametrize("cpp", [False, True], ids=["Python", "C++"])
def test_generated_code_calls_it(
    request: pytest.FixtureRequest, named: Path, cpp: bool, bias: bool
) -> None:
    if cpp:
        request.getfixturevalue("cpp_wrapper")
    operands = _bf16(M, K), _bf16(N, K), *([_bf16(N)] if bias else [])
    with installed(1, choices=str(named)), fresh_cache(), config.patch(SETTINGS):
        function = torch.compile(F.linear, fullgraph=True)
        found, codes = run_and_get_code(function, *operands)
    assert KERNEL in codes[-1]
    assert _error(found, *operands) <= TOLERANCE
    assert _failures() == []


def test_a_graph_replays_it_on_new_inputs(named: Path) -> None:
    weight, bias = _bf16(N, K), _bf16(N)
    with installed(1, choices=str(named)), fresh_cache(), config.patch(SETTINGS):
        function = torch.compile(F.linear, mode="max-autotune", fullgraph=True)
        for _ in range(5):
            x = _bf16(M, K)
            torch.compiler.cudagraph_mark_step_begin()
            found = function(x, weight, bias).clone()
            assert _error(found, x, weight, bias) <= TOLERANCE
    assert counters["inductor"]["cudagraph_skips"] == 0
    assert _failures() == []
