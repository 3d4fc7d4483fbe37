"""What PyTorch calls when it is imported: the entry point ``tilecast`` of ``torch.backends``.

Every ``import torch`` pays for this module, so it reads three variables and imports nothing heavy.
"""

import logging
import os
import sys
from functools import partial
from types import ModuleType

from tilecast.inductor_hook.names import (
    BACKEND,
    EAGER,
    INVARIANT,
    VARIABLE,
    names,
    switched_on,
)


def autoload() -> None:
    """Do what three variables ask for, and return at once where that is nothing.

    The hook is installed when the list of GEMM backends names ``TILECAST``, and eager
    multiplications are switched to tilecast with ``TILECAST_EAGER=1``. With
    ``TILECAST_INVARIANT=1`` both are done.

    Where the list does not name it, but Inductor's configuration comes to, a warning says that it
    is not installed.

    ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps PyTorch from calling it.
    """
    try:
        invariant = switched_on(INVARIANT, os.environ)
        if invariant or names(os.environ.get(VARIABLE, "")):
            from tilecast.inductor_hook.installation import install_from_environment

            install_from_environment()
        else:
            sys.meta_path.insert(0, _InductorWatch())  # type: ignore[arg-type]
        if switched_on(EAGER, os.environ, default=invariant):
            from tilecast.inductor_hook.dispatch.switch import enable
            from tilecast.inductor_hook.settings import from_environment

            named = from_environment(os.environ)
            enable(named["model"], power=named["power"], invariant=invariant)
    # PyTorch's own import must not fail because something of tilecast cannot be imported.
    except Exception as error:
        logging.getLogger(__name__).warning(
            "tilecast: loading failed (%s); PyTorch goes on without", error
        )
        sys.meta_path.insert(0, _InductorWatch(said=True))  # type: ignore[arg-type]


class _InductorWatch:
    """Finds no module, but sees that Inductor is imported."""

    def __init__(self, said: bool = False):
        """Take whether it was said before that tilecast is not installed."""
        self.seen, self.said = False, said

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Have Inductor say where TILECAST is named in vain, once that is imported."""
        if name == "torch._inductor" and not self.seen:
            self.seen = True
            from wrapt import register_post_import_hook

            register_post_import_hook(partial(_help_where_in_vain, self.said), f"{name}.utils")


def _help_where_in_vain(said: bool, utils: ModuleType) -> None:
    """Have one warning say so, unless it was said, and ATen multiply where nobody else would."""
    asked = "_use_autotune_backend"
    stock = getattr(utils, asked, None)
    if stock is None:
        return

    def use_autotune_backend(backend: str) -> bool:
        nonlocal said
        settings = sys.modules.get("tilecast.inductor_hook.settings")
        named = stock(BACKEND) and not (settings and settings.active())
        if named and not said:
            said = True
            logging.getLogger(__name__).warning(
                "tilecast: max_autotune_gemm_backends names %s, but tilecast is not installed, so "
                "PyTorch's own kernels are used; set %s, or call tilecast.inductor_hook.install()",
                *(BACKEND, VARIABLE),
            )
        return stock(backend) or (named and backend.upper() == "ATEN")

    setattr(utils, asked, use_autotune_backend)
