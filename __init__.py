"""tilecast: a learned selector of CuTe DSL GEMM kernels.

PyTorch's own import passes through here, so nothing is imported before it is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilecast.inductor_hook.installation import install, installed, uninstall

    __version__: str

__all__ = ["__version__", "install", "installed", "uninstall"]


def __getattr__(name: str) -> object:
    """Look up the version, or a function of `tilecast.inductor_hook`."""
    if name == "__version__":
        from importlib.metadata import version

        return version("tilecast")
    if name in __all__:
        from tilecast.inductor_hook import installation

        return getattr(installation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
