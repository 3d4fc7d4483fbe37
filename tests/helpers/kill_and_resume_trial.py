"""A collection that is killed at a random point and goes on, by SIGKILL and with a fake GPU.

Every other seed kills it at an SQL statement, which may be amid a commit, from the first one that
opens the store; the others some time after the first job, which may be anywhere.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import fake_session

from tilecast.data_collection.dataset.measurement import PASSES
from tilecast.data_collection.jobs.store import MeasurementStore

PACE = 0.01
"""Seconds of a timing: a third of a run."""


@dataclass(frozen=True)
class Killed:
    """What a kill at one point cost."""

    seed: int
    """Of the point."""
    point: str
    """Where it was."""
    kept: int
    """Measurements that were in the store afterwards."""
    told: int
    """Measurements that the run had told of before."""
    lost: tuple[str, ...]
    """Jobs that were begun and are not in the store: what was in flight."""
    twice: int
    """Jobs that were in the store and were run again."""
    complete: bool
    """Whether the second run ended with the rows that an undisturbed one has."""

    @property
    def sound(self) -> bool:
        """Whether nothing that was kept or told was lost, or measured again."""
        return self.kept >= self.told and len(self.lost) <= 1 and not self.twice and self.complete


@dataclass(frozen=True)
class Run:
    """One collection from beginning to end."""

    seconds: float
    """How long it took after the first job."""
    statements: int
    """SQL statements that it ran."""
    rows: frozenset[tuple]
    """What it measured."""


def undisturbed(folder: Path) -> Run:
    """A collection that nobody kills."""
    output, seconds = _collect(folder)
    return Run(seconds, int(output.split()[-1]), _rows(folder))


def kill_and_resume(folder: Path, seed: int, whole: Run) -> Killed:
    """Collect into a new folder, kill that at the point of a seed, go on, and look."""
    draw = random.Random(f"kill {seed}")
    if seed % 2:
        statement = draw.randint(1, whole.statements)
        point, (output, _) = f"statement {statement}", _collect(folder, f"--statements={statement}")
    else:
        seconds = draw.uniform(0, whole.seconds)
        point, (output, _) = f"{seconds:.3f} s", _collect(folder, seconds=seconds)
    kept, lines = _rows(folder), _log(folder)
    done, begun = _done(folder), set(map(_job, lines))
    _collect(folder)
    again = set(map(_job, _log(folder)[len(lines) :]))
    # The last line may have been cut.
    lines_told = output[: output.rfind("\n") + 1].splitlines()
    told = max([int(line.split()[1]) for line in lines_told], default=0)
    complete = _rows(folder) == whole.rows and kept <= whole.rows
    lost = tuple(sorted(begun - done))
    return Killed(seed, point, len(kept), told, lost, len(again & done), complete)


def _collect(folder: Path, *options: str, seconds: float | None = None) -> tuple[str, float]:
    """Run a collection, killed some seconds after its first job where these are given.

    Returns:
        What it told, and the seconds that it took after the first job.
    """
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    log.touch()
    command = [sys.executable, fake_session.__file__, str(folder / "store"), str(log), *options]
    with subprocess.Popen(
        [*command, f"--pace={PACE}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first, begun = process.stdout.readline(), time.monotonic()
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        output, errors = process.communicate(timeout=60)
        took = time.monotonic() - begun
    # The child of one that is killed may complain while it starts.
    assert process.returncode == -9 or (process.returncode, errors) == (0, ""), errors
    return first + output, took


def _log(folder: Path) -> list[list]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def _job(line: Sequence) -> str:
    """Which job a line of the log, or of the store with the problem behind the pass, is part of."""
    stage, _, problem, *_ = line
    return (
        "checks" if stage == "check" else f"{'verify' if stage == 'verify' else 'race'} {problem}"
    )


def _rows(folder: Path) -> frozenset[tuple]:
    """All measurements of a store, which opens; without the number of the run."""
    with closing(MeasurementStore(folder / "store")) as store:
        return frozenset(row[:-1] for row in store._database.execute("SELECT * FROM measurements"))


def _done(folder: Path) -> set[str]:
    """The jobs that the store has the results of."""
    with closing(MeasurementStore(folder / "store")) as store:
        checks = {"checks"} if store.checks() else set()
        passes = {(pass_, problem) for pass_ in PASSES for problem in store.measured(pass_)}
    return checks | {_job((pass_, "", str(problem))) for pass_, problem in passes}
