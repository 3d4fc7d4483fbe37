"""Compiled sums of a product and a matrix or a row, which a kernel adds before it rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from on_gpu.layers import BIASED, FACTORS, added
from on_gpu.tensors import TOLERANCE, K, M, N, bf16, error


@pytest.mark.parametrize("steps", FACTORS)
@pytest.mark.parametrize("extents", [(M, N, K), (2, 264, 200), (37, 1112, 1032)], ids=str)
@pytest.mark.parametrize("k", [1, 3])
def test_addmm_with_a_matrix(
    ours: Callable[..., str], matrix_model: Path, steps: str, extents: tuple[int, int, int], k: int
) -> None:
    m, n, depth = extents
    operands = bf16(m, n) * 10, bf16(m, depth), bf16(n, depth)
    code = ours(added(steps), *operands, model=matrix_model, k=k)
    assert f"'bf16:rcr:{steps}'" in code


def test_addmm_with_a_matrix_of_wider_rows(ours: Callable[..., str], matrix_model: Path) -> None:
    def function(c: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.addmm(c[3:, 8 : N + 8], x, weight.T)

    code = ours(function, bf16(M + 3, N + 16), bf16(M, K), bf16(N, K), model=matrix_model)
    assert "'bf16:rcr:c'" in code


BATCHED_SUMS: dict[str, tuple[tuple[int, ...], str]] = {
    "a matrix each": ((4, M, 264), "c"),
    "one matrix for all": ((1, M, 264), "c"),
    "a row": ((264,), "bias"),
}
"""Shapes of what is added to four products, and the step of our kernel."""


@pytest.mark.parametrize("kind", BATCHED_SUMS)
@pytest.mark.parametrize("k", [1, 3])
def test_baddbmm(ours: Callable[..., str], matrix_model: Path, kind: str, k: int) -> None:
    """Inductor may write one matrix for all as a matrix each."""
    shape, step = BATCHED_SUMS[kind]
    operands = bf16(*shape) * 10, bf16(4, M, K), bf16(4, 264, K)
    options = {"model": matrix_model, "k": k}
    code = ours(lambda c, x, y: torch.baddbmm(c, x, y.mT), *operands, **options)
    assert "batched=True" in code
    assert f"'bf16:rcr:{step}'" in code


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", BIASED)
def test_addmm_with_a_row(ours: Callable[..., str], kind: str, dtype: torch.dtype) -> None:
    function, shape = BIASED[kind]
    code = ours(function, *(bf16(*s).to(dtype) for s in (shape, (M, K), (N, K))))
    assert ("'bf16:rcr:bias'" if dtype == torch.bfloat16 else "'fp16:rcr:bias'") in code
    assert "row(bias)" in code


@pytest.mark.parametrize("extents", [(2, 264, 200), (37, 1112, 1032), (300, 520, 8)], ids=str)
def test_addmm_with_a_row_on_ragged_problems(
    ours: Callable[..., str], extents: tuple[int, int, int]
) -> None:
    """Many times larger than the product, so that a bias in the wrong place is seen at once."""
    m, n, k = extents
    ours(BIASED["of nn.Linear"][0], bf16(n) * 100, bf16(m, k), bf16(n, k))


@pytest.mark.parametrize("a", ["row", "col"])
def test_addmm_with_a_row_in_another_layout(ours: Callable[..., str], a: str) -> None:
    left = bf16(M, K) if a == "row" else bf16(K, M).T
    assert f"'bf16:{a[0]}rr:bias'" in ours(torch.addmm, bf16(N), left, bf16(K, N))


def test_a_beta_of_0_ignores_the_bias(compiled: Callable) -> None:
    operands = bf16(N).fill_(torch.nan), bf16(M, K), bf16(N, K)
    result, _ = compiled(lambda bias, x, w: torch.addmm(bias, x, w.T, beta=0), *operands)
    assert error(result, operands[1].float() @ operands[2].float().T) < TOLERANCE
