"""What QuACK's SM100 GEMM compiles to without a GPU, and that it lays out what is stated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compiled_kernels import compiled_alone
from processes import printed, started

from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.families import FAMILIES, parse_config
from tilecast.kernels.objects.entry import read_resources
from tilecast.kernels.quack_sm100 import resources
from tilecast.kernels.quack_sm100.space import TENSOR_COLUMNS
from tilecast.kernels.spec import KernelSpec

SAMPLE = (
    ("bf16:rcr", "sm100_128x256x64_c2x1_s6_rm8"),
    ("bf16:crc:bias+gelu", "sm100_128x192x64_c2x2_s7_rn8"),
    ("fp16:rrr", "swap_sm100_64x224x128_c1x4_s3_rm8"),
    ("e4m3:rcr>bf16:row-scales", "swap_sm100_128x64x128_c1x2_s8_rm8"),
    ("e5m2:rcr>bf16@fp32:tensor-scales+bias", "sm100_64x160x128_c2x4_s12_rm8"),
    ("e4m3:rcr>bf16:block-scales", "sm100_128x192x128_c2x1_s5_rm8"),
    ("e5m2:rcr>fp16:block-scales+bias+silu", "swap_sm100_128x256x256_c1x2_s2_rn8"),
    ("bf16:rcr:row-groups+silu", "sm100_128x256x64_c2x1_s6_rm8"),
    ("e4m3:rcr>bf16:row-groups+row-scales", "sm100_64x96x128_c1x2_s10_rn8"),
    ("bf16:crr:k-groups", "sm100_128x192x64_c2x2_s7_rm8"),
    ("bf16:rcr:bias+mul-gelu", "sm100_128x224x64_c2x2_s7_rm8"),
    ("bf16:ccr:silu-mul", "sm100_64x96x128_c2x4_s7_rn8"),
    ("fp16:rcr:row-groups+silu-mul", "sm100_128x192x64_c1x1_s5_rm8"),
    ("e4m3:rcr>bf16:row-scales+silu-mul", "sm100_128x512x128_c2x1_s4_rm8"),
    ("bf16:rcr:bias+gelu", "sm100_128x256x64_c2x1x4_s6_rm8"),
    ("fp16:rrc:alpha", "swap_sm100_64x16x64_c1x1x8_s12_rm8"),
    ("e4m3:rcr>bf16:row-scales+bias", "sm100_128x512x128_c2x1x3_s3_rm8"),
)


def test_kernels_compile_for_blackwell_and_take_what_is_stated(tmp_path: Path) -> None:
    specs = [
        KernelSpec(parse_config(name), GemmOperands.parse(text), batched=i in (1, 3, 11, 15))
        for i, (text, name) in enumerate(SAMPLE)
    ]
    wanted = "gemm.shared_storage.size_in_bytes(), gemm.use_2cta_instrs, gemm.num_tmem_alloc_cols"
    found = compiled_alone("quack_sm100", specs, wanted, tmp_path)
    for i, ((smem, pairs, columns), spec) in enumerate(zip(found, specs, strict=True)):
        name = spec.config.name
        c = FAMILIES["quack_sm100"].geometry([spec.config])
        stated = resources.smem_bytes(c, spec.operands)
        # The rest is the barriers', which the DSL adds.
        assert stated == smem + resources.ALIGNMENT, name
        assert pairs == resources.pairs(c)
        assert columns <= TENSOR_COLUMNS
        facts = read_resources((tmp_path / str(i)).read_bytes())
        assert facts.spill_bytes == 0 and facts.registers <= resources.REGISTERS, name


def test_the_kernel_that_adds_up_a_split_compiles_for_hopper(tmp_path: Path) -> None:
    """Where tests/gpu runs it."""
    alone, path = Path(__file__).parents[2] / "gpu/kernels/sums_alone.py", tmp_path / "sums.o"
    given = alone, "bf16:rcr:bias+gelu", 8, "sm_90a", path
    printed(started(*given, **FAMILIES["quack_sm100"].environment))
    facts = read_resources(path.read_bytes())
    assert facts.spill_bytes == 0 and 0 < facts.registers <= resources.REGISTERS


def test_the_command_line_compiles_what_max_autotune_would_offer(
    answer: Callable[..., dict], tmp_path: Path
) -> None:
    asked = ("compile", "16x512x4096", "--gpu", "B200", "-k", "2", "--cache", str(tmp_path))
    document = answer(*asked)
    assert (document["compiled"], document["failed"], document["spilling"]) == (2, 0, 0)
    assert all("sm100_" in kernel["config"] for kernel in document["kernels"])
    assert answer(*asked)["found"] == 2
