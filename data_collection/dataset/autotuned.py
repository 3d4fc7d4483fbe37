"""Times of tilecast kernels from Inductor's autotuner, in a file that the hook appends to.

Below a header, it has a line of JSON for each multiplication that was benchmarked. Unlike a
`MeasurementStore`, any number of processes write it, for months and through versions. Its times are
of a few configs of each problem: see `tilecast.models.learning.autotune_pairs`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tilecast.data_collection.dataset.columns import TIMES
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.files import read_whole
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.families import parse_config
from tilecast.kernels.objects.keys import toolchain

SUFFIX = ".jsonl"
"""How the file's name ends, in whatever case."""
MOST_BYTES = 1 << 30
"""Of a file, some million lines."""
HEADER = '{"tilecast": "autotuned", "version": 1}\n'
"""The first line; its version is raised when a field changes its meaning."""


@dataclass(frozen=True)
class Autotuned:
    """What one run of the autotuner measured of one multiplication."""

    problem: GemmProblem
    """What was multiplied."""
    milliseconds: Mapping[KernelConfig, float]
    """Run time of each config that ran."""
    library: float | None
    """Run time of ATen's own kernel in milliseconds; None where it was not benchmarked."""
    gpu: str
    """Name of the `Hardware`."""
    toolchain: str
    """`tilecast.kernels.objects.keys.toolchain` of the kernels."""
    versions: Mapping[str, str | None]
    """Versions of PyTorch, cuBLAS and the compilers."""
    date: str
    """When, as ISO 8601 says it."""

    def line(self) -> str:
        """Its line in the file."""
        times = {config.name: time for config, time in self.milliseconds.items()}
        values = vars(self) | {"problem": self.problem.row(), "milliseconds": times}
        return json.dumps(values, allow_nan=False) + "\n"

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Autotuned:
        """Read the JSON object of a `line`.

        Raises:
            ValueError, TypeError, LookupError, AttributeError: it is none; a TilecastError is a
                ValueError.
        """
        times = {parse_config(name): time for name, time in values["milliseconds"].items()}
        library = values["library"]
        for time in (*times.values(), *([] if library is None else [library])):
            if type(time) is not float or not TIMES[0] <= 1e3 * time <= TIMES[1]:
                raise ValueError(f"{time} is no time")
        given = {field.name: values[field.name] for field in fields(cls)}
        problem = GemmProblem.from_row(tuple(values["problem"]))
        return cls(**given | {"problem": problem, "milliseconds": times})


@dataclass(frozen=True)
class Usable:
    """What such files have for learning."""

    found: tuple[Autotuned, ...]
    """Each measurement once, in the order of the files."""
    left_out: Mapping[str, int]
    """Why other lines are of no use, and how many."""


def read_autotuned(paths: Iterable[Path], gpu: Hardware) -> Usable:
    """Read what the hook recorded of a GPU and of the current kernels.

    Inductor caches times, so equal ones are one measurement.

    Raises:
        TilecastError: a file cannot be read, is another, or has nothing of use.
    """
    kept: dict[tuple, Autotuned] = {}
    left_out: Counter[str] = Counter()
    for path in paths:
        before = Counter(left_out)
        usable = [one for line in _lines(path) if (one := _usable(line, gpu, left_out))]
        if not usable:
            reasons = ", ".join(f"{n} {why}" for why, n in (left_out - before).items())
            raise _refused(path, f"none of its lines is of use ({reasons or 'it has none'})")
        for one in usable:
            kept.setdefault((one.problem, *one.milliseconds.items()), one)
    return Usable(tuple(kept.values()), dict(left_out))


def _lines(path: Path) -> list[bytes]:
    try:
        header, *lines = read_whole(path, MOST_BYTES).split(b"\n")
    except OSError as error:
        raise _refused(path, one_line(error)) from error
    if header != HEADER.encode().strip():
        raise _refused(path, f"it does not begin with {HEADER.strip()}")
    return [line for line in lines if line.strip()]


def _usable(line: bytes, gpu: Hardware, left_out: Counter[str]) -> Autotuned | None:
    """The measurement of a line, if it is usable; else the reason is counted."""
    try:
        values = json.loads(line)
        # First, as today's kernels may have other names than those of another version.
        if values["gpu"] != gpu.name:
            left_out[f"of another GPU than {gpu.name}"] += 1
        elif values["toolchain"] != toolchain():
            left_out["of kernels of another version"] += 1
        elif not (found := Autotuned.of_values(values)).milliseconds:
            left_out["without a time"] += 1
        else:
            return found
    # A writer may have been killed in the middle of a line.
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        left_out["damaged"] += 1
    return None


def _refused(path: Path, reason: str) -> TilecastError:
    return TilecastError(
        f"autotuned times {path} cannot be used: {reason}; allowed: a file that TILECAST_LEARN "
        "wrote on such a GPU, with this version of the kernels"
    )
