"""The one way to change PyTorch, with undo: attributes, lists, configuration, operators' kernels.

`tilecast.inductor_hook.patch.torch_versions` names the places. A change is made in the object that
PyTorch looks at, whatever was there before is kept beside it, and undoing twice does nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from tilecast.heuristics.errors import TilecastError

_STOCK, _OWN = "tilecast_stock", "tilecast_own"
"""The attributes of a replacement that keep what it replaces, and whether that was an attribute of
the object itself, not of its class or, of a class, of one that it inherits from."""


def stock(home: Any, name: str) -> Callable[..., Any]:
    """PyTorch's function of a module or an object, also where it is replaced.

    Raises:
        AttributeError: there is none of that name.
    """
    found = getattr(home, name)
    return getattr(found, _STOCK, found)


def replace(home: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Put a function in the place of PyTorch's, or of an earlier replacement.

    It becomes an attribute of the object itself, so that others of its class keep theirs.
    """
    found = getattr(home, name, None)
    setattr(replacement, _STOCK, getattr(found, _STOCK, found))
    setattr(replacement, _OWN, getattr(found, _OWN, name in vars(home)))
    setattr(home, name, replacement)


def is_replaced(home: Any, name: str) -> bool:
    """Whether a replacement is in the place of PyTorch's function."""
    return hasattr(vars(home).get(name), _STOCK)


def restore(home: Any, name: str) -> None:
    """Put PyTorch's function back; nothing to do where it is in its place, or has none."""
    if is_replaced(home, name):
        replacement = vars(home)[name]
        delattr(home, name)
        if getattr(replacement, _OWN):
            setattr(home, name, getattr(replacement, _STOCK))


def wrap_entry(
    table: dict[Any, Callable[..., Any]],
    key: Any,
    wrapper: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
) -> None:
    """Put a wrapped function in a table of PyTorch's, or with None the one that was there."""
    found = getattr(table[key], _STOCK, table[key])
    table[key] = wrapper(found) if wrapper else found
    if wrapper:
        setattr(table[key], _STOCK, found)


def include(items: list[Any], item: Any, wanted: bool) -> None:
    """Have one of PyTorch's lists end with an item, or no longer hold it."""
    if wanted != (item in items):
        (items.append if wanted else items.remove)(item)


def change(config: Any, name: str, how: Callable[[Any], Any]) -> None:
    """Change an entry of Inductor's configuration for every thread.

    Since 2.12 an assignment is seen by the thread that made it alone; the others see the default,
    which any thread can change back. So this thread gets a value of its own only if it had one.
    ``how`` makes the new value of the old one.
    """
    entry = config._config[name]
    here, elsewhere = getattr(config, name), entry.default
    entry.default = how(elsewhere)
    if here == elsewhere:
        # The one way, on every version, to drop a thread's own value and what was computed of it.
        delattr(config, name)
        entry.hide = False
    else:
        setattr(config, name, how(here))
    # What other threads have computed of all entries, and would go on to name graphs by.
    for computed in ("_get_dict_dirty_keys_var", "_get_dict_cache_var"):
        if computed in vars(config):
            setattr(config, computed, ContextVar(computed, default=None))


_kernels: list[object] = []
"""All that were ever registered: another thread may be in one when it is taken back."""


def stock_kernel(name: str, key: str) -> Callable[..., Any]:
    """PyTorch's kernel of an operator of ``aten``, called without the dispatcher.

    Raises:
        TilecastError: this build of PyTorch has none for the dispatch key.
    """
    import torch

    try:
        kernel = torch.library.get_kernel(f"aten::{name}", key)
    except RuntimeError as error:
        raise TilecastError(
            f"PyTorch {torch.__version__} has no {key} kernel of {name}; allowed: a build that has "
            "one; install it"
        ) from error
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.__members__[key])
    return partial(kernel.call_boxed, keys)


def replace_kernels(kernels: Mapping[str, Callable[..., Any]], key: str) -> object:
    """Put kernels, by name, in the place of those of operators of ``aten`` for a dispatch key.

    Returns:
        What they last as long as: PyTorch's are back when it is gone.
    """
    import torch

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # That a kernel is replaced, which is what was asked for.
        warnings.filterwarnings("ignore", category=UserWarning)
        for name, kernel in kernels.items():
            library.impl(name, kernel, key)
            _kernels.append(torch.library.get_kernel(f"aten::{name}", key))
    return library
