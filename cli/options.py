"""Options that several commands share, and the domain objects made from them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS, Hardware, hardware
from tilecast.heuristics.problem import LINEAR_BF16, GemmOperands, GemmProblem

DEFAULT_GPU = GPUS[0].name
_DATA = Path(__file__).parents[1] / "data_collection" / "data"
_SHORT = {"bfloat16": "bf16", "float16": "fp16"}


def add_operands(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how operands are stored, and the GPU."""
    parser.add_argument("--dtype", default="bfloat16", help="of A and B (default: bfloat16)")
    parser.add_argument("--out-dtype", help="of the result (default: that of A and B)")
    parser.add_argument(
        "--layout",
        default="rcr",
        help="majors of A, B and out, each r or c (default: rcr, as torch.nn.Linear stores them)",
    )
    parser.add_argument("--gpu", default=DEFAULT_GPU, help=f"target (default: {DEFAULT_GPU})")


def add_problem(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options of one problem: extents, and everything of `add_operands`."""
    for name, help_text in (
        ("m", "rows of A and out"),
        ("n", "columns of B and out"),
        ("k", "columns of A, rows of B"),
    ):
        parser.add_argument(f"--{name}", required=required, help=help_text)
    parser.add_argument("--batch", default="1", help="products of the same extents (default: 1)")
    add_operands(parser)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose what ranks."""
    parser.add_argument("--model", type=Path, help="folder of a model (default: the shipped one)")
    parser.add_argument(
        "--power",
        default="robust",
        help="burst, sustained, or robust for the smallest worst case of both (default: robust)",
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the data set."""
    parser.add_argument("--data", type=Path, help="data set (default: the shipped one)")


def operands(options: argparse.Namespace) -> GemmOperands:
    """The operands that the options describe.

    Raises:
        TilecastError: the dtype or layout is not known.
    """
    return GemmOperands.from_layout(options.layout, options.dtype, options.out_dtype)


def problem(options: argparse.Namespace) -> GemmProblem:
    """The problem that the options describe.

    Raises:
        TilecastError: an extent, dtype or layout is not allowed.
    """
    extents = (_integer(getattr(options, name)) for name in ("m", "n", "k", "batch"))
    return GemmProblem(*extents, operands=operands(options))


def problem_if_any(options: argparse.Namespace) -> GemmProblem | None:
    """The problem that the options describe; None when no extent is given.

    Raises:
        TilecastError: some extents are given and others not, or one is not allowed.
    """
    missing = [name for name in ("m", "n", "k") if getattr(options, name) is None]
    if len(missing) == 3:
        return None
    if missing:
        raise TilecastError(
            f"--{missing[0]} is missing; allowed: all of --m, --n and --k, or none of them"
        )
    return problem(options)


def named_problem(text: str, stored: GemmOperands) -> GemmProblem:
    """Read a problem written as ``MxNxK``, or ``BATCHxMxNxK``.

    Raises:
        TilecastError: the text is not of that form, or an extent is not allowed.
    """
    parts = text.split("x")
    if len(parts) not in (3, 4):
        raise TilecastError(
            f"{text!r} is not a problem; allowed: MxNxK or BATCHxMxNxK, such as 16x6144x4096"
        )
    batch, m, n, k = map(_integer, ["1", *parts][-4:])
    return GemmProblem(m, n, k, batch, stored)


def shipped_data(gpu: Hardware, stored: GemmOperands) -> Path | None:
    """The data set of a GPU, dtype and layout that comes with the package; None where none does."""
    path = _DATA / f"{gpu.name.lower()}_{_SHORT[stored.dtype]}_{stored.layout}.parquet"
    return path if path.exists() else None


def data(options: argparse.Namespace) -> Path:
    """The data set that the options name.

    Raises:
        TilecastError: none is named and none is shipped.
    """
    if options.data is not None:
        return options.data
    path = shipped_data(hardware(DEFAULT_GPU), LINEAR_BF16)
    if path is None:
        raise TilecastError(
            "no data set is shipped; allowed: --data with what `tilecast collect` exported"
        )
    return path


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how much runs side by side."""
    parser.add_argument("--jobs", help="fits that run side by side (default: one per core)")


def parallel(name: str, value: str | None) -> int:
    """Read how much shall run side by side; one per core when left out.

    Raises:
        TilecastError: it is not an integer, or below 1.
    """
    from joblib import cpu_count

    return number(name, value or str(cpu_count()), least=1)


def top(value: str) -> int | None:
    """Read how many candidates are wanted; None for ``auto``, which leaves it to the model.

    Raises:
        TilecastError: it is neither ``auto`` nor an integer, or below 1.
    """
    if value == "auto":
        return None
    found = _integer(value)
    if not isinstance(found, int) or found < 1:
        raise TilecastError(
            f"-k {value!r} is out of range; allowed: auto, or an integer, 1 or more"
        )
    return found


def number(name: str, value: str, *, least: int) -> int:
    """Read an integer that is not too small.

    Raises:
        TilecastError: it is not an integer, or below ``least``.
    """
    found = _integer(value)
    if not isinstance(found, int) or found < least:
        raise TilecastError(
            f"{name} {value!r} is out of range; allowed: an integer, {least} or more"
        )
    return found


def _integer(text: str) -> Any:
    """The number, or the text as it is, which the domain then refuses in its own words."""
    try:
        return int(text)
    except ValueError:
        return text
