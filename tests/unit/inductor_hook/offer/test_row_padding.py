"""Rows that Inductor would add to a product stay away where kernels of ours compete for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._inductor import config
from torch._inductor.fx_passes import pad_mm
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tilecast.inductor_hook import install, uninstall
from tilecast.inductor_hook.offer import row_padding
from tilecast.kernels.spec import KernelSpec

aten = torch.ops.aten
M, N, K = 227, 1024, 512
BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def with_triton(hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor tunes on a GPU with Triton, as far as padding goes."""
    monkeypatch.setattr(pad_mm, "has_triton", lambda: True)
    with config.patch(max_autotune_gemm=True):
        yield


def _pads(
    m: Any = M, n: int = N, k: int = K, dtype: torch.dtype = BF16, *, op: Any = aten.mm
) -> bool:
    """Whether Inductor tries what padding gives to a product of row-major A and ``weight.t()``."""
    with FakeTensorMode(), torch.device("cuda"):
        batch = (3,) if op is aten.bmm else ()
        a, weight = (torch.empty(*batch, x, k, dtype=dtype) for x in (m, n))
        return pad_mm.can_pad(a, weight.mT, op)


@pytest.mark.parametrize("op", [aten.mm, aten.addmm, aten.bmm], ids=str)
@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_no_rows_are_added_to_what_ours_compete_for(op: Any, dtype: torch.dtype) -> None:
    assert _pads(dtype=dtype, op=op)
    install()
    assert not _pads(dtype=dtype, op=op)
    uninstall()
    assert _pads(dtype=dtype, op=op)


PADDED: dict[str, Callable[[], bool]] = {
    "columns": lambda: _pads(n=N + 1),
    "columns alone": lambda: _pads(m=M + 5, n=N + 1),
    "depth": lambda: _pads(k=K + 1),
    "another type": lambda: _pads(dtype=FP32),
    "rows that lie one beside the other": lambda: _pads_gradient(),
}
"""Products whose padding is Inductor's business, with us and without."""


def _pads_gradient() -> bool:
    with FakeTensorMode(), torch.device("cuda"):
        grown, x = torch.empty(K, M, dtype=BF16), torch.empty(K, N, dtype=BF16)
        return pad_mm.can_pad(grown.t(), x, aten.mm)


@pytest.mark.parametrize("case", PADDED)
def test_what_else_is_padded_still_is(case: str) -> None:
    assert PADDED[case]()
    install()
    assert PADDED[case]()


def test_a_symbolic_batch_is_left_to_inductor() -> None:
    install()
    symbols = ShapeEnv()
    with FakeTensorMode(shape_env=symbols), torch.device("cuda"):
        symbol = symbols.create_symbol(4, ConstantSource("batch"))
        batch = symbols.create_symintnode(symbol, hint=4)
        a, weight = (torch.empty(batch, x, K, dtype=BF16) for x in (M, N))
        assert pad_mm.can_pad(a, weight.mT, aten.bmm)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_autotune_gemm": False},
        {"max_autotune_gemm_backends": "ATEN,TRITON"},
        {"force_shape_pad": True},
    ],
    ids=str,
)
def test_inductor_pads_where_we_are_not_asked(settings: dict[str, Any]) -> None:
    install()
    with config.patch(settings):
        assert _pads()


def test_a_package_keeps_inductors_padding(hook: list[KernelSpec]) -> None:
    """It gets no kernel of ours, and none is begun for it."""
    install(k=2)
    with V.set_aot_compilation(True):
        assert _pads()
    assert hook == []
    assert not _pads()


def test_what_falls_back_to_aten_may_be_padded(model_of: Callable[..., Path]) -> None:
    install(k=1, model=model_of("bf16:rcr", leaves=True))
    with config.patch(max_autotune_gemm_backends="ATEN,TILECAST", deterministic=True):
        assert _pads()


def test_a_look_that_fails_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install()
    monkeypatch.setattr(row_padding, "expected", lambda *_: 1 / 0)
    assert _pads()
    assert _pads()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "looking at rows to be padded failed (" in caplog.text
    assert "Inductor may add some" in caplog.text
