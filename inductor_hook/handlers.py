"""Makes the choices handlers of Inductor's threads offer tilecast kernels, too."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from torch._inductor.choices import InductorChoices
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.select_algorithm import get_algorithm_selector_cache

from tilecast.inductor_hook.offer.offer import offered
from tilecast.inductor_hook.patch import patching
from tilecast.inductor_hook.settings import active, cache_key
from tilecast.inductor_hook.timing.choice_benchmark import benchmarked
from tilecast.inductor_hook.timing.decide import settle

_handlers: WeakValueDictionary[int, InductorChoices] = WeakValueDictionary()
"""All that `bind` was given, in whatever thread, by identity, since a user's may not hash: a thread
keeps its handler from one installation to the next."""
_asking: ContextVar[Any] = ContextVar("tilecast_asking", default=None)
"""The product that choices are asked for."""
_NAME = "_finalize_template_configs"


def bind(handler: InductorChoices) -> InductorChoices:
    """Have a handler offer tilecast's choices too, until `release`.

    What Inductor has in place of a handler that is not set stays as it is.
    """
    if not hasattr(handler, _NAME):
        return handler
    # Also of one that is bound: others may have cleared what the autotuner calls.
    if active():
        _follow_autotuning(True)
    if patching.is_replaced(handler, _NAME):
        return handler
    stock, stock_uuid = handler._finalize_template_configs, getattr(handler, "uuid", None)
    kind = type(handler)

    def finalize(
        template_choices: Any,
        kernel_inputs: Any,
        templates: Any,
        op_name: str,
        kwarg_overrides: Any = None,
        *rest: Any,
        **kw: Any,
    ) -> list[KernelTemplateChoice]:
        def theirs(asked: Any) -> list[KernelTemplateChoice]:
            return stock(asked, kernel_inputs, templates, op_name, kwarg_overrides, *rest, **kw)

        # Another handler, which asks this one, has tilecast's already.
        if _asking.get() is kernel_inputs:
            return theirs(template_choices)
        token = _asking.set(kernel_inputs)
        try:
            return offered(
                theirs, template_choices, kernel_inputs, templates, op_name, kwarg_overrides
            )
        finally:
            _asking.reset(token)

    def uuid() -> tuple[Any, ...]:
        return (*cache_key(active()), stock_uuid() if stock_uuid else kind.__qualname__)

    patching.replace(handler, _NAME, finalize)
    # Without one PyTorch refuses a user's class, whose code no key would see.
    if stock_uuid or kind.__module__.startswith("torch."):
        patching.replace(handler, "uuid", uuid)
    _handlers[id(handler)] = handler
    return handler


def release() -> None:
    """Undo every `bind`, and leave Inductor's autotuner alone."""
    for handler in list(_handlers.values()):
        patching.restore(handler, _NAME)
        patching.restore(handler, "uuid")
    _follow_autotuning(False)


def _follow_autotuning(wanted: bool) -> None:
    """Have Inductor's autotuner pass on its choices and its timings, or no longer."""
    autotuner: Any = get_algorithm_selector_cache()
    patching.include(autotuner.preprocessing_fns, benchmarked, wanted)
    patching.include(autotuner.feedback_saver_fns, settle, wanted)
