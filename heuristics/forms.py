"""Whether plain data out of a file, as JSON gives it, has the form that code relies on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

ANY = "*"
"""In a form of an object: the form of every key that has none of its own."""


def misfit(value: object, form: Any, at: str = "") -> str | None:
    """Where data does not have a form, such as ``runs[0].date``; None where it has.

    Args:
        value: plain data.
        form: a function that says whether a value fits; a list with the form of each element; or
            an object with the form of each key that it has, all of which may be left out.
        at: where the value is.
    """
    if isinstance(form, list):
        if not isinstance(value, list):
            return at
        found = (misfit(one, form[0], f"{at}[{place}]") for place, one in enumerate(value))
    elif isinstance(form, Mapping):
        if not isinstance(value, dict):
            return at
        found = (
            misfit(one, form.get(name, form.get(ANY, anything)), f"{at}.{name}".lstrip("."))
            for name, one in value.items()
        )
    else:
        return None if form(value) else at
    return next((one for one in found if one is not None), None)


def anything(value: object) -> bool:
    """Whether a value fits: each does."""
    return True


def text(value: object) -> bool:
    """Whether a value is text."""
    return isinstance(value, str)


def count(value: object) -> bool:
    """Whether a value is an integer that counts something."""
    return type(value) is int and 0 <= value < 2**53


def number(value: object) -> bool:
    """Whether a value is a number that is finite and no integer beyond floats."""
    return (type(value) is float and math.isfinite(value)) or (
        type(value) is int and abs(value) < 2**53
    )


def optional(form: Callable[[object], bool]) -> Callable[[object], bool]:
    """The form of what may also be None."""
    return lambda value: value is None or form(value)


def holding(form: Mapping[str, Any]) -> Callable[[object], bool]:
    """The form of an object that has all of these keys, each as its form says."""
    return lambda value: (
        isinstance(value, dict) and form.keys() <= value.keys() and misfit(value, form) is None
    )
