"""tilecast's requirements beside those of software that also uses CuTe DSL.

The table has what their wheels state of packages that tilecast requires, too. A range is tried with
releases that exist.
"""

from __future__ import annotations

from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tilecast.inductor_hook.patch.torch_versions import NEWEST, OLDEST

NEIGHBOURS = {
    "vLLM 0.33.0, 2026-11-02": (
        "apache-tvm-ffi==0.1.11",
        "filelock>=3.20.3",
        "nvidia-cutlass-dsl[cu13]==4.8.0",
        "quack-kernels==0.6.5",
        "torch==2.14.0",
    ),
    "SGLang 0.5.23, 2026-10-30": (
        "apache-tvm-ffi==0.1.11",
        "nvidia-cutlass-dsl[cu13]==4.8.0",
        "quack-kernels==0.6.5",
        "torch==2.14.1",
    ),
    "flash-attn-4 4.0.0b36, 2026-10-21": (
        "apache-tvm-ffi<0.2,>=0.1.11",
        "nvidia-cutlass-dsl>=4.6.2",
        "quack-kernels>=0.5.3",
    ),
    "FlashInfer 0.7.2.post1, 2026-10-23": (
        "apache-tvm-ffi<0.2,>=0.1.11",
        "nvidia-cutlass-dsl>=4.6.2a0",
        "packaging>=24.2",
    ),
    "Helion 1.5.1, 2026-10-15": ("apache-tvm-ffi", "scikit-learn>=1.3.0"),
}
"""Without their extras: FlashInfer's b12x and Helion's cute pin an older CuTe DSL."""
RELEASES = {
    "apache-tvm-ffi": ("0.1.9", "0.1.11", "0.1.15.post2"),
    "filelock": ("3.20.3", "4.2.11"),
    "nvidia-cutlass-dsl": ("4.7.1", "4.8.0", "4.8.1"),
    "packaging": ("23.0", "26.0"),
    "quack-kernels": ("0.6.4", "0.6.5"),
    "scikit-learn": ("1.3.0", "1.9.1"),
    "torch": ("2.11.0", "2.14.0", "2.14.1", "2.15.0"),
}


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_a_release_of_each_package_suits_both(neighbour: str) -> None:
    ours = {one.name: one.specifier for one in map(Requirement, requires("tilecast") or ())}
    for text in NEIGHBOURS[neighbour]:
        theirs = Requirement(text)
        suiting = [
            release
            for release in RELEASES[theirs.name]
            if release in theirs.specifier and release in ours[theirs.name]
        ]
        assert suiting, f"{theirs} and tilecast's {ours[theirs.name]}"


def test_the_range_of_pytorch_is_the_one_that_the_readme_states() -> None:
    oldest, newest = (".".join(map(str, one)) for one in (OLDEST, NEWEST))
    assert f"torch>={oldest}" in (requires("tilecast") or ())
    readme = Path(__file__).parents[2].joinpath("README.md").read_text()
    assert f"PyTorch {oldest} or later (tested to {newest})" in readme
