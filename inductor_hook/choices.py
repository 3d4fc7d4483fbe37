"""The choices handler: what Inductor would benchmark, and ours added to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from types import MethodType
from typing import Any

from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.select_algorithm import get_algorithm_selector_cache
from torch._inductor.utils import _use_autotune_backend, use_aten_gemm_kernels
from torch._logging._internal import getArtifactLogger

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.inductor_hook import report
from tilecast.inductor_hook.autoload import BACKEND
from tilecast.inductor_hook.installation import active
from tilecast.inductor_hook.problems import Matmul, NotCovered, read
from tilecast.inductor_hook.selection import (
    Settings,
    gpu_of,
    portfolio,
    shortlist,
)
from tilecast.inductor_hook.template import Choice, TilecastCaller, template
from tilecast.inductor_hook.versions import is_last_call, template_params
from tilecast.kernels.builder import object_builder

# Under the name of Inductor, whose handlers TORCH_LOGS sets up; our own would reach none.
log = getArtifactLogger("torch._inductor.tilecast", "autotuning")


TIE = 0.005
"""Choices of ours closer than this count as equal, and the model's order decides: Inductor's
benchmark repeats within 1.3% at the median, and overturned 43% of the model's right first choices
(benchmarks/results/inductor_timing.json)."""


class TilecastChoices(InductorChoices):
    """Adds our choices for multiplications to those of another handler.

    Made by `compose`, so that whatever else the other handler decides stays decided by it.
    """

    _inner: InductorChoices

    def _finalize_template_configs(
        self,
        template_choices: dict[str, Any],
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> list[KernelTemplateChoice]:
        """The choices of one multiplication; see `InductorChoices`."""

        def stock() -> list[KernelTemplateChoice]:
            return self._inner._finalize_template_configs(
                template_choices, kernel_inputs, templates, op_name, kwarg_overrides
            )

        settings = active()
        tuned = config.max_autotune or config.max_autotune_gemm
        if not settings or not tuned or not _use_autotune_backend(BACKEND):
            return stock()
        last = is_last_call(op_name, templates)
        sole = settings.k == 1
        ours = self._ours(settings, kernel_inputs, op_name) if last or sole else []
        if ours and sole:
            # The others are generators: those that are not asked for cost nothing.
            return ours if last else []
        found = [*stock(), *(ours if last else [])]
        if not found and last and not use_aten_gemm_kernels():
            return self._net(kernel_inputs, op_name)
        return found

    def uuid(self) -> tuple[Any, ...]:
        """What Inductor's caches see of this handler: the settings and the model behind them."""
        inner = getattr(self._inner, "uuid", None)
        return (
            *cache_key(active()),
            inner() if inner else type(self._inner).__qualname__,
        )

    def _ours(self, settings: Settings, kernel_inputs: Any, op: str) -> list[KernelTemplateChoice]:
        try:
            matmul = read(kernel_inputs, op)
            device = kernel_inputs.device().index or 0
            choices = plan(settings, matmul, op, gpu_of(device))
            layout = kernel_inputs.output_layout(flexible=False)
            found = [
                KernelTemplateChoice(
                    template(), template_params(choice=choice), {}, layout, kernel_inputs
                )
                for choice in choices
            ]
            # Generated here and now: where none can be, others have to be there.
            return [ktc for ktc in found if ktc.choice is not None]
        except NotCovered as reason:
            report.count(f"not covered: {op}")
            log.info("tilecast: no choice for %s: %s", op, reason)
            return []
        except TilecastError as reason:
            report.count(f"not covered: {op}")
            report.say_once("no model", f"some multiplications get no choice of ours: {reason}")
            log.info("tilecast: no choice for %s: %s", op, reason)
            return []
        # Whatever goes wrong in here, the graph compiles without us.
        except Exception as error:
            report.warn_once("choosing kernels", error)
            return []

    def _net(self, kernel_inputs: Any, op: str) -> list[KernelTemplateChoice]:
        """ATen's choice, for what we do not cover where no other backend was named."""
        from torch._inductor.kernel import bmm, mm

        widened = kernel_inputs.out_dtype() != kernel_inputs.dtype()
        names = {
            ("mm", False): mm.aten_mm,
            ("mm", True): mm.aten_mm_dtype,
            ("addmm", False): mm.aten_addmm,
            ("bmm", False): bmm.aten_bmm,
            ("bmm", True): bmm.aten_bmm_dtype,
            ("baddbmm", False): bmm.aten_baddbmm,
        }
        aten = names.get((op, widened))
        if aten is None:
            return []
        overrides = {"out_dtype": kernel_inputs.out_dtype()} if widened else {}
        return list(self._inner.get_ktc(kernel_inputs, aten, op, overrides))


def compose(inner: InductorChoices) -> InductorChoices:
    """A handler that decides like ``inner`` and has our choices too."""
    inner = without(inner)
    kind = type("TilecastChoices", (TilecastChoices, type(inner)), {})
    handler = kind.__new__(kind)
    handler.__dict__.update(inner.__dict__, _inner=inner)
    # In the instance, too: a handler of PyTorch 2.15 that joins several looks for a method there
    # before it asks them one after another.
    handler.__dict__["_finalize_template_configs"] = MethodType(
        TilecastChoices._finalize_template_configs, handler
    )
    _follow_autotuning()
    return handler


def without(handler: InductorChoices) -> InductorChoices:
    """The handler that `compose` was given, or the same where it was not ours."""
    return handler._inner if isinstance(handler, TilecastChoices) else handler


def cache_key(settings: Settings | None) -> tuple[Any, ...]:
    """What a compiled graph depends on beside the graph: settings, model, our version."""
    if settings is None:
        return ("tilecast", None)
    return ("tilecast", _version(), settings.k, settings.power, settings.digest)


def plan(settings: Settings, matmul: Matmul, op: str, gpu: Hardware) -> list[Choice]:
    """The choices for a multiplication, best first; their kernels start to compile.

    Raises:
        TilecastError: there is no model for the GPU, dtypes and majors.
    """
    start = time.perf_counter()
    predictions = shortlist(settings, matmul.hint, gpu)
    if matmul.m_range:
        shortlists = [(portfolio(settings, tuple(matmul.sweep()), gpu), predictions[0])]
    else:
        shortlists = [((prediction.config,), prediction) for prediction in predictions]
    choices = [
        Choice(
            matmul,
            op == "addmm",
            configs,
            gpu.arch,
            settings.digest,
            settings.model or "",
            settings.power,
            prediction.microseconds,
            sole=settings.k == 1,
        )
        for configs, prediction in shortlists
    ]
    builder = object_builder()
    for choice in choices:
        for spec in choice.specs:
            builder.start(spec)
    _log_plan(op, matmul, choices, time.perf_counter() - start)
    return choices


def _log_plan(op: str, matmul: Matmul, choices: Sequence[Choice], seconds: float) -> None:
    report.count("problems")
    operands = matmul.hint.operands
    shown = ", ".join(
        f"{position}. {' or '.join(config.name for config in choice.configs)} "
        f"(predicted {choice.microseconds / 1000:.4f} ms)"
        for position, choice in enumerate(choices, 1)
    )
    log.info(
        "tilecast: %s %s %s %s, ranked in %.1f ms: %s",
        op,
        matmul.hint,
        operands.dtype,
        operands.layout,
        seconds * 1000,
        shown,
    )


def _follow_autotuning() -> None:
    """Have Inductor's autotuner pass us its choices and its timings."""
    cache = get_algorithm_selector_cache()
    if _only_sole not in cache.preprocessing_fns:
        cache.add_preprocessing_fn(_only_sole)
    if _settle not in cache.feedback_saver_fns:
        cache.add_feedback_saver(_settle)


def _only_sole(choices: list[Any]) -> list[Any]:
    """Of choices with a sole one of ours that one: backends that ask nobody may have added more."""
    sole = [c for c in choices if isinstance(c, TilecastCaller) and c.choice.sole]
    return sole or choices


def _settle(timings: dict[Any, float], op: str, nodes: Any, *rest: Any) -> None:
    """Tell what Inductor measured of our choices, and let the model decide between equals.

    Args:
        timings: milliseconds by caller; those of ours that only seem faster are taken out.
        op: the operator.
        nodes: its operands.
        rest: what else the installed PyTorch passes on.
    """
    ours = [caller for caller in timings if isinstance(caller, TilecastCaller)]
    if not ours:
        return
    fastest = min(timings.values())
    for caller in ours:
        log.info(
            "tilecast: %s %s %s: predicted %.4f ms, benchmarked %.4f ms, %.3fx the fastest choice",
            op,
            caller.choice.matmul.hint,
            caller.name,
            caller.choice.microseconds / 1000,
            timings[caller],
            timings[caller] / fastest,
        )
    limit = min(timings[caller] for caller in ours) * (1 + TIE)
    preferred = next(caller for caller in ours if timings[caller] <= limit)
    for caller in ours:
        if timings[caller] < timings[preferred]:
            del timings[caller]
    report.count("won" if timings[preferred] <= min(timings.values()) else "lost")


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("tilecast")
