"""What competes under a variant's name, and what generated code says was selected."""

from __future__ import annotations

import pytest
import variants

TILECAST_CODE = """
cutedsl_fused_mm_t_1a2b3c4d = async_compile.cutedsl('cutedsl_fused_mm_t_1a2b3c4d', r\'\'\'
matmul = StaticMatmul.named(
    '128x256x64_c2x1x1_s4_coop_o1_rm8', 'rcr', 'bfloat16', 'bfloat16', batched=False, arch='sm_90a'
)
def call(args):
    cutedsl_fused_mm_t_1a2b3c4d.run(arg1_1, arg0_1, buf0, stream=stream0)
"""


TRITON_CODE = """
@triton_heuristics.template(
num_stages=4,
num_warps=8,
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 128
    BLOCK_K : tl.constexpr = 32
def call(args):
    triton_tem_fused_mm_t_0.run(arg1_1, arg0_1, buf0, 48, 1, 1, stream=stream0)
"""


ATEN_CODE = """
    extern_kernels.mm(arg1_1, reinterpret_tensor(arg0_1, (64, 32), (1, 64), 0), out=buf0)
    triton_poi_fused_add_0.run(buf0, 256, stream=stream0)
    extern_kernels.addmm(arg2_1, buf0, arg3_1, alpha=1, beta=1, out=buf1)
"""


def test_gemms_of_generated_code_are_counted_by_backend() -> None:
    assert variants.gemm_calls(TILECAST_CODE) == {"tilecast": 1}
    assert variants.gemm_calls(TRITON_CODE + ATEN_CODE) == {"triton": 1, "aten": 2}


def test_selection_names_the_kernel() -> None:
    assert variants.selection(TILECAST_CODE) == "tilecast 128x256x64_c2x1x1_s4_coop_o1_rm8"
    assert variants.selection(TRITON_CODE) == "triton 64x128x32 stages 4 warps 8"
    assert variants.selection(ATEN_CODE) == "aten"
    assert variants.selection("    triton_red_fused_mm_t_0.run(a, b)") == "pointwise"
    nvgemm = "_KERNEL_NAME = 'quack_sm90'\n    nv_universal_gemm_fused_mm_0a.run(a, b, c)"
    assert variants.selection(nvgemm) == "nvgemm quack_sm90"


@pytest.mark.parametrize(
    ("name", "backends", "k"),
    [
        ("default", None, None),
        ("ATEN,TRITON", "ATEN,TRITON", None),
        ("TILECAST cold k=5", "TILECAST", 5),
        ("ATEN,TRITON,TILECAST k=auto", "ATEN,TRITON,TILECAST", "auto"),
    ],
)
def test_a_variant_is_what_its_name_says(name: str, backends: str | None, k: object) -> None:
    variant = variants.Variant(name)
    assert (variant.backends, variant.k) == (backends, k)
