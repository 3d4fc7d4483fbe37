"""What PyTorch calls when it is imported: the entry point ``tilecast`` of ``torch.backends``.

Every ``import torch`` pays for this module, so it reads two variables and imports nothing else.
"""

import os

VARIABLE = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"
BACKEND = "TILECAST"
"""Our name in it."""
EAGER = "TILECAST_EAGER"
"""Routes eager multiplications, unless it is empty or 0."""
MODEL = "TILECAST_MODEL"
"""Names the folder of the model that is taken instead of the shipped ones."""


def names(backends: str, backend: str = BACKEND) -> bool:
    """Whether a list of GEMM backends names one, us when left out."""
    return backend in map(str.strip, backends.upper().split(","))


def autoload() -> None:
    """Do what two variables ask for, and return at once where that is nothing.

    The hook is installed when the list of GEMM backends names ``TILECAST``, and eager
    multiplications are routed with ``TILECAST_EAGER=1``.

    ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps PyTorch from calling it.
    """
    try:
        if names(os.environ.get(VARIABLE, "")):
            from tilecast.inductor_hook.installation import install_from_environment

            install_from_environment()
        if os.environ.get(EAGER, "") not in ("", "0"):
            from tilecast.inductor_hook.dispatch.switch import enable_from_environment

            enable_from_environment()
    # Whatever it is that cannot be imported: PyTorch can.
    except Exception as error:
        import logging

        logging.getLogger(__name__).warning("tilecast: loading failed (%s); it is not used", error)
