"""Show, move and bound the object cache: compiled kernels, which any process of this user loads."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.output.output import Answer
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import unwritable
from tilecast.heuristics.operands import GemmOperands
from tilecast.reporting.table import Table

if TYPE_CHECKING:
    from tilecast.kernels.objects.cache import ObjectCache

    Act = Callable[[ObjectCache, argparse.Namespace], Answer]

NAME = "objects"
HELP = "list, pack, unpack, ship or prune the compiled kernels of the object cache"

_COLUMNS = {"operands": "", "kernels": ",", "current": ",", "MiB": ",.1f"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be done and the options of each."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, act: Act, about: str) -> argparse.ArgumentParser:
        found = actions.add_parser(name, help=about, description=about, allow_abbrev=False)
        found.set_defaults(act=act)
        shared.add_cache(found)
        shared.add_json(found)
        return found

    action("list", _list, "say how many kernels there are, for which operands")
    packing = action("pack", _pack, "write all kernels into one file")
    packing.add_argument("file", type=argtypes.path, metavar="FILE", help="the tar.xz to write")
    about = "store the kernels of such a file; they are native code, so know who made it"
    unpacking = action("unpack", _unpack, about)
    unpacking.add_argument("file", type=argtypes.path, metavar="FILE", help="the file to read")
    shipping = action("ship", _ship, "write the kernels of this version as a wheel brings them")
    shipping.add_argument("file", type=argtypes.path, metavar="FILE", help="the zip file to write")
    pruning = action("prune", _prune, "remove the kernels that were asked for longest ago")
    about = "bytes that may stay, such as 500M or 2G; 0 removes all"
    pruning.add_argument("--keep", type=argtypes.size, required=True, metavar="SIZE", help=about)


def run(options: argparse.Namespace) -> Answer:
    """Do what is asked with the cache that is named."""
    from tilecast.kernels.objects.cache import ObjectCache, default_root

    return options.act(ObjectCache(options.cache or default_root()), options)


def _list(cache: ObjectCache, options: argparse.Namespace) -> Answer:
    from tilecast.kernels.objects.keys import is_current

    _check_there(cache)
    sizes = cache.sizes()
    kernels, current, taken = Counter[str](), Counter[str](), Counter[str]()
    for key, size in sizes.items():
        if entry := cache.entry(key):
            operands = _operands(entry.facts)
            kernels[operands] += 1
            current[operands] += is_current(entry.facts)
            taken[operands] += size
    rows = [
        {"operands": name, "kernels": kernels[name], "current": current[name], "bytes": taken[name]}
        for name in sorted(kernels)
    ]
    document = {
        "cache": str(cache.root),
        "kernels": kernels.total(),
        "current": current.total(),
        "damaged": len(sizes) - kernels.total(),
        "bytes": sum(sizes.values()),
        "operands": rows,
    }
    shown = [(*list(row.values())[:-1], row["bytes"] / 2**20) for row in rows]
    line = "{kernels} kernels, {current} of this version, {damaged} damaged".format(**document)
    table = Table(f"Kernels in {cache.root}", _COLUMNS, shown)
    return Answer(document, [table, f"{line}, {_mib(document['bytes'])}"])


def _pack(cache: ObjectCache, options: argparse.Namespace) -> Answer:
    from tilecast.kernels.objects.pack import pack

    _check_there(cache)
    resolve.check_file(options.file)
    return _written(cache, options.file, pack(cache, options.file))


def _unpack(cache: ObjectCache, options: argparse.Namespace) -> Answer:
    from tilecast.kernels.objects.pack import unpack

    resolve.check_writable(cache.root)
    done = asdict(unpack(cache, options.file))
    document = {"cache": str(cache.root), "pack": str(options.file), **done}
    line = "{added} kernels added to {cache}, {found} found there, {current} of this version"
    return Answer(document, [line.format(**document)])


def _ship(cache: ObjectCache, options: argparse.Namespace) -> Answer:
    from tilecast.kernels.objects.keys import is_current
    from tilecast.kernels.objects.shipped import ship

    _check_there(cache)
    resolve.check_file(options.file)
    entries = [entry for entry in map(cache.entry, cache.sizes()) if entry]
    current = [entry for entry in entries if is_current(entry.facts)]
    if not current:
        raise TilecastError(
            f"{cache.root} holds no kernel of this version; allowed: a cache with some; run "
            f"`tilecast compile --common 500 --cache {cache.root}`"
        )
    return _written(cache, options.file, ship(current, options.file))


def _written(cache: ObjectCache, file: Path, kernels: int) -> Answer:
    size = file.stat().st_size
    document = {"cache": str(cache.root), "pack": str(file), "kernels": kernels, "bytes": size}
    return Answer(document, [f"{file}: {kernels} kernels, {_mib(size)}"])


def _prune(cache: ObjectCache, options: argparse.Namespace) -> Answer:
    _check_there(cache)
    try:
        removed = cache.prune(options.keep)
    except OSError as error:
        raise unwritable(cache.root, error) from error
    left = cache.sizes()
    document = {
        "cache": str(cache.root),
        "removed": len(removed),
        "removed_bytes": sum(removed.values()),
        "kernels": len(left),
        "bytes": sum(left.values()),
    }
    gone, kept = _mib(document["removed_bytes"]), _mib(document["bytes"])
    line = f"{len(removed)} kernels removed ({gone}), {len(left)} left ({kept}) in {cache.root}"
    return Answer(document, [line])


def _check_there(cache: ObjectCache) -> None:
    if not cache.root.is_dir():
        raise TilecastError(
            f"there is no object cache {cache.root}; allowed: a folder that `tilecast compile` "
            "filled; name it with --cache"
        )


def _operands(facts: Mapping[str, Any]) -> str:
    """What an entry is for, as this version spells it."""
    try:
        return GemmOperands.parse(str(facts.get("operands"))).text
    except TilecastError:
        return "unknown"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
