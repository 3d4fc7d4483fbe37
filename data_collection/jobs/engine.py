"""What the collector needs of the place where its jobs run: this host, or many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tilecast.data_collection.jobs.jobs import Failed, Job, Lost, Result, SessionFactory
from tilecast.kernels.build.compiling import CompileResult
from tilecast.kernels.spec import KernelSpec


class Worker(Protocol):
    """Has one GPU, says which card it is, then does one job after another."""

    factory: SessionFactory
    """What it was started with."""
    card: str | None
    """None while it starts; empty once it has waited for long that a GPU is free."""
    job: Job | None
    """None while it has nothing to do."""
    name: str
    """The card, or the one that its predecessor had while it starts."""
    strikes: int
    """Failures in a row, its predecessors' too, with no kernel to blame, or with one that another
    card has run."""

    def give(self, job: Job) -> None:
        """Start a job."""
        ...

    def stop(self) -> None:
        """End it, whatever it is doing."""
        ...


W = TypeVar("W", bound=Worker)


class Engine(Protocol[W]):
    """Starts workers and hears what becomes of their jobs."""

    def start(self, factory: SessionFactory, silence: float) -> W:
        """A worker that starts; it counts as hung after ``silence`` seconds without a sign."""
        ...

    def news(self, workers: Sequence[W], seconds: float) -> Iterable[tuple[W, News]]:
        """What happens within some seconds: jobs that are done, and workers that failed."""
        ...


News = Result | Failed | Lost
"""What becomes of a worker's job."""


class Build(Protocol):
    """Compiles kernels, one result after another; they are where workers find them then."""

    def __call__(
        self, kernels: Sequence[KernelSpec], /, *, stop: Callable[[], bool]
    ) -> Iterable[CompileResult]:
        """End within a second once ``stop`` says so, whatever a compiler is doing."""
        ...


@dataclass(frozen=True)
class Site:
    """Where one collection compiles and measures."""

    provenance: dict[str, object]
    """See `tilecast.data_collection.gpu.environment.describe`."""
    cards: Sequence[str]
    """Short names of its GPUs."""
    factories: Sequence[SessionFactory]
    """One per GPU."""
    engine: Engine[Any]
    """What workers run on."""
    build: Build
    """What compiles."""
    states: Callable[[], list[dict[str, str]]]
    """How the GPUs are now; see `tilecast.data_collection.gpu.environment.gpu_states`."""
