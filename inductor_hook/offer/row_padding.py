"""Rows that the library alone wants: Inductor adds none where kernels of ours compete.

Before anybody is asked for a kernel, Inductor copies A with rows of zeros at its end, to a multiple
of 8 in bf16, where a quick benchmark of the library's kernels finds that faster
(``torch._inductor.fx_passes.pad_mm``). Everybody then multiplies more rows, and waits for the copy.
Ours take any number of rows as they are; columns, and what TMA does not read, may still be padded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch._inductor import config

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.matmul import Deferred
from tilecast.inductor_hook.describe.product import Product, Request
from tilecast.inductor_hook.offer.precompile import expected
from tilecast.inductor_hook.patch import patching
from tilecast.inductor_hook.settings import asked

HOOKED = "can_pad"
"""The function of Inductor's that says whether a product may be padded."""


def follow(home: Any, wanted: bool) -> None:
    """Have Inductor's module that pads products ask us, too, or no longer."""
    if wanted:
        patching.replace(home, HOOKED, _asking_us(home, patching.stock(home, HOOKED)))
    else:
        patching.restore(home, HOOKED)


@cache
def _asking_us(home: Any, stock: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(stock)
    def can_pad(a: torch.Tensor, b: torch.Tensor, *rest: Any, **options: Any) -> bool:
        return stock(a, b, *rest, **options) and not _are_rows_ours(home, a, b)

    return can_pad


def _are_rows_ours(home: Any, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether A would get rows and nothing else, and kernels of ours compete for the product."""
    settings = asked()
    if not settings or config.force_shape_pad:
        return False
    multiple = home.get_alignment_size(a)
    if any(home.get_padded_length(extent, multiple) for extent in (a.shape[-1], b.shape[-1])):
        return False
    try:
        return bool(expected(settings, Request(Product(a.ndim), a, b)))
    except (TilecastError, Deferred):
        return False
    # Whatever goes wrong in there, Inductor decides.
    except Exception as error:
        telemetry.warn_once("looking at rows to be padded", error, "Inductor may add some")
        return False
