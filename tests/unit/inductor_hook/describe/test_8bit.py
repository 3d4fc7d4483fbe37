"""Products of int8 and fp8: how they are read, which choices they get, and torch in their place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hook_graph import (
    choices_of,
    int_linear,
    lowered,
    main_of,
    names_of,
    node,
    ours_of,
    scale,
    scaled_linear,
    source_of,
    symbolic,
)
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.kernel import mm
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V

from tilecast.data_collection.timing.tensors import poisoned_out, random_inputs, reference
from tilecast.data_collection.timing.torch_reference import torch_launch
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install, installed
from tilecast.inductor_hook.describe.arguments import launch_arguments
from tilecast.inductor_hook.describe.from_ir import read
from tilecast.inductor_hook.describe.layout import Stored
from tilecast.inductor_hook.describe.matmul import Matmul, NotCovered
from tilecast.inductor_hook.describe.product import OPERATORS, READERS, Request
from tilecast.inductor_hook.run import static
from tilecast.kernels.spec import KernelSpec

M, N, K = 512, 1024, 512
INT8, ROWS, ONES = "int8:rcr>int32", "e4m3:rcr>bf16:row-scales", "e4m3:rcr>bf16:tensor-scales"
aten = torch.ops.aten

ModelOf = Callable[..., Path]


# ---- reading


def _problem(operands: str, m: int = M) -> GemmProblem:
    return GemmProblem(m, N, K, 1, GemmOperands.parse(operands))


_blocks = partial(scale, dtype=torch.float8_e8m0fnu)
SCALES: dict[str, tuple[str, Callable[[], list[Any]]]] = {
    "one number": ("tensor-scales", lambda: [scale("scale_a", 1), scale("scale_b", 1)]),
    "no dimension": ("tensor-scales", lambda: [scale("scale_a"), scale("scale_b")]),
    "a matrix of one": ("tensor-scales", lambda: [scale("scale_a", 1, 1), scale("scale_b", 1)]),
    "rows": ("row-scales", lambda: [scale("scale_a", M, 1), scale("scale_b", 1, N)]),
    "blocks": (
        "block-scales",
        lambda: [_blocks("scale_a", M * K // 32), _blocks("scale_b", 4, N * K // 128)],
    ),
    "rows, transposed": (
        "row-scales",
        lambda: [scale("scale_a", M, 1, stride=[1, M]), scale("scale_b", 1, N, stride=[1, 1])],
    ),
}


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("fast", [True, False])
def test_scaled_mm(graph: Any, kind: str, fast: bool) -> None:
    name, scales = SCALES[kind]
    found = read(scaled_linear(M, N, K, scales=scales()), "scaled_mm", fast)
    operands = f"e4m3:rcr>bf16{'' if fast else '@fp32'}:{name}"
    assert found == Matmul(_problem(operands), False, inputs=OPERATORS["scaled_mm"].inputs[:4])


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "operands"),
    [
        ("float8_e5m2", "float16", "e5m2:rcr>fp16:row-scales"),
        ("float8_e4m3fn", "float32", "e4m3:rcr>fp32:row-scales"),
    ],
)
def test_other_dtypes(graph: Any, dtype: str, out_dtype: str, operands: str) -> None:
    types = {"dtype": getattr(torch, dtype), "out_dtype": getattr(torch, out_dtype)}
    assert read(scaled_linear(M, N, K, **types), "scaled_mm", True).hint == _problem(operands)


def _scaled(*scales: Any) -> Any:
    return scaled_linear(M, N, K, scales=scales)


REFUSALS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: _scaled(scale("scale_a", M, 4), scale("scale_b", 4, N)),
        r"scales \(512, 4\) and \(4, 1024\); allowed: one number each",
    ),
    (lambda: _scaled(scale("scale_a", M, 1), scale("scale_b", 1)), "scales .* allowed"),
    (lambda: _scaled(scale("scale_a", M), scale("scale_b", N)), "scales .* allowed"),
    (lambda: _scaled(scale("scale_a", M, 1), scale("scale_b", N, 1)), "scales .* allowed"),
    (
        lambda: _scaled(scale("scale_a", M, 1, stride=[2, 1]), scale("scale_b", 1, N)),
        "contiguous",
    ),
    (
        lambda: _scaled(scale("scale_a", M, 1, stride=[0, 1]), scale("scale_b", 1, N)),
        "contiguous",
    ),
    (
        lambda: _scaled(scale("scale_a", 1), scale("scale_b", 1, dtype=torch.float16)),
        "scales of fp32 and fp16; allowed: fp32",
    ),
    (lambda: _scaled(_blocks("s", 1), _blocks("t", 1)), "e8m0; allowed: contiguous tiles of 128"),
    (
        lambda: _scaled(_blocks("s", M * K // 32), _blocks("t", 4, N * K // 128, stride=[1, 4])),
        "e8m0; allowed: contiguous tiles of 128",
    ),
    (
        lambda: _scaled(_blocks("s", M * K // 32), scale("t", 1)),
        "scales of e8m0 and fp32; allowed: fp32",
    ),
    (lambda: _scaled(scale("one", 1), scale("one", 1)), "views of one buffer"),
    (
        lambda: scaled_linear(M, N, K, node("bias", [N], dtype=torch.float32)),
        "the bias is no row of out's dtype",
    ),
    (lambda: scaled_linear(M, N, 520), "A has strides .*multiples of 16"),
]


@pytest.mark.parametrize(("inputs", "reason"), REFUSALS)
def test_what_is_not_covered_says_why(graph: Any, inputs: Callable[[], Any], reason: str) -> None:
    with pytest.raises(NotCovered, match=reason):
        read(inputs(), "scaled_mm", True)


def test_how_products_are_added_up_has_to_be_known(graph: Any) -> None:
    with pytest.raises(NotCovered, match="use_fast_accum is not known"):
        read(scaled_linear(), "scaled_mm")


# ---- choices


def _scaled_mm(*more: Any, fast: bool = True, out_dtype: Any = torch.bfloat16, **kind: Any) -> Any:
    """What Inductor's own lowering would benchmark."""
    nodes = scaled_linear(M, N, K, *more, **kind).nodes()
    return lowered(aten._scaled_mm.default, *nodes, use_fast_accum=fast, out_dtype=out_dtype)


@pytest.mark.parametrize("count", [1, 3])
def test_int_mm_gets_choices(
    graph: Any, hook: list[KernelSpec], model_of: ModelOf, count: int
) -> None:
    install(k=count, model=model_of(INT8))
    with config.patch(max_autotune_gemm_backends="TILECAST"):
        choices = lowered(aten._int_mm, *int_linear(M, N, K).nodes())
    assert len(ours_of(choices)) == len(choices) == count
    assert {spec.operands.text for spec in hook} == {INT8}
    assert "matmul(A, B, out_ptr0)" in source_of(choices[0])
    assert counters["tilecast"]["problems"] == 1


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("kind", ["no dimension", "rows"])
@pytest.mark.parametrize("biased", [False, True])
def test_scaled_mm_gets_choices(
    graph: Any, hook: list[KernelSpec], model_of: ModelOf, kind: str, fast: bool, biased: bool
) -> None:
    name, scales = SCALES[kind]
    operands = f"e4m3:rcr>bf16{'' if fast else '@fp32'}:{name}{'+bias' if biased else ''}"
    install(k=3, model=model_of(operands))
    bias = [node("bias", [N])] if biased else []
    with config.patch(max_autotune_gemm_backends="TILECAST"):
        choices = _scaled_mm(*bias, fast=fast, scales=scales())
    assert len(ours_of(choices)) == len(choices) == 3
    assert {spec.operands.text for spec in hook} == {operands}
    row = "scale_b.view(-1)" if kind == "no dimension" else "row(scale_b)"
    handed = f"scale_a.view(-1), {row}{', row(bias)' if biased else ''}"
    for choice in choices:
        assert f"matmul(A, B, out_ptr0, {handed})" in source_of(choice)


@pytest.mark.parametrize("recipe", [0, 1], ids=["one number", "rows"])
def test_scaled_mm_by_recipe_gets_choices(
    graph: Any, hook: list[KernelSpec], model_of: ModelOf, recipe: int
) -> None:
    """What ``F.scaled_mm`` becomes in a graph."""
    name, scales = SCALES[("one number", "rows")[recipe]]
    operands = f"e4m3:rcr>bf16:{name}"

    def lower(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        scaled = [scale_a], [recipe], [], [scale_b], [recipe], []
        options = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
        return lowerings[aten._scaled_mm_v2.default](a, b, *scaled, **options)

    install(k=3, model=model_of(operands))
    with config.patch(max_autotune_gemm_backends="TILECAST"):
        choices = lowered(lower, *scaled_linear(M, N, K, scales=scales()).nodes())
    assert len(ours_of(choices)) == len(choices) == 3
    assert {spec.operands.text for spec in hook} == {operands}


def test_scales_of_blocks_are_read_by_their_recipe_alone() -> None:
    """``ScalingType.BlockWise1x32`` in ``SwizzleType.SWIZZLE_32_4_4``; others are PyTorch's."""

    def asked(*kind: int, dtype: torch.dtype = torch.float8_e8m0fnu) -> Request | None:
        a, b = (torch.empty(x, K, dtype=torch.float8_e4m3fn, device="meta") for x in (M, N))
        scale_a, scale_b = (torch.empty(x * K // 32, dtype=dtype, device="meta") for x in (M, N))
        recipe = [kind[0]], [*kind[1:]]
        scaled = [scale_a], *recipe, [scale_b], *recipe
        return READERS["_scaled_mm_v2"](a, b.T, *scaled, None, torch.bfloat16)

    request = asked(3, 1)
    assert request is not None
    problem = request.product.problem(Stored.of(request.a), Stored.of(request.b))
    assert problem == _problem("e4m3:rcr>bf16@fp32:block-scales")
    launched = launch_arguments(problem.operands.extras, request.values)
    assert [value.shape for value in launched] == [(M * K // 32,), (N * K // 32,)]
    assert asked(3) is asked(3, 0) is asked(1) is asked(2, 1) is asked(0) is None
    assert asked(3, 1, dtype=torch.float32) is None


UNCOVERED: dict[str, dict[str, Any]] = {
    "blocks": {"scales": lambda: [scale("scale_a", M, 4), scale("scale_b", 4, N)]},
    "half a row": {"scales": lambda: [scale("scale_a", M, 1, stride=[0, 1]), scale("b", 1, N)]},
    "fp8 out": {"out_dtype": torch.float8_e4m3fn},
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("case", UNCOVERED)
def test_other_scaled_products_are_left_to_aten(
    graph: Any, hook: list[KernelSpec], model_of: ModelOf, case: str, count: int
) -> None:
    """Where nobody else is named, too."""
    options = dict(UNCOVERED[case])
    scales = options.pop("scales", lambda: [])()
    with (
        installed(k=count, model=model_of(ROWS)),
        config.patch(max_autotune_gemm_backends="TILECAST"),
    ):
        assert names_of(_scaled_mm(scales=scales, **options)) == ["_scaled_mm"]
    assert hook == []
    assert counters["tilecast"]["not covered: scaled_mm"] == 1


@pytest.mark.parametrize("op", ["int_mm", "scaled_mm"])
def test_a_symbolic_m_gets_one_choice(
    graph: Any, hook: list[KernelSpec], model_of: ModelOf, op: str
) -> None:
    install(k=3, model=model_of(INT8 if op == "int_mm" else ROWS))
    m = symbolic()
    inputs = int_linear(m, N, K) if op == "int_mm" else scaled_linear(m, N, K)
    told = {"aten": {"use_fast_accum": True}}
    (found,) = V.choices._finalize_template_configs({}, inputs, [], op, told)
    caller: Any = found.choice
    assert "DynamicMatmul.named" in source_of(caller)
    assert len(caller.choice.configs) > 1


def test_k_1_falls_back_to_aten_in_int8(
    graph: Any, hook: list[KernelSpec], model_of: ModelOf
) -> None:
    install(k=1, model=model_of(INT8, leaves=True))
    with config.patch(max_autotune_gemm_backends="ATEN,TILECAST", deterministic=True):
        assert names_of(choices_of(int_linear(M, N, K), "int_mm", [mm.aten__int_mm])) == ["_int_mm"]
        # Which PyTorch does not multiply.
        assert ours_of(choices_of(int_linear(16, N, K), "int_mm", [mm.aten__int_mm]))


# ---- running


def _fails(*arguments: Any) -> Any:
    raise RuntimeError("injected")


def _recording(seen: list[Any]) -> Callable[..., Any]:
    """In place of `static.loaded_kernel`: torch, and what it is given."""

    def load(spec: KernelSpec, device: int) -> Callable[..., None]:
        launch = torch_launch(spec.operands)

        def record(a: Any, b: Any, out: Any, *extras: Any) -> None:
            seen.extend((tuple(extra.shape), extra.stride()) for extra in extras)
            launch(a, b, out, *extras)

        return record

    return load


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kind", ["no dimension", "a matrix of one", "rows", "rows, transposed"])
def test_generated_code_hands_scales_over_as_vectors(
    graph: Any,
    model_of: ModelOf,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
    fails: bool,
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(static, "loaded_kernel", _fails if fails else _recording(seen))
    name, scales = SCALES[kind]
    nodes = [*scales(), node("bias", [N])]
    install(k=1, model=model_of(f"e4m3:rcr>bf16:{name}+bias"))
    (choice,) = _scaled_mm(nodes[-1], scales=nodes[:2])
    strided = [(list(one.get_size()), list(one.get_stride())) for one in nodes]
    extras = [torch.empty_strided(size, stride).uniform_(0.5, 1.5) for size, stride in strided]
    extras[-1] = extras[-1].bfloat16()
    problem = _problem(f"e4m3:rcr>bf16:{name}+bias")
    a, b, *_ = random_inputs(problem, "cpu")
    out = poisoned_out(problem, "cpu")
    main_of(choice, tmp_path / "generated.py")(a, b, *extras, out, stream=0)
    expected = reference(problem, (a, b, *(extra.reshape(-1) for extra in extras)))
    torch.testing.assert_close(out.float(), expected, rtol=2**-7, atol=0.5)
    lengths = (1, 1, N) if name == "tensor-scales" else (M, N, N)
    assert seen == ([] if fails else [((length,), (1,)) for length in lengths])
