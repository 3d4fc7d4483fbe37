"""What a collection needs of the place where its jobs run: this host, or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tilecast.data_collection.jobs.jobs import Failed, Job, Lost, Result, SessionFactory
from tilecast.kernels.build.compiling import CompileResult
from tilecast.kernels.spec import KernelSpec


class Worker:
    """Has one GPU, says which card it is, then does one job after another."""

    def __init__(self, factory: SessionFactory):
        """Make the state of a worker that is started with a factory."""
        self.factory = factory
        self.card: str | None = None
        """None while the worker starts; empty once it has waited long for a free GPU."""
        self.job: Job | None = None
        """None while it has nothing to do."""
        self.name = ""
        """The card; while the worker starts, the one of its predecessor."""
        self.strikes = 0
        """Failures in a row, those of its predecessors included, with no kernel to blame or with a
        kernel that another card has run."""

    def give(self, job: Job) -> None:
        """Start a job."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the worker, whatever it is doing."""
        raise NotImplementedError


W = TypeVar("W", bound=Worker)

News = Result | Failed | Lost
"""What becomes of a worker's job."""


class Engine(Protocol[W]):
    """Starts workers and hears what becomes of their jobs."""

    def start(self, factory: SessionFactory, silence: float) -> W:
        """A worker that starts; it counts as hung after ``silence`` seconds without a message."""
        ...

    def news(self, workers: Sequence[W], seconds: float) -> Iterable[tuple[W, News]]:
        """What happens within some seconds: jobs that are done, and workers that failed."""
        ...


class Build(Protocol):
    """Compiles kernels, one result after another; then workers find them in the object cache."""

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
