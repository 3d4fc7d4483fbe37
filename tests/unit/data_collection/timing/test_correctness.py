"""What counts as a wrong result: judged on the CPU, on operands like those of the checks."""

from __future__ import annotations

import math

import pytest
import torch

from tilecast.data_collection.timing.correctness import (
    CHECK_EXTENTS,
    check_problems,
    wrong_elements,
    wrong_row,
)
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import space
from tilecast.kernels.spec import KernelSpec

LARGE = (2056, 2504, 520)
K = LARGE[2]
PROBLEM = GemmProblem(*LARGE)
NARROW = GemmProblem(256, 256, 528, operands=GemmOperands.parse("e4m3:rcr>bf16"))


@pytest.fixture(scope="module")
def reference() -> torch.Tensor:
    """A product with many tiles, in float32."""
    m, n, k = LARGE
    torch.manual_seed(0)
    return torch.randn(m, k).bfloat16().float() @ torch.randn(k, n).bfloat16().float()


@pytest.fixture
def corner(reference: torch.Tensor) -> torch.Tensor:
    """Its last rows and columns."""
    return reference[-264:, -520:].clone()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rounded_results_are_right(corner: torch.Tensor, dtype: torch.dtype) -> None:
    assert wrong_elements(corner.to(dtype), corner, PROBLEM) is None


@pytest.mark.parametrize("extents", CHECK_EXTENTS)
def test_products_in_another_order_are_right(extents: tuple[int, int, int]) -> None:
    m, n, k = min(extents[0], 128), *extents[1:]
    a, b = torch.randn(m, k).bfloat16().double(), torch.randn(k, n).bfloat16().double()
    exact = a @ b
    halves = a[:, : k // 2] @ b[: k // 2] + (a[:, k // 2 :] @ b[k // 2 :]).float()
    assert wrong_elements(halves.bfloat16(), exact.float(), GemmProblem(*extents)) is None


@pytest.mark.parametrize("text", ["bf16:rcr", "e4m3:rcr>bf16", "int8:rcr>int32"])
def test_every_stage_comes_round_in_every_part_of_k(text: str) -> None:
    operands = GemmOperands.parse(text)
    table = space(operands, hardware("H200"))
    c = table.columns
    assert len(set(c.split_k)) > 4
    for config, stage, split in zip(table.configs, c.tile_k * c.stages, c.split_k, strict=True):
        *_, deep = check_problems(KernelSpec(config, operands))
        assert 2 * stage * split < deep.k <= 3 * stage * split
    assert max(c.tile_k * c.stages * c.split_k) > 10_000


@pytest.mark.parametrize("text", ["bf16:rcr", "bf16:rcr>fp32", "e4m3:rcr>bf16@fp32"])
def test_one_of_hundreds_of_stages_that_is_taken_twice_is_found(text: str) -> None:
    operands = GemmOperands.parse(text)
    problem = GemmProblem(16, 520, 22_512, operands=operands)
    torch.manual_seed(0)
    a, b = torch.randn(16, problem.k), torch.randn(problem.k, 520)
    right, dtype = a @ b, getattr(torch, operands.out.dtype.torch)
    assert wrong_elements(right.to(dtype), right, problem) is None
    twice = a.clone()
    twice[:, 640:704] = a[:, :64]
    assert wrong_elements((twice @ b).to(dtype), right, problem)


def test_rows_are_compared_of_whatever_was_multiplied() -> None:
    """Rows of all sizes, and one whose sums cancel; unlike a norm of the whole, each row counts."""
    operands = GemmOperands.parse("bf16:rcr")
    torch.manual_seed(0)
    right = torch.randn(300, 80) * torch.logspace(-1, 2, 300)[:, None]
    right[7] = 0
    out = right.bfloat16()
    out[7] = 1e-3
    assert wrong_row(out, right, K, operands) is None
    assert wrong_row(out, right.bfloat16(), K, operands) is None
    for row, change in ((0, 1.1), (299, 1.1), (150, math.nan), (7, 1e3)):
        bad = out.clone()
        bad[row] *= change
        assert (wrong_row(bad, right, K, operands) or "").startswith(f"row {row} is wrong by ")
    error = torch.linalg.norm(bad.float() - right) / torch.linalg.norm(right)
    assert error < 0.02, "that row does not show in the whole"


@pytest.mark.parametrize("n", [1, 63])
def test_a_result_of_short_rows_is_compared_as_a_whole(n: int) -> None:
    operands = GemmOperands.parse("bf16:rcr")
    right = torch.linspace(1, 2, 16 * n).reshape(16, n)
    assert wrong_row(right.bfloat16(), right, K, operands) is None
    assert "all of it is wrong by 0.1" in (wrong_row(right * 1.1, right, K, operands) or "")


def test_nothing_is_right_where_nothing_is_to_be_computed() -> None:
    operands, zero = GemmOperands.parse("bf16:rcr:relu"), torch.zeros(4, 128)
    assert wrong_row(zero, zero, K, operands) is None
    assert wrong_row(zero + 1e-3, zero, K, operands) is not None
    few = torch.full((1, 8), 1e-6)
    assert wrong_elements(few * 2, few, GemmProblem(1, 8, K, operands=operands)) is None


def test_a_zeroed_tile_is_found_which_a_norm_does_not_see(reference: torch.Tensor) -> None:
    out = reference.bfloat16()
    out[64:96, 256:264] = 0
    error = torch.linalg.norm(out.float() - reference) / torch.linalg.norm(reference)
    assert error < 1e-2
    found = wrong_elements(out, reference, PROBLEM)
    assert found is not None
    # A few of the 256 are near 0 by themselves.
    assert 245 < int(found.split()[0]) <= 256
    assert "within [64:96, 256:264], the first 0 instead of " in found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("change", ["shifted", "nan", "infinite", "half", "neighbour's"])
def test_one_bad_tile_is_reported_with_its_place(
    corner: torch.Tensor, dtype: torch.dtype, change: str
) -> None:
    out = corner.to(dtype, copy=True)
    tile = out[256:264, 512:520]
    tile[:] = {
        "shifted": tile.roll(1, 0),
        "nan": torch.full_like(tile, math.nan),
        "infinite": torch.full_like(tile, math.inf),
        "half": tile / 2,
        "neighbour's": out[248:256, 512:520].clone(),
    }[change]
    found = wrong_elements(out, corner, PROBLEM)
    assert found is not None
    assert "within [256:264, 512:520]" in found
    assert "\n" not in found


@pytest.mark.parametrize("k", [208, 528, 1040])
def test_what_stages_lose_before_their_sums_are_promoted_is_allowed(k: int) -> None:
    """Sums of 32 products at a time are cut off behind 14 bits, within stages of 128."""
    operands = GemmOperands.parse("e4m3:rcr>fp32@fp32")
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(512, k, generator=generator).to(torch.float8_e4m3fn).float()
    b = torch.randn(k, 2048, generator=generator).to(torch.float8_e4m3fn).float()
    out = torch.zeros(512, 2048)
    for stage in range(0, k, 128):
        narrow = torch.zeros(512, 2048)
        for start in range(stage, min(stage + 128, k), 32):
            narrow += a[:, start : min(start + 32, k)] @ b[start : min(start + 32, k)]
            unit = torch.exp2(narrow.abs().clamp_min(1e-9).log2().floor() - 13)
            narrow = (narrow / unit).trunc() * unit
        out += narrow
    problem = GemmProblem(512, 2048, k, operands=operands)
    assert wrong_elements(out, a @ b, problem) is None
    plain = GemmOperands.parse("bf16:rcr>fp32")
    assert wrong_elements(out, a @ b, GemmProblem(512, 2048, k, operands=plain)) is not None
    out[64:128, 256:384] = 0
    found = wrong_elements(out, a @ b, problem)
    assert found is not None and "[64:128, 256:384]" in found


def test_what_tensor_cores_lose_of_floats_of_8_bits_is_allowed_and_a_tile_still_shows() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(256, 256, generator=generator) * math.sqrt(K)
    rounded = exact + 0.04 * torch.randn(256, 256, generator=generator).clamp_(-1, 1)
    assert wrong_elements(rounded, exact, NARROW) is None
    assert wrong_elements(rounded, exact, PROBLEM) is not None
    rounded[64:128, 128:152] = 0
    found = wrong_elements(rounded, exact, NARROW)
    assert found is not None and "[64:128, 128:152]" in found
