"""What PyTorch calls when it is imported: the entry point ``tilecast`` of ``torch.backends``.

Every ``import torch`` pays for this module, so it reads three variables and imports nothing heavy.
"""

import os

from tilecast.inductor_hook.names import EAGER, INVARIANT, VARIABLE, names, switched_on


def autoload() -> None:
    """Do what three variables ask for, and return at once where that is nothing.

    The hook is installed when the list of GEMM backends names ``TILECAST``, and eager
    multiplications are switched to tilecast with ``TILECAST_EAGER=1``. With
    ``TILECAST_INVARIANT=1`` both are done.

    ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps PyTorch from calling it.
    """
    try:
        invariant = switched_on(INVARIANT, os.environ)
        if invariant or names(os.environ.get(VARIABLE, "")):
            from tilecast.inductor_hook.installation import install_from_environment

            install_from_environment()
        if switched_on(EAGER, os.environ, default=invariant):
            from tilecast.inductor_hook.dispatch.switch import enable
            from tilecast.inductor_hook.settings import from_environment

            named = from_environment(os.environ)
            enable(named["model"], power=named["power"], invariant=invariant)
    # PyTorch's own import must not fail because something of tilecast cannot be imported.
    except Exception as error:
        import logging

        logging.getLogger(__name__).warning(
            "tilecast: loading failed (%s); PyTorch goes on without", error
        )
