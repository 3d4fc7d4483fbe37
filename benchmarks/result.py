"""Where and with what a benchmark ran, and how its result is kept."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tilecast.data_collection.environment import gpu_states
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically

PACKAGES = (
    "numpy",
    "pandas",
    "torch",
    "xgboost-cpu",
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-operators",
)
"""Libraries whose versions are recorded with every result."""


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add the option that every benchmark has."""
    parser.add_argument("--out", type=Path, help="write the result to this JSON file, too")


def provenance() -> dict[str, object]:
    """Date, command, host, versions and, where there are any, GPUs."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "gpus": _gpus(),
    }


def finish(result: Mapping[str, object], out: Path | None) -> None:
    """Print a result with its provenance as one line of JSON, and keep it.

    Args:
        result: the figures.
        out: where to keep it; nowhere when left out.

    Raises:
        TilecastError: the file cannot be written.
    """
    document = {**result, "provenance": provenance()}
    if out is not None:
        text = json.dumps(document, indent=1) + "\n"
        write_atomically(out, lambda path: path.write_text(text))
    print(json.dumps(document))


def quantile(values: Iterable[float], share: float) -> float:
    """A quantile with linear interpolation, such as ``share`` 0.5 for the median."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def _gpus() -> list[dict[str, str]]:
    try:
        return gpu_states()
    except TilecastError:
        return []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
