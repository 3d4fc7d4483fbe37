"""What differs between the versions of PyTorch that the hook runs on: 2.11 to 2.15."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

from tilecast.inductor_hook.names import BACKEND
from tilecast.inductor_hook.patch import patching

OLDEST = (2, 11)
"""The first version with CuteDSL templates as the hook uses them."""
NEWEST = (2, 15)
"""The newest version that the tests run on."""


class Place(NamedTuple):
    """An attribute of PyTorch's that tilecast changes while it is installed."""

    module: str
    name: str
    """With dots where it is an attribute of an object."""
    since: tuple[int, int] = OLDEST
    """The first version that has it as the hook needs it."""


ATEN = Place("torch._inductor.utils", "_use_autotune_backend")
"""Tells whether a list of backends names one. This stays changed, see `ask_for_aten`."""
CONFIG = Place("torch._inductor.config", "max_autotune_gemm_backends")
"""The list of backends."""
CHOICES_CLASS = Place("torch._inductor.config", "inductor_choices_class")
"""Makes the choices handlers."""
HANDLERS = Place("torch._inductor.virtualized", "_choices._get_handler")
"""Hands out each thread's choices handler."""
PATTERNS = Place("torch._inductor.fx_passes.post_grad", "pass_patterns")
"""The list of patterns that graphs are rewritten with."""
PADDING = Place("torch._inductor.fx_passes.pad_mm", "can_pad")
"""Says whether a product may be padded."""
DECOMPOSITIONS = Place("torch._inductor.decomposition", "decompositions")
"""What becomes of operators before graphs are lowered: of some products sums of elements."""
NVGEMM = Place(
    "torch._inductor.heuristics.template.nv_universal_gemm", "get_nvgemm_heuristics", (2, 14)
)
"""Keeps the object that ranks the kernels of NVGEMM, which are ``cutlass.operators``'."""
FLEX_GEMM = Place("torch._inductor.kernel.flex_gemm.lowering", "flex_gemm_quack_configs", (2, 15))
"""Asks QuACK for the legal configs of a call of FlexGEMM, on any GPU."""
GROUPED = Place("torch._inductor.kernel.mm_grouped", "autotune_select_algorithm")
"""Takes the choices for grouped products, for which no handler is asked."""
FUSION = Place(
    "torch._inductor.codegen.cutedsl.cutedsl_scheduling", "CuteDSLScheduling.can_fuse_horizontal"
)
"""Says whether a CuteDSL template and a kernel that reads the same become one. In 2.11 it raises
NotImplementedError, and the graph does not compile."""
PLACES = (
    *(ATEN, CONFIG, CHOICES_CLASS, HANDLERS, PATTERNS, PADDING, DECOMPOSITIONS, NVGEMM, FLEX_GEMM),
    *(GROUPED, FUSION),
)
"""All that are changed, beside the kernels of operators, which the eager switch replaces, and the
autotuner's lists of functions."""


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed PyTorch."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def is_last_call(op: str, templates: Sequence[Any]) -> bool:
    """Whether Inductor asks for the last time for the choices of a product.

    It asks once, except for addmm since 2.12 where it autotunes: first for ATen's choices and those
    of a contiguous copy, with the bias as it is, and last for the others, with the bias expanded.
    """
    from torch._inductor import config

    tuned = config.max_autotune or config.max_autotune_gemm
    if op != "addmm" or not tuned or torch_version() < (2, 12):
        return True
    from torch._inductor.kernel import mm

    early = (mm.aten_addmm, mm.aten_bias_addmm, mm.addmm_contiguous_subgraph_template)
    return not templates or any(template not in early for template in templates)


def fast_accumulation(overrides: Mapping[str, Mapping[str, Any]] | None) -> bool | None:
    """``use_fast_accum`` of a ``scaled_mm``; None where Inductor does not pass it.

    It is no input of the product, but an option of templates: of ATen's under its own name, of
    Triton's in capitals.

    Args:
        overrides: options by the template's uid.
    """
    found = {
        bool(value)
        for options in (overrides or {}).values()
        for name, value in options.items()
        if name.lower() == "use_fast_accum"
    }
    return found.pop() if found else None


def stock_handler(factory: Any) -> Any:
    """The handler that ``config.inductor_choices_class``, or None, makes."""
    from torch._inductor import choices

    # 2.15: other packages may have registered theirs beside it.
    create = getattr(choices, "create_inductor_choices", None)
    if create:
        return create(factory)
    return factory() if factory else choices.InductorChoices()


def template_params(**params: Any) -> Any:
    """The variables of a template, whose class has moved in 2.15."""
    from torch._inductor import kernel_template_choice

    return vars(kernel_template_choice)["DictKernelTemplateParams"](params)


def autotuned(
    op: str,
    choices: Sequence[Any],
    nodes: Sequence[Any],
    layout: Any,
    makers: Mapping[int, Any],
) -> Any:
    """The node of the fastest of some choices, which are benchmarked now.

    ``makers`` make operands that are not any numbers, of the nodes by their place.

    Since 2.13 Inductor also returns the choice; since 2.15 a setting would put the benchmark off.
    """
    from torch._inductor import config
    from torch._inductor.select_algorithm import autotune_select_algorithm

    with config.patch(pipeline_max_autotune_gemm=False):
        found = autotune_select_algorithm(
            op, [*choices], nodes, layout, input_gen_fns=makers, return_multi_template=False
        )
    return found[0] if isinstance(found, tuple) else found


def benchmarks_calls_here(choices: Sequence[Any]) -> bool:
    """Whether Inductor benchmarks all of some choices in this process, one call after another.

    Settings move this to another process, or since 2.15 to CUDA graphs; since 2.15 CUTLASS's
    choices always go to another process.
    """
    from torch._inductor import config
    from torch._inductor.codegen.cutlass.kernel import CUTLASSTemplateCaller

    elsewhere = config.autotune_in_subproc or config.pipeline_max_autotune_gemm
    in_graphs = getattr(config, "autotune_cudagraph_benchmarking", False)
    cutlass = any(isinstance(choice, CUTLASSTemplateCaller) for choice in choices)
    return not (elsewhere or in_graphs or cutlass)


def ask_for_aten() -> None:
    """Have Inductor ask ATen for choices wherever a list of backends names TILECAST without ATEN.

    TILECAST may have none: for an operator that it does not cover, or because it is not installed,
    which another thread may not know. So this is never undone; it does nothing to other lists.
    """
    from torch._inductor import utils

    stock = patching.stock(utils, ATEN.name)

    @wraps(stock)
    def use_autotune_backend(backend: str) -> bool:
        return stock(backend) or (backend.upper() == "ATEN" and stock(BACKEND))

    patching.replace(utils, ATEN.name, use_autotune_backend)
