"""What PyTorch calls when it is imported: the entry point ``tilecast`` of ``torch.backends``.

Every ``import torch`` pays for this module, so it reads one variable and imports nothing.
"""

import os

VARIABLE = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"


def autoload() -> None:
    """Install the hook when the list of GEMM backends names ``TILECAST``; return at once if not.

    ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps PyTorch from calling it.
    """
    named = os.environ.get(VARIABLE, "").upper().split(",")
    if "TILECAST" in map(str.strip, named):
        from tilecast.inductor_hook.installation import install_from_environment

        install_from_environment()
