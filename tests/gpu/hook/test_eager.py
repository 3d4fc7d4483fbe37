"""``mm``, ``addmm`` and ``bmm`` of tilecast, called without a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from on_gpu.hook import best_config, forget_kernels, texts
from on_gpu.launches import captured, check_replays
from on_gpu.layers import single_row
from on_gpu.tensors import ONE_ROUNDING, TOLERANCE, Function, K, M, N, bf16, error

from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import addmm, bmm, mm
from tilecast.inductor_hook.run import static


def _results(operator: Function, *operands: torch.Tensor, **factors: Any) -> Iterator[torch.Tensor]:
    """What an operator returns, and what it writes over NaN."""
    a, b = operands[-2:]
    out = torch.full((a.shape[0], b.shape[1]), torch.nan, dtype=a.dtype, device="cuda")
    operator(*operands, out=out, **factors)
    yield from (operator(*operands, **factors), out)


EAGER: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "linear": lambda: (bf16(M, K), bf16(N, K).T),
    "one row": lambda: (bf16(1, K), bf16(N, K).T),
    "one row that steps by nothing": lambda: (single_row(bf16(K)), bf16(N, K).T),
    "ragged": lambda: (bf16(37, 1032), bf16(1112, 1032).T),
    "QKV": lambda: (bf16(M, 3 * K)[:, K : 2 * K], bf16(N, K).T),
    "every second row": lambda: (bf16(2 * M, K)[::2], bf16(3 * N, K)[::3].T),
    "row-major B": lambda: (bf16(M, K), bf16(K, N)),
    "column-major A": lambda: (bf16(K, M).T, bf16(N, K).T),
    "every second column": lambda: (bf16(M, 2 * K)[:, ::2], bf16(N, K).T),
    "misaligned": lambda: (bf16(M * K + 1)[1:].view(M, K), bf16(N, K).T),
    "misaligned columns": lambda: (bf16(M, K + 8)[:, 3 : 3 + K], bf16(N, K).T),
    "expanded": lambda: (bf16(1, K).expand(M, K), bf16(N, K).T),
    "odd": lambda: (bf16(M, 33), bf16(N, 33).T),
    "odd n": lambda: (bf16(M, K), bf16(N + 1, K).T),
    "empty": lambda: (bf16(0, K), bf16(N, K).T),
    "no k": lambda: (bf16(M, 0), bf16(N, 0).T),
    "float16": lambda: (bf16(M, K).half(), bf16(N, K).half().T),
}


@pytest.mark.parametrize("kind", EAGER)
def test_eager_mm(kind: str) -> None:
    a, b = EAGER[kind]()
    expected = a.float() @ b.float()
    for result in _results(mm, a, b):
        assert (result.shape, result.dtype) == (expected.shape, a.dtype)
        if expected.any():
            assert error(result, expected) < TOLERANCE
        else:
            assert torch.equal(result.float(), expected)


def test_eager_mm_runs_the_kernel_that_the_model_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*arguments: Any, **options: Any) -> torch.Tensor:
        raise AssertionError("torch multiplied")

    a, b = bf16(M, K), bf16(N, K).T
    expected = a.float() @ b.float()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "mm", unwanted)
        patch.setattr(torch, "matmul", unwanted)
        result = mm(a, b)
    assert error(result, expected) < TOLERANCE
    assert [spec.config for spec, _ in static._loaded] == [best_config(GemmProblem(M, N, K))]


@pytest.mark.parametrize("bias", [(N,), (M, N), (1, N), (M, 1), ()], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, 1), (1, -2), (0.5, 3), (1, 0)])
def test_eager_addmm(bias: tuple[int, ...], alpha: float, beta: float) -> None:
    operands = bf16(*bias), bf16(M, K), bf16(N, K).T
    expected = torch.addmm(*(t.float() for t in operands), alpha=alpha, beta=beta)
    for result in _results(addmm, *operands, alpha=alpha, beta=beta):
        assert error(result, expected) < TOLERANCE


EAGER_BIASES: dict[str, tuple[Callable[[], torch.Tensor], str | None]] = {
    "(n,)": (lambda: bf16(N), "bf16:rcr:bias"),
    "(1, n)": (lambda: bf16(1, N), "bf16:rcr:bias"),
    "expanded": (lambda: bf16(N).expand(M, N), "bf16:rcr:bias"),
    "4 bytes in": (lambda: bf16(N + 2)[2:], "bf16:rcr:bias"),
    "2 bytes in": (lambda: bf16(N + 1)[1:], None),
    "every second element": (lambda: bf16(2 * N)[::2], None),
    "(m, n)": (lambda: bf16(M, N), "bf16:rcr:c"),
}
"""Biases, and the operands of the kernel of ours that adds each."""


@pytest.mark.parametrize("kind", EAGER_BIASES)
def test_eager_addmm_fuses(kind: str) -> None:
    make, operands = EAGER_BIASES[kind]
    bias, a, b = make(), bf16(M, K), bf16(N, K).T
    expected = bias.float() + a.float() @ b.float()
    for result in _results(addmm, bias, a, b):
        assert error(result, expected) < (ONE_ROUNDING if operands else TOLERANCE)
    assert texts() == ({operands} if operands else set())


def test_eager_addmm_into_its_own_bias() -> None:
    bias, a, b = bf16(M, N), bf16(M, K), bf16(N, K).T
    expected = bias.float() + a.float() @ b.float()
    addmm(bias, a, b, out=bias)
    assert error(bias, expected) < TOLERANCE


@pytest.mark.parametrize("batch", [1, 5])
def test_eager_bmm(batch: int) -> None:
    a, b = bf16(batch, 77, K), bf16(batch, 264, K).mT
    expected = torch.bmm(a.float(), b.float())
    whole = torch.full((batch, 80, 272), 7.0, dtype=torch.bfloat16, device="cuda")
    out = whole[:, :77, :264]
    bmm(a, b, out=out)
    for result in (bmm(a, b), out):
        for i in range(batch):
            assert error(result[i], expected[i]) < TOLERANCE
    assert bool((whole[:, 77:] == 7.0).all())
    assert bool((whole[:, :, 264:] == 7.0).all())


def test_eager_bmm_of_a_batch_that_is_expanded() -> None:
    a, b = bf16(1, 77, K).expand(5, 77, K), bf16(5, 264, K).mT
    for left, right in ((a, b), (b.mT, a.mT), (a, a.mT)):
        assert error(bmm(left, right), torch.bmm(left.float(), right.float())) < TOLERANCE


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")
def test_eager_mm_on_another_gpu_than_the_current() -> None:
    a, b = bf16(M, K), bf16(N, K).T
    assert torch.cuda.current_device() == 0
    assert error(mm(a.to(1), b.to(1)).to(0), a.float() @ b.float()) < TOLERANCE
    with pytest.raises(RuntimeError, match="same device"):
        mm(a, b.to(1))


def test_eager_functions_in_a_compiled_graph(compiled: Callable) -> None:
    x, weight = bf16(M, K), bf16(N, K)
    result, code = compiled(lambda x, weight: mm(torch.relu(x), weight.T) + 1, x, weight)
    assert error(result, torch.relu(x.float()) @ weight.float().T + 1) < TOLERANCE
    assert "StaticMatmul.named" in code


def _launches() -> list[tuple[Callable[[], torch.Tensor], torch.Tensor]]:
    """Each operator on operands of its own, with the first one of them."""
    a, b, bias = bf16(M, K), bf16(N, K).T, bf16(N)
    batch_a, batch_b = bf16(3, M, K), bf16(3, 264, K).mT
    other = bf16(M, K)
    return [
        (lambda: mm(a, b), a),
        (lambda: addmm(bias, other, b), other),
        (lambda: bmm(batch_a, batch_b), batch_a),
    ]


def test_eager_launches_behind_what_is_queued_on_a_side_stream() -> None:
    for multiply, a in _launches():
        multiply()
        values, zeros = a.clone(), torch.zeros_like(a)
        expected = multiply()
        a.copy_(zeros)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            # 0.05 s at 2 GHz: a launch on any other stream would read the zeros.
            torch.cuda._sleep(100_000_000)
            a.copy_(values)
            result = multiply()
            torch.cuda.current_stream().synchronize()
        assert torch.equal(result, expected)


def test_eager_launches_are_captured() -> None:
    for multiply, a in _launches():
        multiply()
        check_replays(multiply, a)


def test_a_first_call_may_be_captured() -> None:
    """With a kernel that is compiled and not yet loaded, as after a restart: torch multiplies."""
    a, b = bf16(M, K), bf16(N, K).T
    mm(a, b)
    forget_kernels()
    graph, result = captured(lambda: mm(a, b))
    graph.replay()
    assert torch.equal(result, torch.mm(a, b))
    assert texts() == set()


def test_threads_do_not_disturb_each_other() -> None:
    def work(seed: int) -> float:
        generator = torch.Generator("cuda").manual_seed(seed)
        worst = 0.0
        with torch.cuda.stream(torch.cuda.Stream()):
            for m in (16, 64, 192, 500, 1000) * 4:
                shapes = ((m + seed, K), (N, K))
                a, b = (
                    torch.randn(s, device="cuda", generator=generator).bfloat16() for s in shapes
                )
                worst = max(worst, error(mm(a, b.T), a.float() @ b.float().T))
        return worst

    with ThreadPoolExecutor(2) as threads:
        assert max(threads.map(work, range(2))) < TOLERANCE
