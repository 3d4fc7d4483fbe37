"""Sums of a split of k, added up and finished by a kernel of their own, on any GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import printed, started

from tilecast.data_collection.timing.tensors import applied
from tilecast.heuristics.operands import COLUMN, NUMBER, ROW, GemmOperands
from tilecast.kernels.families import FAMILIES

TEXTS = (
    *("bf16:rcr", "fp16:rcc", "bf16:rcr>fp32", "bf16:rcr:alpha+bias+gelu", "bf16:rcc:bias+relu"),
    *("e4m3:rcr>bf16:row-scales+bias", "e4m3:rcr>fp16:tensor-scales", "e4m3:rcc>bf16:row-scales"),
)
SPLITS = (2, 3, 8)
ALONE = Path(__file__).with_name("sums_alone.py")
EXTENTS = ((1, 8, 8), (3, 40, 272), (2, 264, 1032))
"""Batch, rows and columns; most leave a part of the last block idle."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Callable[..., None]]:
    """The kernel of each kind and split."""
    import cutlass.cute as cute

    major, minor = torch.cuda.get_device_capability()
    (arch,) = {f.arch for f in FAMILIES.values() if f"sm_{major}{minor}a" in f.runs_on}
    folder = tmp_path_factory.mktemp("sums")
    environment = FAMILIES["quack_sm100"].environment
    running, found = {}, {}
    for text in TEXTS:
        for splits in SPLITS if text == TEXTS[0] else SPLITS[1:2]:
            path = folder / f"{len(running)}.o"
            process = started(ALONE, text, splits, arch, path, **environment)
            running[text, splits] = path, process
    printed(*(process for _, process in running.values()))
    for key, (path, _) in running.items():
        module = cute.runtime.load_module(str(path), enable_tvm_ffi=True)
        found[key] = getattr(module, ALONE.stem)
    return found


def as_stored(numbers: torch.Tensor, extents: tuple[int, int, int], major: str) -> torch.Tensor:
    """Numbers that lie one after the other as (batch, m, n)."""
    batch, m, n = extents
    return numbers.view(batch, m, n) if major == "row" else numbers.view(batch, n, m).mT


@pytest.mark.parametrize("extents", EXTENTS)
def test_sums_are_added_in_order_and_finished(
    kernels: dict[tuple[str, int], Callable[..., None]], extents: tuple[int, int, int]
) -> None:
    """Bit for bit where nothing but rounding follows; gaps behind rows stay as they were."""
    torch.manual_seed(0)
    batch, m, n = extents
    for (text, splits), kernel in kernels.items():
        operands = GemmOperands.parse(text)
        room = torch.randn(batch * splits * m * n, device="cuda")
        parts = as_stored(room, (batch * splits, m, n), operands.out.major)
        sums = parts[::splits].clone()
        for i in range(1, splits):
            sums += parts[i::splits]
        dtype = getattr(torch, operands.out.dtype.torch)
        shape = (batch, m, n + 8) if operands.out.major == "row" else (batch, n, m + 8)
        whole = torch.full(shape, 7.0, dtype=dtype, device="cuda")
        out = whole[..., :-8] if operands.out.major == "row" else whole[..., :-8].mT
        given = {}
        for extra in operands.extras:
            length = {ROW: n, COLUMN: m}.get(extra.kind, 1)
            of = torch.float32 if extra.dtype == "fp32" else dtype
            vector = torch.rand(length, dtype=of, device="cuda") + 0.5
            given[extra.name] = 0.75 if extra.kind == NUMBER else vector
        a = torch.empty(batch, m, 16, dtype=getattr(torch, operands.a.dtype.torch), device="cuda")
        b = torch.empty(batch, n, 16, dtype=a.dtype, device="cuda").mT
        kernel(a, b, out, (*given.values(), room), 1)
        expected = sums
        if operands.scales:
            rows = given["scale_a"].view(-1, 1)
            expected = expected * rows * given["scale_b"]
        for step in operands.epilogue:
            expected = applied(step, expected, given)
        if operands.fused:
            torch.testing.assert_close(
                out.float(), expected.to(dtype).float(), rtol=0.01, atol=1e-3
            )
        else:
            assert torch.equal(out, expected.to(dtype)), text
        assert (whole[..., -8:] == 7).all()
