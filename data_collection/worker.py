"""The child process that touches the GPU: it takes jobs from a pipe and dies with its kernels.

It sends tuples: ``("ready", card)`` once; ``("running", entrant)`` before a kernel runs;
``("done", result)`` after a job; and ``("failed", culprit, reason)``, its last word. The culprit is
a config, or None where several kernels were in flight.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NoReturn, Protocol

from tilecast.data_collection.measurement import Measurement
from tilecast.data_collection.protocol import (
    Bench,
    Entrant,
    KernelFailure,
    Settings,
    measure,
    verify,
)
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.spec import KernelSpec


class Session(Protocol):
    """What a worker needs of a GPU."""

    card: str
    """Short name of the card."""

    def check(self, spec: KernelSpec) -> str | None:
        """What is wrong with a kernel's results, or None; raises KernelFailure when it hangs."""
        ...

    def bench(self, problem: GemmProblem, careful: bool) -> Bench:
        """A bench for one problem; careful: each replay is announced and waited for."""
        ...


SessionFactory = Callable[[Callable[[Entrant], None]], Session]
"""Makes a session in the worker, given what to call before a kernel runs. Must pickle."""


@dataclass(frozen=True)
class CheckJob:
    """Compare kernels with the library's results."""

    specs: tuple[KernelSpec, ...]
    """The kernels."""

    def run(self, session: Session, settings: Settings) -> dict[KernelSpec, str | None]:
        """What is wrong with each, or None."""
        return {spec: session.check(spec) for spec in self.specs}


@dataclass(frozen=True)
class MeasureJob:
    """Screen and race the kernels of a problem."""

    problem: GemmProblem
    """What to multiply."""
    configs: tuple[KernelConfig, ...]
    """Its candidates; the library's kernel is timed beside them."""
    careful: bool = False
    """Announce and wait for each replay, so that a failure has a name."""

    def run(self, session: Session, settings: Settings) -> list[Measurement]:
        """Screen and race rows."""
        bench = session.bench(self.problem, self.careful)
        return measure(bench, self.problem, (*self.configs, None), settings)


@dataclass(frozen=True)
class VerifyJob:
    """Time the best kernels of a problem again."""

    problem: GemmProblem
    """What to multiply."""
    raced: tuple[Measurement, ...]
    """Its race rows."""
    card: str
    """The card that ran the race."""
    careful: bool = False
    """Announce and wait for each replay, so that a failure has a name."""

    def run(self, session: Session, settings: Settings) -> list[Measurement]:
        """Verify rows."""
        bench = session.bench(self.problem, self.careful)
        return verify(bench, self.problem, self.raced, settings)


Job = CheckJob | MeasureJob | VerifyJob


def work(connection: Connection, make_session: SessionFactory, settings: Settings) -> None:
    """Run jobs until the parent sends None or goes away."""
    try:
        session = make_session(lambda entrant: connection.send(("running", entrant)))
    except Exception as error:
        _die(connection, None, _one_line(error))
    connection.send(("ready", session.card))
    with contextlib.suppress(EOFError):
        while (job := connection.recv()) is not None:
            try:
                connection.send(("done", job.run(session, settings)))
            except KernelFailure as failure:
                _die(connection, failure.entrant, failure.reason)
            except Exception as error:  # the parent decides; this process's GPU context may be gone
                _die(connection, None, _one_line(error))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _die(connection: Connection, culprit: Entrant, reason: str) -> NoReturn:
    with contextlib.suppress(OSError):  # the parent may be gone, and its GPU must not stay taken
        connection.send(("failed", culprit, reason))
    # A regular exit would wait for the GPU, and a hanging kernel never ends.
    os._exit(1)
