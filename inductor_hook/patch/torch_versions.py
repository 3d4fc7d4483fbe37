"""What differs between the versions of PyTorch that the hook runs on: 2.11 to 2.15."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any

from tilecast.inductor_hook.names import BACKEND

OLDEST = (2, 11)
"""The first version with CuteDSL templates as the hook uses them."""
OLDEST_NVGEMM = (2, 14)
"""The first version whose NVGEMM backend takes its kernels from ``cutlass.operators``."""
NVGEMM_HOME = "torch._inductor.heuristics.template.nv_universal_gemm"
"""The module that keeps the object which ranks the kernels of NVGEMM, since then."""
OLDEST_FLEX_GEMM = (2, 15)
"""The first version whose FlexGEMM asks QuACK for the legal configs of a call, on any GPU."""
FLEX_GEMM_HOME = "torch._inductor.kernel.flex_gemm.lowering"
"""The module that asks, since then."""

HANDLERS_HOME = "torch._inductor.virtualized"
"""The module that hands out each thread's choices handler, on every version."""
PATTERNS_HOME = "torch._inductor.fx_passes.post_grad"
"""The module that keeps the list of patterns that graphs are rewritten with, on every version."""
PADDING_HOME = "torch._inductor.fx_passes.pad_mm"
"""The module that pads what is multiplied, on every version."""


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed PyTorch."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def is_last_call(op: str, templates: Sequence[Any]) -> bool:
    """Whether Inductor asks for the last time for the choices of a multiplication.

    It asks once, except for addmm since 2.12: first for ATen's choices and those of a contiguous
    copy, with the bias as it is, and last for the others, with the bias expanded as ours expect it.
    """
    if op != "addmm" or torch_version() < (2, 12):
        return True
    from torch._inductor.kernel import mm

    early = (mm.aten_addmm, mm.aten_bias_addmm, mm.addmm_contiguous_subgraph_template)
    return not templates or any(template not in early for template in templates)


def fast_accumulation(overrides: Mapping[str, Mapping[str, Any]] | None) -> bool | None:
    """``use_fast_accum`` of a ``scaled_mm``; None where Inductor says nothing of it.

    On every version it is no input of the product: it reaches choices as what templates are told,
    ATen's under its own name and Triton's in capitals. ATen's is asked wherever we are named.

    Args:
        overrides: what Inductor tells each template, by its uid.
    """
    told = {
        bool(value)
        for options in (overrides or {}).values()
        for name, value in options.items()
        if name.lower() == "use_fast_accum"
    }
    return told.pop() if told else None


def stock_handler(factory: Any) -> Any:
    """The choices handler without ours: what ``config.inductor_choices_class``, or None, makes."""
    from torch._inductor import choices

    # 2.15: other packages may have registered theirs beside it.
    create = getattr(choices, "create_inductor_choices", None)
    if create:
        return create(factory)
    return factory() if factory else choices.InductorChoices()


def template_params(**params: Any) -> Any:
    """What a template is rendered with; its class has moved in 2.15."""
    from torch._inductor import kernel_template_choice

    return vars(kernel_template_choice)["DictKernelTemplateParams"](params)


def autotuned(op: str, choices: Sequence[Any], nodes: Sequence[Any], layout: Any) -> Any:
    """What the fastest of some choices becomes in the graph; it is benchmarked here and now.

    Since 2.13 Inductor also returns the choice; since 2.15 a setting would put the benchmark off.
    """
    from torch._inductor import config
    from torch._inductor.select_algorithm import autotune_select_algorithm

    with config.patch(pipeline_max_autotune_gemm=False):
        found = autotune_select_algorithm(
            op, [*choices], nodes, layout, return_multi_template=False
        )
    return found[0] if isinstance(found, tuple) else found


def benchmarks_calls_here(choices: Sequence[Any]) -> bool:
    """Whether Inductor benchmarks all of some choices in this process, one call after another.

    It does so elsewhere if it is told to, and since 2.15 whenever CUTLASS's are among them; since
    2.15 it can also be told to do so in CUDA graphs of its own.
    """
    from torch._inductor import config
    from torch._inductor.codegen.cutlass.kernel import CUTLASSTemplateCaller

    elsewhere = config.autotune_in_subproc or config.pipeline_max_autotune_gemm
    in_graphs = getattr(config, "autotune_cudagraph_benchmarking", False)
    cutlass = any(isinstance(choice, CUTLASSTemplateCaller) for choice in choices)
    return not (elsewhere or in_graphs or cutlass)


def change(config: Any, name: str, how: Callable[[Any], Any]) -> None:
    """Change an entry of Inductor's configuration for every thread.

    Since 2.12 an assignment is seen by the thread that made it alone; the others see the default,
    which any thread can change back. So this thread gets a value of its own only if it had one.
    ``how`` takes a value, this thread's or the default, and returns the new one.
    """
    entry = config._config[name]
    here, elsewhere = getattr(config, name), entry.default
    entry.default = how(elsewhere)
    if here == elsewhere:
        # The one way, on every version, to drop a thread's own value and what was computed of it.
        delattr(config, name)
        entry.hide = False
    else:
        setattr(config, name, how(here))
    # What other threads have computed of all entries, and would go on to name graphs by.
    for computed in ("_get_dict_dirty_keys_var", "_get_dict_cache_var"):
        if computed in vars(config):
            setattr(config, computed, ContextVar(computed, default=None))


def ask_for_aten() -> None:
    """Have Inductor ask ATen for choices wherever a list of backends names us without it.

    Ours may be missing: for an operator that is none of ours, or because we are not installed,
    which another thread or an environment may not know. This stays for good for that reason, and
    does nothing to a list without our name. All of Inductor asks through one function.
    """
    from torch._inductor import utils

    stock = utils._use_autotune_backend
    if hasattr(stock, "__wrapped__"):
        return

    @wraps(stock)
    def use_autotune_backend(backend: str) -> bool:
        return stock(backend) or (backend.upper() == "ATEN" and stock(BACKEND))

    utils._use_autotune_backend = use_autotune_backend
