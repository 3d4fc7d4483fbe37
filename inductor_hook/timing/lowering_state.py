"""What is lowered on trial, to find out how fast it is."""

from __future__ import annotations

from contextvars import ContextVar

fusing: ContextVar[str] = ContextVar("tilecast_fusing", default="")
"""The activation behind the product that is being lowered; "" where only the product is asked for.

While it is set, lowering the product finds out what is fastest and ends in
`tilecast.inductor_hook.fuse.node.Decided`. It returns nothing: some choices do the product alone, and
Inductor would take any of them for any other.
"""

trying: ContextVar[bool] = ContextVar("tilecast_trying", default=False)
"""Whether products are lowered to find out how fast they are; they are counted when it is done."""
