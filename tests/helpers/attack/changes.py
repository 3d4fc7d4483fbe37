"""Odd values, and data and files that are changed at random, the same every time."""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        5,
        0.5,
        -0.5,
        1e9,
        1e18,
        1e-320,
        1e308,
        2**31,
        2**63,
        10**400,
    ),
    *("", "x", "a\r\nb", "\x1b[31m", "💥", "9" * 5000, "bf16:rcr", "4096x4096", "-1", "nan"),
    *(float("nan"), float("inf"), "../x", "\0"),
    *([], {}, [[]], [None], {"": None}, [1, 2, 3], {"a": {"b": {"c": {}}}}, ["x"] * 100),
)
"""What JSON may hold where something else should be."""


def places(data: Any, at: tuple = ()) -> Iterator[tuple]:
    """The path of everything inside plain data; of a long list that of its first elements."""
    if isinstance(data, dict):
        inside = list(data.items())
    else:
        inside = list(enumerate(data[:3])) if isinstance(data, list) else []
    for key, value in inside:
        yield (*at, key)
        yield from places(value, (*at, key))


def changed(data: Any, seed: int) -> Any:
    """A copy of plain data in which one to three things are another, gone, or more."""
    source, copied = random.Random(seed), copy.deepcopy(data)
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        *above, last = source.choice(list(places(copied)))
        holder = copied
        for key in above:
            holder = holder[key]
        match source.randrange(5):
            case 0:
                del holder[last]
            case 1 if isinstance(holder[last], (int, float)):
                holder[last] = type(holder[last])(holder[last] * source.choice((-1, 0, 1e3, 1e-3)))
            case 2 if isinstance(holder, list):
                holder.extend(holder * source.choice((1, 50)))
            case _:
                holder[last] = copy.deepcopy(source.choice(ODD))
    return copied


def damage(path: Path, seed: int) -> None:
    """Flip bits of a file, cut it short, or put something else in the place of a page."""
    source, content = random.Random(seed), bytearray(path.read_bytes())
    at = source.randrange(len(content))
    match source.randrange(4):
        case 0:
            del content[at:]
        case 1:
            page, other = (4096 * (place // 4096) for place in (at, source.randrange(len(content))))
            held = content[page : page + 4096]
            others = content[other : other + 4096], bytes(4096), source.randbytes(4096)
            content[page : page + 4096] = source.choice(others)[: len(held)]
        case _:
            for _ in range(source.choice((1, 1, 8, 64))):
                content[source.randrange(len(content))] ^= 1 << source.randrange(8)
    path.write_bytes(content)


def poison(path: Path, seed: int) -> None:
    """Put numbers that are none, huge or tiny in place of some floats of a file."""
    source, content = random.Random(seed), bytearray(path.read_bytes())
    value = source.choice((float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45))
    numbers = struct.pack("<f", value) * source.choice((1, 4, 64, 4096))
    start = 4 * source.randrange(len(content) // 4)
    content[start : start + len(numbers)] = numbers[: len(content) - start]
    path.write_bytes(content)
