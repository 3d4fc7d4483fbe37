"""What a split of k through memory compiles to on SM90, and that it lays out what is stated."""

from __future__ import annotations

from pathlib import Path

from compiled_kernels import compiled_alone

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.candidates import broken_rules
from tilecast.kernels.families import FAMILIES, parse_config
from tilecast.kernels.objects.entry import read_resources
from tilecast.kernels.quack.parts import parts_of
from tilecast.kernels.quack_sm90 import resources
from tilecast.kernels.spec import KernelSpec

FAMILY = FAMILIES["quack_sm90_memory"]
SAMPLE = (
    ("bf16:rcr", "memory_128x192x64_c2x1x5_s4_coop_o1_rm8"),
    ("bf16:rcc", "memory_128x128x64_c2x1x7_s6_coop_o1_rm8"),
    ("bf16:rcr:bias+gelu", "memory_256x128x64_c1x2x3_s4_coop_o1_rm8"),
    ("bf16:crc:alpha+bias", "memory_swap_64x48x64_c1x1x8_s12_coop_o1_rm8"),
    ("fp16:rrr>fp32", "memory_192x128x64_c1x2x6_s4_coop_o1_rm8"),
    ("fp16:rcr:bias+relu", "memory_192x256x64_c1x1x2_s3_coop_o1_rm8"),
    ("e4m3:rcr>bf16:row-scales+bias", "memory_128x224x128_c2x1x4_s4_coop_o1_rm8"),
    ("e5m2:rcr>fp16@fp32:tensor-scales", "memory_swap_128x64x128_c1x1x8_s8_coop_o1_rm8"),
)


def test_kernels_compile_and_take_what_is_stated(tmp_path: Path) -> None:
    specs = [
        KernelSpec(parse_config(name), GemmOperands.parse(text), i in (1, 3, 7), i in (1, 2, 6))
        for i, (text, name) in enumerate(SAMPLE)
    ]
    wanted = "gemm.shared_storage.size_in_bytes(), gemm.cluster_shape_mnk"
    found = compiled_alone(FAMILY.name, specs, wanted, tmp_path)
    for i, ((smem, cluster), spec) in enumerate(zip(found, specs, strict=True)):
        config, operands, name = spec.config, spec.operands, spec.config.name
        assert not list(broken_rules(config, operands, hardware("H200"))), name
        c = FAMILY.geometry([config])
        # The rest is the barriers', which the DSL adds.
        stated = resources.smem_bytes(c, parts_of(operands))
        assert stated == smem + resources.ALIGNMENT, name
        assert cluster == [c.cluster_m, c.cluster_n, 1]
        facts = read_resources((tmp_path / str(i)).read_bytes())
        assert facts.spill_bytes == 0, name
        assert facts.registers <= resources.launch_registers(c), name
