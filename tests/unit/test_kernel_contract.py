"""What our SM90 kernel relies on in ``cutlass.operators``, none of which is promised.

When a newer version breaks one of these, the kernel must be read against it before the pin moves.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import tomllib
from importlib.metadata import version
from pathlib import Path

import cutlass
import cutlass.cute as cute
import pytest
from cutlass.operators.providers.cutedsl.gemm.implementations.sm90_static_persistent_impl import (  # pyright: ignore[reportMissingImports]
    Sm90StaticPersistentGemmKernel,
)

from tilecast.kernels.cutlass_sm90.config import Sm90Config
from tilecast.kernels.cutlass_sm90.kernel import TunableGemmKernel

ROOT = Path(__file__).parents[2]

CONFIG = Sm90Config(128, 256, 64, cluster_m=2, stages=4, warp_groups=2, raster="n", swizzle=4)

SET_IN_INIT = {
    "acc_dtype", "cluster_shape_mn", "swizzle_size", "raster_along_m", "tile_shape_mnk",
    "atom_layout_mnk", "num_mcast_ctas_a", "num_mcast_ctas_b", "is_a_mcast", "is_b_mcast",
    "tiled_mma", "occupancy", "num_mma_warp_groups", "num_threads_per_warp_group",
    "threads_per_cta", "load_register_requirement", "mma_register_requirement", "ab_stage",
    "epi_stage", "a_smem_layout_staged", "b_smem_layout_staged", "epi_smem_layout_staged",
    "epi_tile", "shared_storage", "num_mma_threads", "epilog_sync_barrier",
}  # fmt: skip
"""Attributes that the base class makes and ours sets to other values."""

SIGNATURES = {
    "__init__": "acc_dtype tile_shape_mn cluster_shape_mn swizzle_size raster_along_m",
    "_setup_attributes": "",
    "_make_smem_layouts": "tile_shape_mnk epi_tile a_dtype a_layout b_dtype b_layout ab_stage "
    "c_dtype c_layout epi_stage",
    "_make_tma_atoms_and_tensors": "tensor smem_layout_staged smem_tile mcast_dim",
    "_make_tma_store_atoms_and_tensors": "tensor_c epi_smem_layout_staged epi_tile",
    "_compute_grid": "c tile_shape_mnk cluster_shape_mn swizzle_size raster_along_m "
    "max_active_clusters",
    "kernel": "tma_atom_a mA_mkl tma_atom_b mB_nkl tma_atom_c mC_mnl tiled_mma cta_layout_mnk "
    "a_smem_layout_staged b_smem_layout_staged epi_smem_layout_staged tile_sched_params",
}
"""Methods that are called or overridden, with their parameters in order."""

SHARED_STORAGE = {"mainloop_pipeline_array_ptr", "sA", "sB", "sC"}
"""Fields of the shared-memory struct that the device code reads by name."""


@pytest.mark.parametrize("package", ["nvidia-cutlass-dsl", "nvidia-cutlass-operators"])
def test_the_installed_version_is_the_pinned_one(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [line.split("==") for line in project["dependencies"] if line.startswith(package)]
    assert [pin for _, pin in pins] == [version(package)]


@pytest.fixture(scope="module")
def base() -> object:
    return Sm90StaticPersistentGemmKernel(cutlass.Float32, (128, 128), (1, 1))


@pytest.mark.parametrize("attribute", sorted(SET_IN_INIT))
def test_base_sets_the_attribute(base: object, attribute: str) -> None:
    assert attribute in vars(base)


@pytest.mark.parametrize("method", SIGNATURES)
def test_base_method_takes_these_parameters(method: str) -> None:
    parameters = list(inspect.signature(getattr(Sm90StaticPersistentGemmKernel, method)).parameters)
    assert [name for name in parameters if name != "self"] == SIGNATURES[method].split()


def _attributes_read(method: str, of: str) -> set[str]:
    source = textwrap.dedent(inspect.getsource(getattr(Sm90StaticPersistentGemmKernel, method)))
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if isinstance(node.value, ast.Name) and node.value.id == of
    }


def test_device_code_reads_only_attributes_that_we_know() -> None:
    """One that it read and we did not set would keep the base class's value, silently."""
    known = set(vars(TunableGemmKernel(CONFIG))) | set(dir(Sm90StaticPersistentGemmKernel))
    known |= {"a_dtype", "b_dtype", "c_dtype", "a_layout", "b_layout", "c_layout"}
    assert _attributes_read("kernel", "self") <= known | {"cta_layout_mnk"}


def test_device_code_reads_these_fields_of_shared_storage() -> None:
    assert _attributes_read("kernel", "storage") == SHARED_STORAGE


def test_every_knob_reaches_the_kernel() -> None:
    kernel = TunableGemmKernel(CONFIG)
    assert kernel.cluster_shape_mn == (2, 1)
    assert kernel.swizzle_size == 4
    assert kernel.raster_along_m is False
    assert kernel.atom_layout_mnk == (2, 1, 1)
    assert kernel.num_mma_warp_groups == 2
    assert kernel.num_mma_threads == 256
    assert kernel.threads_per_cta == 384
    assert kernel.mma_register_requirement == 232
    assert kernel.load_register_requirement == 40
    assert kernel.occupancy == 1


def test_the_dsl_has_what_compilation_uses() -> None:
    for name in ("compile", "GPUArch", "EnableTVMFFI", "sym_int32", "sym_int64"):
        assert hasattr(cute, name), name
    for name in ("load_module", "make_fake_stream", "make_fake_tensor"):
        assert hasattr(cute.runtime, name), name
