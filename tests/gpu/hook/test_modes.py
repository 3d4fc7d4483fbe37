"""How graphs are run: in training, in CUDA graphs, and with the same bits in every batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from on_gpu.hook import check_cuda_graphs_of_torch, hooked, settings, texts
from on_gpu.tensors import TOLERANCE, K, M, N, bf16, error
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from tilecast.inductor_hook import eager, installed


@pytest.mark.parametrize(
    ("bias", "cpp"), [(False, False), (True, False), (True, True)], ids=["bare", "bias", "in C++"]
)
def test_a_training_step(request: pytest.FixtureRequest, bias: bool, cpp: bool) -> None:
    if cpp:
        request.getfixturevalue("cpp_wrapper")
    layer = torch.nn.Linear(K, N, bias=bias, device="cuda", dtype=torch.bfloat16)
    x, gradient = bf16(M, K).requires_grad_(), bf16(M, N)
    # Settings of its own: a backward pass compiles in another thread, which sees no patch of ours.
    options = settings() | {"cpp_wrapper": cpp}
    step: Any = torch.compile(lambda x: layer(x), fullgraph=True, options=options)
    with installed(k=1 if cpp else 3), fresh_cache():
        out = step(x)
        found = torch.autograd.grad(out, (x, *layer.parameters()), gradient)
    exact_x, exact_weight, exact_gradient = x.float(), layer.weight.float(), gradient.float()
    expected = exact_x @ exact_weight.T + (layer.bias.float() if bias else 0)
    gradients = exact_gradient @ exact_weight, exact_gradient.T @ exact_x, exact_gradient.sum(0)
    for mine, exact in zip((out, *found), (expected, *gradients[: len(found)]), strict=True):
        assert error(mine.detach(), exact.detach()) < TOLERANCE
    assert counters["tilecast"]["problems"] == 3, "one product forward and two back"
    assert ("bf16:rcr:bias" in texts()) == bias


def test_mode_max_autotune_with_cuda_graphs() -> None:
    with hooked():
        check_cuda_graphs_of_torch(M, bf16(N, K), bf16(N))
    assert counters["tilecast"]["problems"] == 1


HOWS: dict[str, dict[str, Any]] = {
    "eager": {},
    "without max-autotune": {"dynamic": False},
    "max-autotune": {"mode": "max-autotune", "dynamic": False},
    "one graph from the second m on": {"options": {"max_autotune_gemm": True}},
}
"""How `torch.compile` is called."""


@pytest.mark.parametrize("how", HOWS)
def test_a_row_has_the_same_bits_in_every_batch(how: str) -> None:
    """Forward, and the gradient of the input; few tiles and a long k, which cuBLAS splits."""
    weights = bf16(512, 8192) / 90, bf16(512), bf16(256, 512) / 22
    x, gradient = bf16(300, 8192), bf16(300, 256)

    def layers(x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x, *weights[:2])), weights[2])

    eager.enable(invariant=True)
    try:
        with installed(k=2, invariant=True), fresh_cache():
            function = torch.compile(layers, **HOWS[how]) if HOWS[how] else layers
            whole: list[torch.Tensor] = []
            for first, m in ((0, 300), (11, 64), (290, 7), (130, 1)):
                rows = x[first : first + m].clone().requires_grad_()
                torch.compiler.cudagraph_mark_step_begin()
                out = function(rows)
                (back,) = torch.autograd.grad(out, rows, gradient[first : first + m])
                found = [out.detach().clone(), back.clone()]
                whole = whole or found
                for one, every in zip(found, whole, strict=True):
                    assert torch.equal(one, every[first : first + m]), m
    finally:
        eager.disable()
    wide = [one.float() for one in weights]
    exact = F.linear(F.gelu(F.linear(x.float(), *wide[:2])), wide[2])
    assert error(whole[0], exact) < TOLERANCE
    assert counters["tilecast"]["said: not invariant"] == 0
