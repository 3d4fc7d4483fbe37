"""What our kernel relies on in QuACK, none of which is promised, and what it compiles to.

When a newer version breaks one of these, the kernel must be read against it before the pin moves.
QuACK is imported in processes of their own alone, as it is when kernels are compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from compiled_kernels import check_sources
from processes import python

from tilecast.heuristics.hardware import GPUS
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.candidates import space
from tilecast.kernels.families import parse_config
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.quack_sm90 import resources
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.family import QUACK_SM90
from tilecast.kernels.spec import KernelSpec

ROOT = Path(__file__).parents[3]
OVERRIDDEN = {
    "_compute_stages": "cta_tile_shape_mnk epi_tile a_dtype b_dtype d_dtype c_dtype epilogue_args "
    "smem_capacity occupancy warp_shape_mnk a_bytes_per_stage_override ab_extra_bytes_per_stage",
    "_compute_tile_shape_or_override": "cta_tile_shape_mnk atom_layout_mnk element_type "
    "epi_tile_override",
    "get_scheduler_class": "self varlen_m",
    "rotate_batch_last": "self mA mB mD mC epilogue_args append_batch_if_2d",
    "_setup_attributes": "self epilogue_args",
    "epi_retile_acc": "self acc tRS_rD tiled_copy_r2s",
    "epi_load_acc_subtile": "self tRS_rAcc tRS_rD epi_coord no_release",
    "epi_to_underlying_arguments": "self args loc ip",
    "epi_get_smem_tensors": "self params storage",
    "mma": "self ab_pipeline ab_read_state mma_fn acc acc_slow k_tile_cnt warp_group_idx",
    "mma_rs_interleaved": "self ab_pipeline ab_read_state tiled_mma acc k_tile_cnt warp_group_idx "
    "copy_block tCrA tCrB k_tile_start promote_fn",
    "epilogue_split_k": "self params epi_fn load_acc_subtile tRS_rD epi_tile epi_read_state "
    "epi_producer_state epi_store_pipeline tile_coord_mnkl epilogue_barrier tidx is_tma_warp",
    "make_tma_epilogue_atoms_and_tensors": "self mD mC epilogue_args varlen_m",
    "epilog_gmem_copy_and_partition": "self atom mD_mn tile_shape_mn epi_tile sD tile_coord_mnkl",
    "epilogue": "self params epi_smem_tensors epi_pipeline epi_store_pipeline epi_read_state "
    "epi_producer_state epi_tile load_acc_subtile tRS_rD tRS_rC tiled_copy_t2r tiled_copy_r2s "
    "tRS_sD tiled_copy_s2r tSR_rC tSR_sC copy_D copy_C tile_coord_mnkl varlen_manager "
    "epilogue_barrier tile_scheduler tidx is_tma_warp",
    "__call__": "self mA mB mD mC epilogue_args scheduler_args varlen_args stream mSFA mSFB",
}
"""Methods that ours override, with QuACK's parameters in order."""
SAMPLE = (
    ("bf16:rcr", "128x128x64_c2x1x1_s6_coop_o1_rm8"),
    ("bf16:rcr", "swap_64x16x128_c1x1x8_s9_coop_o1_rm8"),
    ("bf16:rcr", "256x128x64_c1x1x3_s4_coop_o1_rm8"),
    ("bf16:rcr", "swap_128x160x64_c4x1x4_s5_coop_o1_rm8"),
    ("bf16:rcr:bias", "128x80x64_c1x2x3_s8_coop_o1_rm8"),
    ("bf16:rcr", "64x64x64_c1x1x1_s5_coop_o2_rm8"),
    ("bf16:rrr", "swap_192x96x64_c2x1x1_s4_pong_o1_rm4"),
    ("bf16:crr", "64x128x64_c1x1x4_s6_coop_o1_rn1"),
    ("e5m2xe4m3:rcr>bf16", "128x128x128_c1x1x1_s5_pong_o1_rm8"),
    ("e4m3:rcr>bf16@fp32:row-scales+bias", "128x128x128_c1x1x1_s4_coop_o1_rm8"),
    ("bf16:rcr:bias+gelu", "256x192x64_c2x1x1_s3_coop_o1_rm8"),
    ("bf16:rcr:alpha+beta-c", "swap_128x192x64_c1x2x1_s3_pong_o1_rm8"),
    ("int8:rcr>bf16:out-row-scales+bias", "64x64x128_c1x1x3_s5_coop_o1_rm8"),
    ("int8:rcr>int32", "64x32x128_c1x1x4_s8_coop_o1_rm8"),
    ("bf16xint8:rcr:column-scales", "swap_64x16x128_c1x1x4_s12_coop_o1_rm8"),
    ("bf16xint8:rcr:column-scales", "swap_128x64x64_c2x1x1_s5_coop_o2_rm8"),
    ("bf16xint8:rcr:fp32-column-scales+bias", "swap_64x16x128_c1x1x2_s9_coop_o2_rm8"),
    ("bf16xint8:ccr:bias+gelu", "swap_256x128x64_c1x2x1_s5_coop_o1_rm8"),
    ("bf16:rcr:row-groups", "128x192x64_c1x2x1_s3_pong_o1_rm8"),
    ("fp16:rcr:row-groups+silu", "256x192x64_c2x1x1_s3_coop_o1_rm8"),
    ("bf16xint8:rcr>fp32", "swap_192x96x64_c1x1x1_s6_pong_o1_rm8"),
    ("bf16:rcr@4xfp32", "128x192x64_c2x1x1_s5_coop_o1_rm8"),
    ("bf16:rcr:silu-mul", "256x160x64_c2x1x1_s4_coop_o1_rm8"),
    ("e4m3:rcr>bf16:row-scales+bias+gelu-tanh-mul", "64x64x128_c1x2x1_s3_pong_o2_rm8"),
    ("bf16:rcr:bias+mul-gelu", "128x256x64_c4x1x1_s3_coop_o1_rm8"),
    ("bf16:crr:k-groups", "128x192x64_c2x1x1_s4_pong_o1_rn8"),
    # Whose pieces have 16 columns, beside the largest accumulators.
    ("bf16:rcr", "128x208x64_c2x1x1_s5_pong_o1_rn8"),
    ("e4m3:rcr>bf16:row-groups+row-scales", "128x192x128_c2x1x1_s3_pong_o1_rm8"),
    ("e4m3:rcr>bf16@fp32:row-groups+row-scales", "192x128x128_c1x2x1_s5_coop_o1_rn8"),
)
BATCHED, ANY_ROWS = (1, 13, 24), (1, 5, 10, 15, 20, 26)
"""Kernels of `SAMPLE` for a batch, and for rows of out that begin anywhere."""
SPECS = [
    KernelSpec(
        *(parse_config(name), GemmOperands.parse(text), place in BATCHED),
        any_rows=place in ANY_ROWS,
    )
    for place, (text, name) in enumerate(SAMPLE)
]
LOOKED_INTO = (0, 3, 4, 6, 9, 10, 12, 14, 18, 21, 24, 25, 27)
"""Those whose PTX, loads and shared memory are compared with what is stated."""
READ = """
import sys
from tilecast.kernels.quack_sm90 import fused
LOADED = [*sys.modules]
import contextlib, inspect, io, json, traceback
from tilecast.kernels.quack_sm90 import kernel
from tilecast.kernels.quack_sm90.kernel import GemmSm90, TunableGemm
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.kernels.candidates import space
from tilecast.kernels.families import parse_config
from tilecast.kernels.spec import KernelSpec

names = dict(globals())
for line in sys.stdin:
    told, failed = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(told):
            exec(json.loads(line), names)
    except Exception:
        failed = traceback.format_exc()
    print(json.dumps([told.getvalue().strip(), failed]), flush=True)
"""
Ask = Callable[[str], str]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the process of `ask` leaves the PTX of what it compiles."""
    return tmp_path_factory.mktemp("ptx")


@pytest.fixture(scope="module")
def ask(dumped: Path) -> Iterator[Ask]:
    """Gives what some code prints in a process in which QuACK is imported, once for all."""
    with subprocess.Popen(
        [sys.executable, "-c", READ],
        env=os.environ | {"CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": str(dumped)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        asked, answered = process.stdin, process.stdout
        assert asked and answered

        def answer(code: str) -> str:
            asked.write(json.dumps(code) + "\n")
            asked.flush()
            told, failed = json.loads(answered.readline())
            assert not failed, failed
            return told

        yield answer
        asked.close()


def test_the_installed_version_is_the_pinned_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pin,) = [line.split("==")[1] for line in project["dependencies"] if "quack" in line]
    assert pin == version("quack-kernels")


def test_the_sources_of_a_key_are_all_that_loading_the_compiler_loads(ask: Ask) -> None:
    check_sources(QUACK_SM90.compiler, ask("print(*LOADED)"))


def test_what_is_overridden_takes_these_parameters(ask: Ask) -> None:
    code = f"""
for method in {list(OVERRIDDEN)}:
    print(method, *inspect.signature(getattr(GemmSm90, method)).parameters)
"""
    found = dict(line.split(" ", 1) for line in ask(code).splitlines())
    assert {name: set(text.split()) for name, text in found.items()} == {
        name: set(text.split()) for name, text in OVERRIDDEN.items()
    }


def test_a_converted_operand_has_what_quack_asks_of_its_own(ask: Ask) -> None:
    code = """
from quack.operand_transform.transform import TransformAW4
from tilecast.kernels.quack_sm90.conversion import ConvertedA
for name in ("make_a_smem_layout_staged", "make_a_tma", "a_gmem_slice", "make_copy_block"):
    ours, theirs = (inspect.signature(getattr(it, name)) for it in (ConvertedA, TransformAW4))
    assert len(ours.parameters) == len(theirs.parameters), name
print(ConvertedA.owns_a_layout, ConvertedA.aux, ConvertedA.promote, ConvertedA.tile_k)
"""
    assert ask(code) == "True None False None"


def test_resources_are_what_quack_chooses(ask: Ask) -> None:
    """Warp groups, and registers at least as many; also that all knobs arrive."""
    whole: Any = space(LINEAR_BF16, GPUS[0], [QUACK_SM90.name]).configs
    configs = [c for c in whole if c.ctas_per_sm == 1][::40]
    code = f"""
import cutlass
from tilecast.kernels.quack_sm90 import resources
for name in {[config.name for config in configs]}:
    config = parse_config(name)
    ours = TunableGemm(config, LINEAR_BF16)
    theirs = GemmSm90(
        cutlass.Float32, cutlass.BFloat16, ours.cta_tile_shape_mnk, ours.cluster_shape_mnk,
        pingpong=config.schedule == "pong", fp8_fast_accum=True,
    )
    assert theirs.mma_warp_groups == resources.mma_warp_groups(config), name
    assert theirs.atom_layout_mnk[:2] == resources.warp_groups(config), name
    load, mma = resources.registers(config, LINEAR_BF16)
    needed = resources.accumulator_registers(config, LINEAR_BF16) + 32
    assert mma >= theirs.num_regs_mma or needed <= mma, name
    assert load <= theirs.num_regs_load or mma <= theirs.num_regs_mma, name
    assert ours._compute_stages()[0] == config.stages
    assert ours.split_k == config.split_k and ours.cluster_shape_mnk[2] == config.split_k
    assert ours.is_persistent == (config.split_k == 1)
print("triton" in sys.modules, "quack.rmsnorm" in sys.modules)
"""
    assert ask(code) == "False False"


class Compiled(NamedTuple):
    """A kernel that was compiled in the process of `ask`."""

    ptx: str
    loads: list[str]
    """What the DSL is told of A's loads and of B's, where others share them."""
    smem: int
    """Bytes that QuACK lays out."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> ObjectCache:
    """What tests compile the sample into."""
    return ObjectCache(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def compiled(ask: Ask, dumped: Path, objects: ObjectCache) -> dict[int, Compiled]:
    """Some of the sample, by place."""
    ask(f"""
from pathlib import Path
from quack import copy_utils
from tilecast.kernels.build import builder
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.quack_sm90 import fused
LOADS, SIZES, whole, copied = [], [], fused.compile_gemm, copy_utils.block_copy
def sized(gemm, spec, *target):
    before = copy_utils.tma_get_block_copy_fn
    content = whole(gemm, spec, *target)
    assert copy_utils.tma_get_block_copy_fn is before, "QuACK is not as it was"
    SIZES.append(gemm.shared_storage.size_in_bytes())
    return content
def told_of(*args, tma_multicast=None, **kwargs):
    if tma_multicast is None:
        return copied(*args, **kwargs)
    LOADS.append(f"{{tma_multicast['multicast_dim']}} {{tma_multicast['cluster_shape']}}")
    return copied(*args, tma_multicast=tma_multicast, **kwargs)
fused.compile_gemm, copy_utils.block_copy = sized, told_of
def compile_one(name, text, **kind):
    LOADS.clear()
    spec = KernelSpec(parse_config(name), GemmOperands.parse(text), **kind)
    result = builder.compile_into(spec, ObjectCache(Path({str(objects.root)!r})))
    print(json.dumps([LOADS, SIZES.pop(), result.error]))
""")
    found = {}
    for place in LOOKED_INTO:
        spec = SPECS[place]
        for other in dumped.glob("*.ptx"):
            other.unlink()
        kind = {"batched": spec.batched, "any_rows": spec.any_rows}
        asked = f"compile_one({spec.config.name!r}, {spec.operands.text!r}, **{kind})"
        loads, smem, error = json.loads(ask(asked))
        assert error is None
        (path,) = dumped.glob("*.ptx")
        found[place] = Compiled(path.read_text(), loads, smem)
    return found


def test_loads_are_shared_by_the_ctas_of_one_split(compiled: dict[int, Compiled]) -> None:
    """In clusters of 2x1x1, 4x1x4 and 1x2x3."""
    assert compiled[0].loads == ["M (2, 1)", "N (2, 1)"]
    assert compiled[3].loads == ["N (1, 4)", "N (4, 4)"]
    assert compiled[4].loads == ["N (2, 3)", "N (1, 3)"]


@pytest.mark.parametrize("place", [4, 10, 12, 14])
def test_vectors_are_asked_for_before_the_product_and_after_the_kernel_in_front(
    place: int, compiled: dict[int, Compiled]
) -> None:
    """In the order of the code: the wait for that kernel, copies of vectors, products."""
    lines = compiled[place].ptx.splitlines()
    kinds = ("griddepcontrol.wait", "cp.async.ca.shared", "wgmma.mma_async")
    wait, copy, product = ([i for i, line in enumerate(lines) if it in line] for it in kinds)
    assert len(copy) >= len(SPECS[place].operands.extras) > 0
    # The first wait is that of the warp which loads A and B.
    assert len(wait) == 2 and wait[1] < copy[0] < product[0]


@pytest.mark.parametrize("place", [18, 27])
def test_where_groups_end_is_read_after_the_kernel_in_front(
    place: int, compiled: dict[int, Compiled]
) -> None:
    """By the warps that load A and B, and by those that multiply, in the order of the code."""
    assert SPECS[place].operands.groups
    kinds = {"griddepcontrol.wait": "wait", "ld.global": "end", "wgmma.mma_async": "product"}
    found = [kinds[it] for line in compiled[place].ptx.splitlines() for it in kinds if it in line]
    loading = found[: found.index("wait", found.index("end"))]
    multiplying = found[len(loading) : found.index("product")]
    for part in (loading, multiplying):
        assert part.index("wait") < part.index("end")


@pytest.mark.parametrize("place", LOOKED_INTO)
def test_shared_memory_is_what_quack_lays_out(place: int, compiled: dict[int, Compiled]) -> None:
    """But for the kilobyte that its barriers may move the rest by."""
    spec = SPECS[place]
    stated = resources.smem_bytes(cast("QuackConfig", spec.config), spec.operands)
    assert 0 <= stated - compiled[place].smem <= resources.ALIGNMENT


def test_threads_share_evenly_what_they_store() -> None:
    """Of every piece of a tile, in two rounds at least, where TMA does not store rows."""
    kinds = ("bf16:rcr", "bf16xint8:rcr>fp32", "int8:rcr>int32", "bf16:rcr:row-groups")
    for text in (*kinds, "bf16:rcr:silu-mul", "bf16:rcr:alpha+beta-c"):
        operands = GemmOperands.parse(text)
        whole: Any = space(operands, GPUS[0], [QUACK_SM90.name]).configs
        c = QUACK_SM90.geometry(whole)
        rows, columns = resources.epilogue_tile(c, operands)
        storing = c.warp_groups // np.where(c.ping_pong, 2, 1)
        assert (rows * columns % (2 * storing * resources.WARP_GROUP) == 0).all()


def test_kernels_compile_without_a_gpu_and_without_spills(
    objects: ObjectCache, compiled: dict[int, Compiled]
) -> None:
    """Those that were looked into are there already.

    ``setmaxnreg`` would wait for ever for registers that a CTA was not launched with.
    """
    results = list(compile_all(SPECS, objects, 2))
    assert {result.error for result in results} == {None}
    for spec in SPECS:
        facts, config = objects.resources(spec), cast("QuackConfig", spec.config)
        assert facts is not None
        assert facts.spill_bytes == 0, spec
        assert facts.registers <= resources.launch_registers(config), spec
        groups = resources.mma_warp_groups(config)
        load, mma = resources.registers(config, spec.operands)
        assert load + groups * mma <= facts.registers * (groups + 1), spec


def test_quack_is_imported_in_no_process_of_the_user(tmp_path: Path) -> None:
    """But by `tilecast doctor`, which is asked whether it can be."""
    code = f"""
import sys
from pathlib import Path
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.candidates import space
from tilecast.kernels.families import parse_config
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.spec import KernelSpec
spec = KernelSpec(parse_config({SAMPLE[1][1]!r}), LINEAR_BF16)
(result,) = compile_all([spec], ObjectCache(Path({str(tmp_path / "objects")!r})), 1)
print(result.error, [name for name in sys.modules if name.split(".")[0] in ("quack", "cutlass")])
"""
    assert python(code).stdout == "None []\n"
