"""Functions of PyTorch's modules in whose place ours are; each keeps the one that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_STOCK = "tilecast_stock"
"""The attribute of ours that keeps the other."""


def stock(home: Any, name: str) -> Callable[..., Any]:
    """PyTorch's function of that name, whichever is in its place.

    Raises:
        AttributeError: the module has none.
    """
    found = getattr(home, name)
    return getattr(found, _STOCK, found)


def replace(home: Any, name: str, ours: Callable[..., Any]) -> None:
    """Put ours in the place of PyTorch's, or of another of ours there."""
    setattr(ours, _STOCK, stock(home, name))
    setattr(home, name, ours)


def restore(home: Any, name: str) -> None:
    """Put PyTorch's back; nothing to do where it is in its place, or has none."""
    if hasattr(home, name):
        setattr(home, name, stock(home, name))
