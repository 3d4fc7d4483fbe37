"""Learned kernel choices for TorchInductor, and multiplications that need no tuning.

Nothing happens on import, and nothing is imported before it is used: PyTorch's own import passes
through here.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilecast.inductor_hook.eager import addmm, bmm, mm
    from tilecast.inductor_hook.installation import install, installed, uninstall

__all__ = ["addmm", "bmm", "install", "installed", "mm", "uninstall"]


def __getattr__(name: str) -> object:
    """Look a public function up in the module that defines it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "installation" if "install" in name else "eager"
    return getattr(import_module(f"{__name__}.{home}"), name)
