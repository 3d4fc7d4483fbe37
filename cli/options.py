"""Options that several commands share, and the domain objects made from them."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS, Hardware, hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import MAX_EXTENT, GemmProblem

if TYPE_CHECKING:
    from tilecast.inductor_hook.selection import Settings

DEFAULT_GPU = GPUS[0].name
DEFAULT_POWER = "robust"
_DATA = Path(__file__).parents[1] / "data_collection" / "data"
_EXTENTS = {
    "m": "rows of A and out",
    "n": "columns of B and out",
    "k": "columns of A, rows of B",
}
_ONE = "1"
_MOST = 2**31 - 1
"""The largest number that any option takes."""
_MOST_PARALLEL = 1024


def path(text: str) -> Path:
    """Read the name of a file or folder.

    Raises:
        ValueError: it is empty, which would silently mean the folder that one is in.
    """
    if not text:
        raise ValueError(text)
    return Path(text)


def add_operands(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how operands are stored, and the GPU."""
    parser.add_argument(
        "--operands",
        default=LINEAR_BF16.text,
        metavar="TEXT",
        help="dtype of A and B, majors of A, B and out, each r or c, and > with the dtype of out "
        f"where it is another one, as fp16:rcr>fp32 (default: {LINEAR_BF16}, torch.nn.Linear)",
    )
    parser.add_argument("--gpu", default=DEFAULT_GPU, help=f"target (default: {DEFAULT_GPU})")


def add_problem(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options of one problem: extents, and everything of `add_operands`."""
    for name, help_text in _EXTENTS.items():
        parser.add_argument(f"--{name}", required=required, help=help_text)
    parser.add_argument("--batch", default=_ONE, help="products of the same extents (default: 1)")
    add_operands(parser)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose what ranks."""
    parser.add_argument("--model", type=path, help="folder of a model (default: the shipped one)")
    parser.add_argument(
        "--power",
        default=DEFAULT_POWER,
        help="burst, sustained, or robust for the smallest worst case of both "
        f"(default: {DEFAULT_POWER})",
    )


def check_no_model(options: argparse.Namespace, where: str) -> None:
    """See that no model is asked for where none ranks.

    Raises:
        TilecastError: an option of `add_model` is given.
    """
    if options.model or options.power != DEFAULT_POWER:
        raise TilecastError(f"--model and --power choose what ranks; allowed: {where}")


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the data set."""
    parser.add_argument("--data", type=path, help="data set (default: the shipped one)")


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the object cache."""
    parser.add_argument("--cache", type=path, help="object cache (default: that of this user)")


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how many processes compile."""
    parser.add_argument("--workers", help="processes that compile (default: one per core)")


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how much runs side by side."""
    parser.add_argument("--jobs", help="fits that run side by side (default: one per core)")


def operands(options: argparse.Namespace) -> GemmOperands:
    """The operands that the options describe.

    Raises:
        TilecastError: they are not understood.
    """
    return GemmOperands.parse(options.operands)


def problem(options: argparse.Namespace) -> GemmProblem:
    """The problem that the options describe.

    Raises:
        TilecastError: an extent is not allowed, or the operands are not understood.
    """
    m, n, k, batch = (
        number(f"--{name}", getattr(options, name), least=1, most=MAX_EXTENT)
        for name in (*_EXTENTS, "batch")
    )
    return GemmProblem(m, n, k, batch, operands(options))


def problem_if_any(options: argparse.Namespace) -> GemmProblem | None:
    """The problem that the options describe; None when no extent is given.

    Raises:
        TilecastError: some extents are given and others not, or one is not allowed.
    """
    missing = [name for name in _EXTENTS if getattr(options, name) is None]
    if len(missing) == len(_EXTENTS) and options.batch == _ONE:
        return None
    if missing:
        raise TilecastError(
            f"--{missing[0]} is missing; allowed: all of --m, --n and --k, or none of them"
        )
    return problem(options)


def shipped_data(gpu: Hardware, stored: GemmOperands) -> Path | None:
    """The data set of a GPU and operands that comes with the package; None where none does."""
    found = _DATA / f"{gpu.name.lower()}_{stored.text.replace(':', '_')}.parquet"
    return found if found.exists() else None


def data(options: argparse.Namespace) -> Path:
    """The data set that the options name.

    Raises:
        TilecastError: none is named and none is shipped.
    """
    found = options.data or shipped_data(hardware(DEFAULT_GPU), LINEAR_BF16)
    if found is None:
        raise TilecastError(
            "no data set is shipped; allowed: --data with what `tilecast collect` exported"
        )
    return found


def settings(options: argparse.Namespace) -> Settings:
    """What `install` would be given, so that the hook finds what it asks for.

    Raises:
        TilecastError: a value is not allowed, or the model cannot be read.
    """
    from tilecast.inductor_hook.selection import Settings

    folder = str(options.model) if options.model else None
    return Settings(top(options.top), folder, options.power)


def top(value: str) -> int | str:
    """Read how many candidates are wanted; ``auto`` leaves it to the model.

    Raises:
        TilecastError: it is neither ``auto`` nor an integer, or below 1.
    """
    return value if value == "auto" else number("-k", value, least=1, also="auto, or ")


def parallel(name: str, value: str | None) -> int:
    """Read how much shall run side by side; one per core when left out.

    Raises:
        TilecastError: it is not an integer, below 1 or absurd.
    """
    if value is None:
        from joblib.externals.loky import cpu_count

        return cpu_count()
    return number(name, value, least=1, most=_MOST_PARALLEL)


def number(name: str, value: str, *, least: int, most: int = _MOST, also: str = "") -> int:
    """Read an integer that is neither too small nor too large.

    Args:
        name: the option, for the message.
        value: what was given.
        least: the smallest allowed.
        most: the largest allowed.
        also: what else is allowed, for the message.

    Raises:
        TilecastError: it is not an integer or out of range.
    """
    try:
        found = int(value)
    except ValueError:
        found = None
    if found is None or not least <= found <= most:
        raise TilecastError(
            f"{name} {value!r} is out of range; allowed: {also}an integer from {least} to {most}"
        )
    return found


def check_writable(folder: Path) -> None:
    """See, before the work and not after it, that a folder can be made and written to.

    Raises:
        TilecastError: it cannot. Nothing was made.
    """
    try:
        with tempfile.TemporaryFile(dir=_lowest(folder)) as file:
            # Full disks still make empty files.
            file.write(bytes(4096))
    except OSError as error:
        raise TilecastError(
            f"cannot write {folder} ({error.strerror}); allowed: a writable folder with free "
            "space; name another one"
        ) from error


def check_writable_file(file: Path) -> None:
    """See that a file can be made or replaced.

    Raises:
        TilecastError: it cannot. Nothing was made.
    """
    if file.is_dir():
        raise TilecastError(f"cannot write {file} (a folder); allowed: the name of a file")
    check_writable(file.parent)


def _lowest(folder: Path) -> Path:
    """The lowest part of a path that is there, whatever it is."""
    try:
        folder.lstat()
    except FileNotFoundError:
        return _lowest(folder.parent)
    return folder
