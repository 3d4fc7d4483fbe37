"""Show, move and bound the object cache: compiled kernels, which any process of this user loads."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.output_paths import check_file, check_writable
from tilecast.cli.output.output import Output
from tilecast.cli.output.progress import show_steps
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import unwritable
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.keys import is_current
from tilecast.kernels.objects.pack import pack, unpack
from tilecast.kernels.objects.shipped import ship
from tilecast.reporting.table import Table

Action = Callable[[ObjectCache, argparse.Namespace], Output]

_SECONDS = 0.03
"""For a kernel to be packed, on average."""
_SECONDS_TO_STORE = 0.01
"""The same to be stored."""
_COLUMNS = {"operands": "", "kernels": ",", "current": ",", "MiB": ",.1f"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and the options of each."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, act: Action, about: str, file: str = "") -> argparse.ArgumentParser:
        found = actions.add_parser(name, help=about, description=about, allow_abbrev=False)
        found.set_defaults(act=act)
        if file:
            found.add_argument("file", type=argtypes.path, metavar="FILE", help=file)
        arguments.add_cache(found)
        arguments.add_json(found)
        return found

    add("list", _list, "say how many kernels there are, for which operands")
    add("pack", _pack, "write all kernels into one file", "the tar.xz to write")
    about = "store the kernels of such a file; they are native code, so know who made it"
    add("unpack", _unpack, about, "the file to read")
    about = "write the kernels of this version in the form in which a wheel brings them"
    add("ship", _ship, about, "the zip file to write")
    prune = add("prune", _prune, "remove the kernels that were asked for longest ago")
    about = "bytes that may stay, such as 500M or 2G; 0 removes all"
    prune.add_argument("--keep", type=argtypes.size, required=True, metavar="SIZE", help=about)


def run(options: argparse.Namespace) -> Output:
    """Run the action on the object cache."""
    return options.act(resolve.object_cache(options), options)


def _list(cache: ObjectCache, options: argparse.Namespace) -> Output:
    _check_there(cache)
    sizes = cache.sizes()
    kernels, current, taken = Counter[str](), Counter[str](), Counter[str]()
    for key, size in sizes.items():
        if entry := cache.entry(key):
            operands = _operands(entry.facts)
            kernels[operands] += 1
            current[operands] += is_current(entry.facts)
            taken[operands] += size
    counted = [(name, kernels[name], current[name], taken[name]) for name in sorted(kernels)]
    fields = ("operands", "kernels", "current", "bytes")
    document = {
        "cache": str(cache.root),
        "kernels": kernels.total(),
        "current": current.total(),
        "damaged": len(sizes) - kernels.total(),
        "bytes": sum(sizes.values()),
        "operands": [dict(zip(fields, row, strict=True)) for row in counted],
    }
    shown = [(*row, size / 2**20) for *row, size in counted]
    line = "{kernels} kernels, {current} of this version, {damaged} damaged".format(**document)
    table = Table(f"Kernels in {cache.root}", _COLUMNS, shown)
    return Output(document, [table, f"{line}, {_mib(document['bytes'])}"])


def _pack(cache: ObjectCache, options: argparse.Namespace) -> Output:
    _check_there(cache)
    check_file(options.file)
    with show_steps("pack", 1, _SECONDS * len(cache.sizes())):
        packed = pack(cache, options.file)
    return _file_output(cache, options.file, packed)


def _unpack(cache: ObjectCache, options: argparse.Namespace) -> Output:
    check_writable(cache.root)

    def storing(kernels: int) -> AbstractContextManager[object]:
        return show_steps("unpack", 1, _SECONDS_TO_STORE * kernels)

    done = asdict(unpack(cache, options.file, storing))
    document = {"cache": str(cache.root), "pack": str(options.file), **done}
    line = "{added} kernels added to {cache}, {found} found there, {current} of this version"
    return Output(document, [line.format(**document)])


def _ship(cache: ObjectCache, options: argparse.Namespace) -> Output:
    _check_there(cache)
    check_file(options.file)
    entries = [entry for entry in map(cache.entry, cache.sizes()) if entry]
    current = [entry for entry in entries if is_current(entry.facts)]
    if not current:
        raise TilecastError(
            f"{cache.root} holds no kernel of this version; allowed: a cache with some; run "
            f"`tilecast compile --common 500 --cache {cache.root}`"
        )
    with show_steps("ship", 1, _SECONDS * len(current)):
        shipped = ship(current, options.file)
    return _file_output(cache, options.file, shipped)


def _file_output(cache: ObjectCache, file: Path, kernels: int) -> Output:
    size = file.stat().st_size
    document = {"cache": str(cache.root), "pack": str(file), "kernels": kernels, "bytes": size}
    return Output(document, [f"{file}: {kernels} kernels, {_mib(size)}"])


def _prune(cache: ObjectCache, options: argparse.Namespace) -> Output:
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
    return Output(document, [line])


def _check_there(cache: ObjectCache) -> None:
    if not cache.root.is_dir():
        raise TilecastError(
            f"there is no object cache {cache.root}; allowed: a folder that `tilecast compile` "
            "filled; name it with --cache"
        )


def _operands(facts: Mapping[str, Any]) -> str:
    """The operands of a kernel, as this version spells them."""
    try:
        return GemmOperands.parse(str(facts.get("operands"))).text
    except TilecastError:
        return "unknown"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
