"""The eager functions on the CPU: values, reasons for torch, and what PyTorch has to see.

There torch multiplies; with the fixture `gpu` tensors pass for a GPU's, and kernels are functions.
"""

# _neg_view is not exported, and makes what PyTorch makes of conjugates.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.autograd.forward_ad import dual_level
from torch.func import vmap
from torch.overrides import BaseTorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import addmm, bmm, installed, mm
from tilecast.inductor_hook.dispatch import plan
from tilecast.inductor_hook.eager import decide_again
from tilecast.inductor_hook.select import selection
from tilecast.kernels.candidates import candidates
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime.artifact import load_shipped
from tilecast.models.runtime.learned import LearnedHeuristic
from tilecast.models.runtime.manifest import refuse
from tilecast.models.runtime.objectives import OBJECTIVES

pytestmark = pytest.mark.usefixtures("hook")

OPS: dict[str, tuple[Callable, Callable, list[tuple[int, ...]]]] = {
    "mm": (mm, torch.mm, [(8, 16), (16, 4)]),
    "bmm": (bmm, torch.bmm, [(3, 8, 16), (3, 16, 4)]),
    "addmm": (addmm, torch.addmm, [(4,), (8, 16), (16, 4)]),
}


@pytest.fixture(params=OPS)
def op(request: pytest.FixtureRequest) -> tuple[Callable, Callable, list[tuple[int, ...]]]:
    """One of ours, its like in torch, and shapes of operands."""
    return OPS[request.param]


def _tensors(shapes: list[tuple[int, ...]], **options: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    dtype = options.pop("dtype", torch.float32)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_(**options) for s in shapes]


def _constants(shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32) -> list:
    return _tensors(shapes, dtype=dtype, requires_grad=False)


def _linear(name: str = "mm", k: int = 128) -> list[torch.Tensor]:
    """Operands that a kernel takes: bf16, with B stored as ``torch.nn.Linear`` stores weights."""
    batch = (3,) if name == "bmm" else ()
    bias = [(64,)] if name == "addmm" else []
    *others, b = _constants([*bias, (*batch, 16, k), (*batch, 64, k)], torch.bfloat16)
    return [*others, b.mT]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.double])
def test_values(op: tuple, dtype: torch.dtype) -> None:
    ours, stock, shapes = op
    operands = _constants(shapes, dtype)
    assert torch.equal(ours(*operands), stock(*operands))


def test_out(op: tuple) -> None:
    ours, stock, shapes = op
    operands = _constants(shapes)
    expected = stock(*operands)
    out = torch.empty_like(expected)
    assert ours(*operands, out=out) is out
    assert torch.equal(out, expected)
    empty = torch.empty(0)
    ours(*operands, out=empty)
    assert torch.equal(empty, expected)


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 1.0), (1.0, 0.5), (0.5, 3.0), (1.0, 0.0)])
@pytest.mark.parametrize("bias", [(4,), (8, 4), (1, 4), (8, 1), ()], ids=str)
def test_addmm_with_factors(alpha: float, beta: float, bias: tuple[int, ...]) -> None:
    operands = _constants([bias, (8, 16), (16, 4)])
    expected = torch.addmm(*operands, alpha=alpha, beta=beta)
    torch.testing.assert_close(addmm(*operands, alpha=alpha, beta=beta), expected)
    out = torch.empty(8, 4)
    addmm(*operands, alpha=alpha, beta=beta, out=out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("given", [False, True], ids=["new", "out"])
def test_a_kernel_multiplies_on_a_gpu(op: tuple, given: bool, gpu: list[KernelSpec]) -> None:
    ours, stock, _ = op
    operands = _linear(ours.__name__)
    expected = stock(*operands)
    if given:
        out = torch.empty_like(expected)
        assert ours(*operands, out=out) is out
    else:
        out = ours(*operands)
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=2**-7)
    (spec,) = gpu
    assert (spec.operands.layout, spec.batched) == ("rcr", ours is bmm)
    assert spec.operands.fused == (ours is addmm)


@pytest.mark.parametrize("rows", [slice(0), slice(None)])
def test_a_product_of_nothing_goes_to_torch_without_a_word(
    op: tuple, gpu: list[KernelSpec], rows: slice, caplog: pytest.LogCaptureFixture
) -> None:
    ours, stock, _ = op
    *bias, a, b = _linear(ours.__name__)
    operands = (*bias, a[..., rows, :0], b[..., :0, :])
    assert torch.equal(ours(*operands), stock(*operands))
    assert (gpu, caplog.records) == ([], [])


@pytest.fixture
def leaving(gpu: list[KernelSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped model, but it expects cuBLAS to win everywhere."""
    shipped = load_shipped(hardware("H200"))
    assert shipped.deferral
    margins = dict.fromkeys(OBJECTIVES, 9.0)
    model = LearnedHeuristic(replace(shipped, deferral=replace(shipped.deferral, margins=margins)))
    monkeypatch.setattr(selection, "load_heuristic", lambda *arguments: model)


@pytest.mark.usefixtures("leaving")
def test_what_the_library_wins_goes_to_torch(op: tuple, gpu: list[KernelSpec]) -> None:
    ours, stock, _ = op
    operands = _linear(ours.__name__)
    expected = stock(*operands)
    out = torch.empty_like(expected)
    assert torch.equal(ours(*operands), expected)
    assert ours(*operands, out=out) is out
    assert torch.equal(out, expected)
    assert gpu == []


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize("columns", [60, 61, 62])
def test_rows_that_tma_does_not_store(op: tuple, gpu: list[KernelSpec], columns: int) -> None:
    """But for ``out``: these are torch's."""
    ours, stock, _ = op
    *bias, a, b = _linear(ours.__name__)
    operands = *(one[:columns] for one in bias), a, b[..., :columns]
    result, expected = ours(*operands), stock(*operands)
    torch.testing.assert_close(result, expected, rtol=2**-7, atol=2**-7)
    assert result.is_contiguous()
    if bias and columns % 2:  # a row of an odd number, which no kernel of ours adds
        assert gpu == []
        return
    (spec,) = gpu
    assert (spec.operands.fused, spec.any_rows) == (ours is addmm, columns % 8 > 0)
    assert torch.equal(ours(*operands, out=torch.empty_like(expected)), expected)
    assert len(gpu) == 1


BIASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "(n,)": (lambda x: x[0], True),
    "(1, n)": (lambda x: x[:1], True),
    "expanded": (lambda x: x[0].expand(16, 64), True),
    "4 bytes in": (lambda x: x.flatten()[2:66], True),
    "2 bytes in": (lambda x: x.flatten()[1:65], False),
    "every second element": (lambda x: x.flatten()[:128:2], False),
    "(m, 1)": (lambda x: x[:, :1], False),
    "a number": (lambda x: x[0, 0], False),
    "a number as a row": (lambda x: x[0, :1], False),
}
"""Biases as parts of a matrix, and whether the kernel adds them."""


@pytest.mark.parametrize("kind", BIASES)
def test_a_kernel_adds_a_bias_of_one_row(gpu: list[KernelSpec], kind: str) -> None:
    part, fused = BIASES[kind]
    (matrix,) = _constants([(16, 64)], torch.bfloat16)
    bias, (a, b) = part(matrix), _linear()
    expected = torch.addmm(bias, a, b)
    out = torch.empty_like(expected)
    assert addmm(bias, a, b, out=out) is out
    for result in (addmm(bias, a, b), out):
        torch.testing.assert_close(result, expected, rtol=2**-6, atol=2**-6)
    assert [spec.operands.text for spec in gpu] == ["bf16:rcr:bias"] * 2 * fused


@pytest.mark.parametrize(
    ("alpha", "beta", "steps"),
    [(1, 1, "c"), (0.5, 1, "alpha+c"), (1, -2, "beta-c"), (0.5, 3, "alpha+beta-c")],
)
def test_a_kernel_adds_a_matrix_where_the_model_knows_such(
    gpu: list[KernelSpec], alpha: float, beta: float, steps: str
) -> None:
    a, b = _linear()
    (c,) = _constants([(16, 64)], torch.bfloat16)
    expected = torch.addmm(c, a, b, alpha=alpha, beta=beta)
    out = torch.empty_like(expected)
    addmm(c, a, b, alpha=alpha, beta=beta, out=out)
    for result in (addmm(c, a, b, alpha=alpha, beta=beta), out):
        torch.testing.assert_close(result, expected, rtol=2**-6, atol=2**-6)
    assert [spec.operands.text for spec in gpu] == [f"bf16:rcr:{steps}"] * 2
    assert counters["tilecast"] == {}


ELSEWHERE: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]] = {
    "a matrix stored otherwise": lambda c: (c.T.contiguous().T, None),
    "a result stored otherwise": lambda c: (c, c.new_empty(64, 16).T),
    "a matrix that is overwritten": lambda c: (c, c),
    "a row of the result": lambda c: (c[0], c),
}
"""What is added, and ``out``, where no kernel adds it."""


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_what_no_kernel_adds_is_left_to_torch(gpu: list[KernelSpec], kind: str) -> None:
    a, b = _linear()
    (c,) = _constants([(16, 64)], torch.bfloat16)
    added, out = ELSEWHERE[kind](c)
    expected = torch.addmm(added.clone(), a, b)
    found = addmm(added, a, b, out=out)
    torch.testing.assert_close(found[1:], expected[1:], rtol=2**-6, atol=2**-6)
    assert gpu == []


def test_a_product_is_allocated_and_launched_where_its_operands_are(
    gpu: list[KernelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    current, seen, empty = [1], [], plan._empty

    @contextmanager
    def device(index: int) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    def allocated(*asked: Any) -> torch.Tensor:
        seen.append(current[-1])
        return empty(*asked)

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(plan, "_empty", allocated)
    a, b = _linear()
    torch.testing.assert_close(mm(a, b), torch.mm(a, b), rtol=2**-6, atol=2**-6)
    assert (seen, current, len(gpu)) == ([0], [1], 1)


def test_factors_that_choose_no_kernel_cost_no_look(gpu: list[KernelSpec]) -> None:
    bias, a, b = _linear("addmm")
    (c,) = _constants([(16, 64)], torch.bfloat16)
    misses = plan._plan.cache_info().misses
    for step in range(50):
        alpha, beta = 0.5 + step, 1.5 + step
        for one in (bias, c):
            expected = torch.addmm(one, a, b, alpha=alpha, beta=beta)
            found = addmm(one, a, b, alpha=alpha, beta=beta)
            torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-4)
    for _ in range(3):
        addmm(bias, a, b)
    texts = [spec.operands.text for spec in gpu]
    assert texts == ["bf16:rcr:alpha+beta-c"] * 50 + ["bf16:rcr:bias"] * 3
    assert plan._plan.cache_info().misses == misses + 3


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool], ids=str)
def test_types_without_a_kernel_are_torchs(gpu: list[KernelSpec], dtype: torch.dtype) -> None:
    operands = [one.to(dtype) for one in _linear("addmm")]
    for multiply in (lambda add: add(*operands), lambda add: add(*operands, alpha=2)):
        assert _outcome(multiply, addmm) == _outcome(multiply, torch.addmm)
    assert gpu == []


def _outcome(call: Callable[..., torch.Tensor], add: Callable) -> Any:
    """The numbers of a product, or why there is none."""
    try:
        return call(add).tolist()
    except (RuntimeError, ValueError) as error:
        return str(error)


def test_what_a_view_only_stands_for_is_torchs(gpu: list[KernelSpec]) -> None:
    a, b = _linear()
    for operands in (
        (torch._neg_view(a), b),
        (a, torch._neg_view(b)),
    ):
        assert torch.equal(mm(*operands), torch.mm(*operands))
    assert gpu == []


def test_a_matrix_is_left_to_torch_where_the_model_knows_none(
    gpu: list[KernelSpec], knowing_no_matrix: None
) -> None:
    a, b = _linear()
    (c,) = _constants([(16, 64)], torch.bfloat16)
    assert torch.equal(addmm(c, a, b), torch.addmm(c, a, b))
    assert gpu == []


@pytest.mark.parametrize(
    ("ours", "shapes"),
    [
        (mm, [(8, 16), (15, 4)]),
        (mm, [(8,), (8, 4)]),
        (mm, [(16, 128), (128,)]),
        (mm, [(3, 16, 128), (128, 64)]),
        (mm, [(3, 16, 128), (3, 128, 64)]),
        (bmm, [(16, 128), (128, 64)]),
        (bmm, [(3, 16, 128), (2, 128, 64)]),
        (bmm, [(2, 3, 16, 128), (2, 3, 128, 64)]),
        (addmm, [(64,), (3, 16, 128), (3, 128, 64)]),
        (addmm, [(63,), (16, 128), (128, 64)]),
        (addmm, [(1, 16, 64), (16, 128), (128, 64)]),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_what_torch_refuses_is_refused_as_torch_does(
    ours: Callable, shapes: list[tuple[int, ...]], where: str, request: pytest.FixtureRequest
) -> None:
    launched = request.getfixturevalue("gpu") if where == "gpu" else []
    stock = getattr(torch, ours.__name__)
    *others, b = _constants(shapes, torch.bfloat16)
    # Stored as a kernel would take it.
    operands = [*others, b if b.ndim == 1 else b.mT.contiguous().mT]
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        stock(*operands)
    with pytest.raises(type(theirs.value)) as mine:
        ours(*operands)
    assert str(mine.value) == str(theirs.value)
    assert launched == []


def test_operands_of_two_devices_are_left_to_torch(
    gpu: list[KernelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = _linear()
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: int(tensor is b))
    assert torch.equal(mm(a, b), torch.mm(a, b))
    assert gpu == []


class OfTorchsOwn(TwoTensor):
    """A pair of tensors that knows torch's operators and no others, as a sharded one does."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, *rest: Any) -> Any:
        if func.namespace != "aten":
            raise NotImplementedError(f"no strategy for {func}")
        return super().__torch_dispatch__(func, *rest)


def test_a_subclass_is_multiplied_as_torch_does() -> None:
    a, b = _constants([(8, 16), (16, 4)])
    product: Any = mm(OfTorchsOwn(a, 2 * a), OfTorchsOwn(b, b))
    assert torch.equal(product.b, torch.mm(2 * a, b))


def test_compiled_in_one_graph(op: tuple) -> None:
    ours, stock, shapes = op
    compiled = torch.compile(lambda *o: ours(*o) * 2, backend="aot_eager", fullgraph=True)
    operands = _tensors(shapes, requires_grad=True)
    product = compiled(*operands)
    torch.testing.assert_close(product, stock(*operands) * 2)
    found = torch.autograd.grad(product.sum(), operands)
    expected = torch.autograd.grad((stock(*operands) * 2).sum(), operands)
    torch.testing.assert_close(found, expected)


def test_a_graph_with_out_is_compiled() -> None:
    compiled = torch.compile(
        lambda a, b, out: mm(a, b, out=out) + 1, backend="aot_eager", fullgraph=True
    )
    a, b = _constants([(8, 16), (16, 4)])
    out = torch.empty(8, 4)
    torch.testing.assert_close(compiled(a, b, out), a @ b + 1)
    torch.testing.assert_close(out, a @ b)


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [r for r in caplog.records if r.name.startswith("tilecast")]
    assert all(record.levelno == logging.WARNING for record in records)
    return [record.getMessage() for record in records]


def test_each_reason_why_torch_multiplies_is_said_once(
    gpu: list[KernelSpec], caplog: pytest.LogCaptureFixture
) -> None:
    for k in (33, 35, 37):
        mm(*_linear(k=k))
    for dtype in (torch.float32, torch.float64):
        mm(*(operand.to(dtype) for operand in _linear()))
    (start,) = _constants([(16 * 128 + 1,)], torch.bfloat16)
    for _ in range(3):
        mm(start[1:].view(16, 128), _linear()[1])
    assert gpu == []
    stride, single, double, address = _said(caplog)
    assert "A has strides (33, 1)" in stride
    assert "A is fp32" in single
    assert "float64" in double
    assert "starts at no multiple of 16 bytes" in address


def test_one_matrix_serves_a_batch_but_is_no_result_of_one(
    gpu: list[KernelSpec], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = _linear("bmm")
    bmm(a[:1].expand(3, 16, 128), b)
    assert [spec.batched for spec in gpu] == [True]
    (shared,) = _constants([(1, 16, 64)], torch.bfloat16)
    bmm(a, b, out=shared.expand(3, 16, 64))
    assert len(gpu) == 1
    (said,) = _said(caplog)
    assert "out has strides (0, 64, 1)" in said


def test_what_could_not_be_chosen_is_chosen_again_where_the_user_says(
    gpu: list[KernelSpec], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*arguments: Any) -> Any:
        tries.append(arguments)
        refuse(Path("/away"), "its disk is away")

    tries: list[Any] = []
    a, b = _linear()
    with monkeypatch.context() as patch:
        patch.setattr(selection, "load_heuristic", refused)
        assert torch.equal(mm(a, b), torch.mm(a, b))
    for _ in range(100):
        mm(a, b)
    assert (len(tries), gpu) == (1, []), "each call pays for it"
    (said,) = _said(caplog)
    assert "choosing a kernel failed (NotNow: model /away is refused: its disk is away" in said
    decide_again()
    mm(a, b)
    assert [spec.operands.text for spec in gpu] == ["bf16:rcr"]


@pytest.mark.parametrize(("name", "count"), [("H200", 1), ("B200", 0)])
def test_a_file_of_choices_runs_no_kernel_that_nobody_has_run_on_such_a_gpu(
    gpu: list[KernelSpec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, count: int
) -> None:
    card, path = hardware(name), tmp_path / "choices.csv"
    monkeypatch.setattr(selection, "hardware_of", lambda device, settings: card)
    config, *_ = candidates(GemmProblem(16, 64, 128), card)
    path.write_text(f"m,n,k,config\n16,64,128,{config}\n")
    operands = _linear()
    with installed(choices=path):
        assert torch.equal(mm(*operands), torch.mm(*operands))
    assert [spec.config for spec in gpu] == [config] * count


@pytest.mark.parametrize("named", ["installed", "environment"])
def test_the_model_is_the_one_that_is_installed_or_named(
    gpu: list[KernelSpec],
    model_of: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    named: str,
) -> None:
    leaving, operands = str(model_of("bf16:rcr", leaves=True)), _linear()
    if named == "environment":
        monkeypatch.setenv("TILECAST_MODEL", leaving)
        decide_again()
        mm(*operands)
    else:
        with installed(model=leaving, k=3):
            mm(*operands)
    assert gpu == []
    with installed():
        mm(*operands)
    assert len(gpu) == 1


def test_the_named_model_stays_where_the_folder_is_another(
    gpu: list[KernelSpec],
    model_of: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    leaving = model_of("bf16:rcr", leaves=True)
    monkeypatch.chdir(leaving.parent)
    monkeypatch.setenv("TILECAST_MODEL", leaving.name)
    for k in (128, 256):  # a new problem each
        mm(*_linear(k=k))
        monkeypatch.chdir("/")
    assert gpu == []


def test_what_is_sparse_is_torchs(caplog: pytest.LogCaptureFixture) -> None:
    dense = torch.eye(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that PyTorch's support of it is in beta
        sparse = dense.to_sparse_csr()
    for operands in ([sparse] * 3, [dense, sparse, dense], [dense, dense, sparse]):
        found, expected = addmm(*operands), torch.addmm(*operands)
        assert torch.equal(found.to_dense(), expected.to_dense())
    assert torch.equal(mm(sparse, dense), torch.mm(sparse, dense))
    assert _said(caplog) == []


@contextmanager
def _cuda_autocast() -> Iterator[None]:
    torch.set_autocast_enabled("cuda", True)
    yield
    torch.set_autocast_enabled("cuda", False)


SEEN: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": _cuda_autocast,
    "a mode": BaseTorchFunctionMode,
    "tangents": dual_level,
    "gradients": torch.enable_grad,
}
"""Where PyTorch has to see what is called."""


@pytest.mark.parametrize("where", SEEN)
def test_torch_multiplies_where_pytorch_has_to_see_it(
    op: tuple, where: str, gpu: list[KernelSpec]
) -> None:
    ours, stock, _ = op
    operands = _linear(ours.__name__)
    operands[0].requires_grad_(where == "gradients")
    with SEEN[where]():
        found, expected = ours(*operands), stock(*operands)
    assert torch.equal(found, expected)
    assert found.requires_grad == expected.requires_grad
    assert gpu == []


def test_a_product_is_vmapped_and_traced_as_torchs() -> None:
    x, y = _constants([(3, 8, 16), (16, 4)])
    expected = vmap(torch.mm, (0, None))(x, y)
    torch.testing.assert_close(vmap(mm, (0, None))(x, y), expected)
    traced: Any = torch.jit.trace(mm, (x[0], y))
    torch.testing.assert_close(traced(x[1], y), torch.mm(x[1], y))


def test_a_result_that_is_written_into_counts_as_changed(gpu: list[KernelSpec]) -> None:
    a, b, out = (torch.randn(shape).bfloat16() for shape in ((32, 64), (48, 64), (32, 48)))
    weight = torch.ones(32, 48, dtype=torch.bfloat16, requires_grad=True)
    read = (weight * out).sum()
    mm(a, b.T, out=out)
    assert gpu != []
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        read.backward()
    with torch.inference_mode():
        mm(a, b.T, out=torch.empty(32, 48, dtype=torch.bfloat16))
