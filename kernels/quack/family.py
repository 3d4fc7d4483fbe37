"""What QuACK's kernel families share as families: how they are compiled and launched."""

from __future__ import annotations

from collections.abc import Callable

from tilecast.kernels.spec import KernelSpec

PACKAGES = ("nvidia-cutlass-dsl", "quack-kernels", "apache-tvm-ffi")
"""What QuACK's kernels are compiled by."""
ENVIRONMENT = {"CUTE_DSL_ARCH": "sm_120a"}
"""The GPU that the DSL is to take for this host's: one that no family is for. Into one that kernels
are for it would load each that it compiles; with none named it asks the driver, which makes it
unfit to be forked."""


def launch_with(
    function: Callable[..., object], spec: KernelSpec, clusters: int
) -> Callable[..., object]:
    """What launches a loaded kernel as ``launch(a, b, out, *extras)``, on so many clusters."""
    if spec.operands.extras:
        return lambda a, b, out, *extras: function(a, b, out, extras, clusters)
    return lambda a, b, out: function(a, b, out, clusters)
