"""Inductor pads no rows of a product for which tilecast kernels compete.

Before Inductor asks anybody for a kernel, it copies A with rows of zeros at its end, to a multiple
of 8 in bf16, where a quick benchmark of cuBLAS finds that faster
(``torch._inductor.fx_passes.pad_mm``). Every kernel then multiplies more rows and waits for the
copy. Tilecast kernels need no padded rows; columns, and what TMA does not read, may still be
padded.
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
from tilecast.inductor_hook.settings import asked


@cache
def can_pad(home: Any, stock: Callable[..., bool]) -> Callable[..., bool]:
    """A replacement for Inductor's `PADDING`."""

    @wraps(stock)
    def may(a: torch.Tensor, b: torch.Tensor, *rest: Any, **options: Any) -> bool:
        return stock(a, b, *rest, **options) and not _is_for_rows(home, a, b)

    return may


def _is_for_rows(home: Any, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether A would get rows and nothing else, and tilecast kernels compete for the product."""
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
    except Exception as error:
        telemetry.warn_once("looking at rows to be padded", error, "Inductor may add some")
        return False
