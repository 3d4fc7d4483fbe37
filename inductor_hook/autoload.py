"""What PyTorch calls when it is imported: the entry point ``tilecast`` of ``torch.backends``.

Every ``import torch`` pays for this module, so it reads one variable and imports nothing else.
"""

import os

VARIABLE = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"
BACKEND = "TILECAST"
"""Our name in it."""


def names(backends: str, backend: str = BACKEND) -> bool:
    """Whether a list of GEMM backends names one, us when left out."""
    return backend in map(str.strip, backends.upper().split(","))


def autoload() -> None:
    """Install the hook when the list of GEMM backends names ``TILECAST``; return at once if not.

    ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps PyTorch from calling it.
    """
    if names(os.environ.get(VARIABLE, "")):
        from tilecast.inductor_hook.installation import install_from_environment

        install_from_environment()
