"""What PyTorch calls when it is imported: the entry point ``tilecast`` of ``torch.backends``.

Every ``import torch`` pays for this module, so it reads one variable and imports nothing else.
"""

import os
from collections.abc import Mapping

VARIABLE = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"
BACKEND = "TILECAST"
"""Our name in it."""


def is_named(environment: Mapping[str, str]) -> bool:
    """Whether the list of GEMM backends in some environment variables names us."""
    return BACKEND in map(str.strip, environment.get(VARIABLE, "").upper().split(","))


def autoload() -> None:
    """Install the hook when the list of GEMM backends names ``TILECAST``; return at once if not.

    ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps PyTorch from calling it.
    """
    if is_named(os.environ):
        from tilecast.inductor_hook.installation import install_from_environment

        install_from_environment()
