"""The eager operators on the CPU, where torch multiplies: values, shapes, gradients, transforms."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.func import grad, jvp, vmap

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook import addmm, bmm, mm
from tilecast.kernels.spec import KernelSpec

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


@pytest.mark.parametrize("where", ["operand", "out"])
def test_out_and_a_gradient_are_refused_in_one_line(op: tuple, where: str) -> None:
    ours, stock, shapes = op
    operands = _constants(shapes)
    out = torch.empty_like(stock(*operands))
    (operands[-1] if where == "operand" else out).requires_grad_()
    with pytest.raises(TilecastError, match="out= is given and an operand requires") as refusal:
        ours(*operands, out=out)
    assert "\n" not in str(refusal.value)
    with torch.no_grad():
        ours(*operands, out=out)
    assert torch.equal(out, stock(*operands))


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 1.0), (1.0, 0.5), (0.5, 3.0), (1.0, 0.0)])
@pytest.mark.parametrize("bias", [(4,), (8, 4), (1, 4), (8, 1), ()], ids=str)
def test_addmm_with_factors(alpha: float, beta: float, bias: tuple[int, ...]) -> None:
    operands = _constants([bias, (8, 16), (16, 4)])
    expected = torch.addmm(*operands, alpha=alpha, beta=beta)
    torch.testing.assert_close(addmm(*operands, alpha=alpha, beta=beta), expected)
    out = torch.empty(8, 4)
    addmm(*operands, alpha=alpha, beta=beta, out=out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    "operands",
    [
        ((8, 16), (15, 4)),
        ((8,), (8, 4)),
        ((3, 8, 16), (16, 4)),
        ((3, 8, 16), (3, 16, 4)),
    ],
    ids=str,
)
def test_what_torch_refuses_is_refused_as_torch_does(operands: tuple) -> None:
    tensors = _constants(list(operands))
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        torch.mm(*tensors)
    with pytest.raises(type(theirs.value)) as ours:
        mm(*tensors)
    assert str(ours.value) == str(theirs.value)


def test_schemas_fake_kernels_and_autograd_fit_together(op: tuple) -> None:
    ours, stock, shapes = op
    overload = getattr(torch.ops.tilecast, ours.__name__)
    torch.library.opcheck(overload.default, tuple(_tensors(shapes, requires_grad=True)))
    operands = _constants(shapes)
    out = torch.empty_like(stock(*operands))
    torch.library.opcheck(overload.out, tuple(operands), {"out": out})


def test_gradients(op: tuple) -> None:
    ours, _, shapes = op
    operands = _tensors(shapes, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(ours, operands)
    assert torch.autograd.gradgradcheck(ours, operands)


@pytest.mark.parametrize("bias", [(4,), (8, 4), (1, 4), (8, 1), ()], ids=str)
def test_gradients_of_addmm_with_factors(bias: tuple[int, ...]) -> None:
    operands = _tensors([bias, (8, 16), (16, 4)], dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *o: addmm(*o, alpha=2.0, beta=0.5), operands)


@pytest.mark.parametrize("position", [0, 1])
def test_a_gradient_for_one_operand_only(position: int) -> None:
    ours, theirs = ([t.clone() for t in _constants([(8, 16), (16, 4)])] for _ in range(2))
    for operands, multiply in ((ours, mm), (theirs, torch.mm)):
        operands[position].requires_grad_()
        multiply(*operands).square().sum().backward()
    torch.testing.assert_close(ours[position].grad, theirs[position].grad)
    assert ours[1 - position].grad is None


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


def test_a_dynamic_extent_is_one_graph() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(mm, backend="aot_eager", fullgraph=True, dynamic=True)
    (b,) = _constants([(16, 4)])
    for m in (3, 8, 20):
        (a,) = _constants([(m, 16)])
        torch.testing.assert_close(compiled(a, b), a @ b)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("fake", ["meta", "fake"])
def test_shapes_without_values(op: tuple, fake: str) -> None:
    ours, stock, shapes = op
    if fake == "meta":
        product = ours(*(torch.empty(s, device="meta") for s in shapes))
    else:
        with FakeTensorMode():
            product = ours(*(torch.empty(s, device="cuda") for s in shapes))
            assert product.device.type == "cuda"
    expected = stock(*_constants(shapes))
    assert (product.shape, product.dtype) == (expected.shape, expected.dtype)
    assert product.stride() == expected.stride()


@pytest.mark.parametrize(
    ("ours", "shapes"),
    [
        (mm, [(8, 16), (15, 4)]),
        (mm, [(3, 8, 16), (3, 16, 4)]),
        (bmm, [(3, 8, 16), (2, 16, 4)]),
        (bmm, [(8, 16), (16, 4)]),
        (addmm, [(5,), (8, 16), (16, 4)]),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_shapes_that_do_not_fit_are_refused_without_values_too(
    ours: Callable, shapes: list[tuple[int, ...]]
) -> None:
    with pytest.raises(RuntimeError):
        ours(*_constants(shapes))
    with pytest.raises(RuntimeError):
        ours(*(torch.empty(s, device="meta") for s in shapes))


def test_that_torch_multiplies_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for m in range(40, 44):
        mm(*_constants([(m, 16), (16, 4)]))
        addmm(*_constants([(4,), (m, 16), (16, 4)]))
    (record,) = [r for r in caplog.records if r.name.startswith("tilecast")]
    assert record.levelno == logging.WARNING
    assert "a multiplication goes to torch, as others like it: its operands" in record.getMessage()


def _weight_gradient(multiply: Callable, y: torch.Tensor) -> Callable:
    return grad(lambda a: multiply(a, y).square().sum())


TRANSFORMS: dict[str, Callable[[Callable, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "vmap": lambda multiply, x, y: vmap(multiply, (0, None))(x, y),
    "vmap of B": lambda multiply, x, y: vmap(multiply, (None, 0))(x[0], torch.stack([y, -y])),
    "grad": lambda multiply, x, y: _weight_gradient(multiply, y)(x[0]),
    "vmap of grad": lambda multiply, x, y: vmap(_weight_gradient(multiply, y))(x),
    "jvp": lambda multiply, x, y: jvp(lambda a: multiply(a, y), (x[0],), (x[1],))[1],
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_right_or_refused(transform: str) -> None:
    """An operator of a library has no rule for some; a wrong value would be worse."""
    x, y = _constants([(3, 8, 16), (16, 4)])
    expected = TRANSFORMS[transform](torch.mm, x, y)
    try:
        found = TRANSFORMS[transform](mm, x, y)
    except (RuntimeError, NotImplementedError) as refusal:
        assert transform not in ("vmap", "vmap of B")
        assert "functorch" in str(refusal) or "not implemented" in str(refusal)
    else:
        torch.testing.assert_close(found, expected)


def test_forward_mode_is_right_or_refused() -> None:
    import torch.autograd.forward_ad as forward

    x, tangent, y = _constants([(8, 16), (8, 16), (16, 4)])
    with forward.dual_level():
        dual = forward.make_dual(x, tangent)
        try:
            found = forward.unpack_dual(mm(dual, y)).tangent
        except (RuntimeError, NotImplementedError) as refusal:
            assert "forward" in str(refusal)
        else:
            torch.testing.assert_close(found, tangent @ y)


def test_tracers_see_the_operator() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda a, b: mm(a, b))(*_constants([(8, 16), (16, 4)]))
    targets = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert targets == [torch.ops.tilecast.mm.default]


def test_kernels_are_not_asked_for(hook: list[KernelSpec]) -> None:
    mm(*_constants([(8, 16), (16, 4)]))
    assert hook == []
