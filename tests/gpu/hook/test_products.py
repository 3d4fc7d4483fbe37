"""Compiled products: which run our kernels, which do not, and all are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from on_gpu.layers import added, int_mm, linear, single_row, stacked
from on_gpu.tensors import TOLERANCE, Function, K, M, N, bf16, error, exact
from torch._dynamo.utils import counters


def _heads(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Queries and keys as attention splits them: batch strides smaller than row strides."""
    heads = [t.view(M, 8, 64).transpose(0, 1) for t in (q, k)]
    return torch.bmm(heads[0], heads[1].mT)


COVERED: dict[str, tuple[Function, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "linear": (linear, lambda: (bf16(M, K), bf16(N, K))),
    "one row": (linear, lambda: (bf16(1, K), bf16(N, K))),
    "37x1112x1032": (linear, lambda: (bf16(37, 1032), bf16(1112, 1032))),
    "300x520x8": (linear, lambda: (bf16(300, 8), bf16(520, 8))),
    "2500x264x200": (linear, lambda: (bf16(2500, 200), bf16(264, 200))),
    "float16": (linear, lambda: (bf16(M, K).half(), bf16(N, K).half())),
    "QKV": (lambda qkv, w: qkv[:, K : 2 * K] @ w.T, lambda: (bf16(M, 3 * K), bf16(N, K))),
    "offset": (
        lambda x, w: x[5:, 16 : 16 + K] @ w[8:].T,
        lambda: (bf16(M + 5, K + 40), bf16(N + 8, K)),
    ),
    "every second row": (lambda x, w: x[::2] @ w[::3].T, lambda: (bf16(2 * M, K), bf16(3 * N, K))),
    "one row that steps by nothing": (linear, lambda: (single_row(bf16(K)), bf16(N, K))),
    "inputs that are views": (linear, lambda: (bf16(M, 3 * K)[:, K : 2 * K], bf16(N + 1, K)[1:])),
    "both column-major": (torch.mm, lambda: (bf16(K, M).T, bf16(N, K).T)),
    "both row-major": (torch.mm, lambda: (bf16(M, K), bf16(K, N))),
    "bmm": (stacked, lambda: (bf16(4, M, K), bf16(4, 264, K))),
    "a batch of 1": (stacked, lambda: (bf16(1, M, K), bf16(1, 264, K))),
    "a batch of 37 rows": (stacked, lambda: (bf16(6, 37, K), bf16(6, 264, K))),
    "a batch of one row": (stacked, lambda: (bf16(3, 1, K), bf16(3, 264, K))),
    "heads": (_heads, lambda: (bf16(M, K), bf16(M, K))),
}
"""Products that a tilecast kernel does, and their operands."""


@pytest.mark.parametrize("kind", COVERED)
def test_a_kernel_multiplies(ours: Callable[..., str], kind: str) -> None:
    function, operands = COVERED[kind]
    ours(function, *operands())


def _whole(x: torch.Tensor) -> torch.Tensor:
    return x.float().round().to(torch.int8)


UNCOVERED: dict[str, tuple[Function, tuple[int, int], tuple[int, int]]] = {
    "misaligned": (lambda x, w: x[:, 3 : 3 + K] @ w.T, (M, K + 8), (N, K)),
    "odd k": (linear, (M, K + 1), (N, K + 1)),
    "empty": (linear, (0, K), (N, K)),
    # Which Inductor makes one operator of.
    "two products": (lambda x, w: x @ w.T + (x * 2) @ (w * 3).T, (M, K), (N, K)),
    "int8": (lambda x, w: int_mm(_whole(x), _whole(w).T).float(), (M, K + 8), (N, K + 8)),
}
"""Products that no kernel of ours does, and the shapes of their operands."""


@pytest.mark.parametrize("kind", UNCOVERED)
def test_what_is_not_covered_is_right_too(close: Callable[..., str], kind: str) -> None:
    function, a, b = UNCOVERED[kind]
    assert "StaticMatmul" not in close(function, bf16(*a), bf16(*b))


ODD: dict[str, tuple[Function, Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "mm": (linear, lambda n: (bf16(M, K), bf16(n, K))),
    "few rows": (linear, lambda n: (bf16(3, K), bf16(n, K))),
    "linear": (F.linear, lambda n: (bf16(M, K), bf16(n, K), bf16(n))),
    "bmm": (stacked, lambda n: (bf16(4, M, K), bf16(4, n, K))),
    "gelu": (lambda x, w: F.gelu(x @ w.T), lambda n: (bf16(M, K) / 32, bf16(n, K))),
}


@torch.no_grad()
@pytest.mark.parametrize("columns", [N + 1, N + 2, 50257])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", ODD)
def test_rows_that_tma_does_not_store(compiled: Callable, kind: str, k: int, columns: int) -> None:
    function, operands = ODD[kind]
    tensors = operands(columns)
    result, code = compiled(function, *tensors, k=k)
    expected = exact(function, *tensors)
    assert result.shape == expected.shape
    assert result.is_contiguous()
    assert error(result, expected) < TOLERANCE
    # A row that ends at 2 bytes is added by no kernel.
    assert ("any_rows=True" in code) == (kind != "linear" or columns % 2 == 0)


def test_no_rows_are_added_for_a_kernel_that_takes_any(
    close: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.fx_passes import pad_mm

    # Whatever Inductor measures, it finds longer operands faster.
    monkeypatch.setattr(pad_mm, "_skip_do_bench_times", True)
    operands = bf16(2043, K), bf16(N, K)
    for backends, is_padded in (("ATEN", True), ("TILECAST", False), ("ATEN,TILECAST", False)):
        code = close(linear, *operands, backends=backends, pads=True)
        assert (f"(2048, {N})" in code) is is_padded


RIGHT: dict[str, tuple[Function, Callable[[], tuple[torch.Tensor, ...]]]] = {
    # Inductor may copy it or not; TMA reads no stride of 0.
    "an expanded row": (lambda x, w: x[:1].expand(M, K) @ w.T, lambda: (bf16(M, K), bf16(N, K))),
    # Inductor may see it at run time only, and copies it then.
    "an input that is not aligned": (linear, lambda: (bf16(M * K + 1)[1:].view(M, K), bf16(N, K))),
    # Which the kernel before this one writes; Inductor may expand it in memory.
    "a row that the graph makes": (
        lambda bias, x, w: F.linear(x, w, torch.relu(bias) * 2),
        lambda: (bf16(N), bf16(M, K), bf16(N, K)),
    ),
    # Sums that no kernel does.
    "two factors": (added("alpha+beta-c"), lambda: (bf16(N), bf16(M, K), bf16(N, K))),
    "a row 2 bytes in": (
        lambda bias, x, w: F.linear(x, w, bias[1 : N + 1]),
        lambda: (bf16(N + 8), bf16(M, K), bf16(N, K)),
    ),
    "a column": (added("c"), lambda: (bf16(M, 1), bf16(M, K), bf16(N, K))),
    "a column each": (
        lambda bias, x, y: torch.baddbmm(bias, x, y.mT),
        lambda: (bf16(4, M, 1), bf16(4, M, K), bf16(4, 264, K)),
    ),
    "a residual that is an operand": (lambda x, w: x + x @ w.T, lambda: (bf16(K, K), bf16(K, K))),
    # One matrix for all, which Inductor may expand in memory.
    "a batch that is expanded": (
        lambda x, y: torch.bmm(x.expand(5, M, K), y.mT),
        lambda: (bf16(1, M, K), bf16(5, 264, K)),
    ),
}
"""Products that a tilecast kernel may do or not."""


@pytest.mark.parametrize("kind", RIGHT)
def test_whoever_multiplies_is_right(close: Callable[..., str], kind: str) -> None:
    function, operands = RIGHT[kind]
    close(function, *operands())


def test_products_between_other_operations(close: Callable[..., str]) -> None:
    operands = bf16(M, K), bf16(N, K), bf16(K, N)
    code = close(lambda x, u, d: torch.relu(x @ u.T) @ d.T, *operands, within=2 * TOLERANCE)
    assert counters["tilecast"]["problems"] == 2
    assert code.count("StaticMatmul.named") >= 1


@pytest.mark.parametrize("backwards", [False, True])
def test_a_kernel_that_reads_the_same_stays_beside(compiled: Callable, backwards: bool) -> None:
    """Inductor asks whether both become one, and PyTorch 2.11's CuteDSL templates do not say."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pair = x @ weight.T, torch.sigmoid(x) * 2
        return pair[::-1] if backwards else pair

    operands = bf16(M, K), bf16(N, K)
    found, code = compiled(function, *operands, k=1)
    for result, right in zip(found, function(*(one.float() for one in operands)), strict=True):
        assert error(result, right) < TOLERANCE
    assert code.count("StaticMatmul.named") == 1
