"""The arrays of a model in one file: its trees, one forest behind the other, and its network."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from tilecast.models.runtime.forest import Forest
from tilecast.models.runtime.manifest import MAX_BYTES
from tilecast.models.runtime.network import Network


def pack(forests: Iterable[Forest], network: Network) -> bytes:
    """What `unpack` reads; the same arrays give the same bytes."""
    arrays = b"".join([*(forest.pack() for forest in forests), network.pack()])
    return gzip.compress(arrays, mtime=0)


def shapes_of(forests: Mapping[str, Forest], network: Network) -> dict[str, object]:
    """What the manifest says of arrays, as plain data: what `unpack` needs to know."""
    return {
        "forests": {
            name: {"trees": forest.trees, "depth": forest.depth, "base": forest.base}
            for name, forest in forests.items()
        },
        "network": {"widths": list(network.widths)},
    }


def unpack(
    shapes: Mapping[str, Any], packed: bytes, columns: Mapping[str, int], outputs: int
) -> tuple[dict[str, Forest], Network]:
    """Trees and network, which are not inflated beyond what their description announces.

    Args:
        shapes: a manifest with what `shapes_of` told it.
        packed: what `pack` returned.
        columns: how many features each of the forests reads, in the order of packing; the network
            reads as many as the first.
        outputs: how many the network has.

    Raises:
        LookupError, TypeError, ValueError: they are not what is described, or unsound.
    """
    forests, widths = shapes["forests"], shapes["network"]["widths"]
    if forests.keys() != columns.keys():
        raise ValueError(f"trees {sorted(forests)}")
    ends_of_network = (next(iter(columns.values())), outputs)
    if (widths[0], widths[-1]) != ends_of_network:
        raise ValueError(f"a network from {widths[0]} to {widths[-1]} numbers")
    sizes = [
        *(Forest.packed_bytes(forests[name]["trees"], forests[name]["depth"]) for name in columns),
        Network.packed_bytes(widths),
    ]
    content = _inflated(packed, sum(sizes))
    *parts, last = (
        content[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)
    )
    trees = {
        name: Forest.unpack(part, features=columns[name], **forests[name])
        for name, part in zip(columns, parts, strict=True)
    }
    return trees, Network.unpack(last, widths)


def _inflated(packed: bytes, size: int) -> bytes:
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        content = inflater.decompress(packed, size + 1) if size <= MAX_BYTES else b""
    except zlib.error as error:
        raise ValueError(f"arrays that are not packed by gzip: {error}") from error
    if len(content) != size or not inflater.eof or inflater.unused_data:
        raise ValueError(f"arrays that do not take the {size} bytes that they should")
    return content
