"""The jobs of a collection, what they need of a GPU, and the place where workers do them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.timing.protocol import Bench, Entrant, measure, verify
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import CompileResult
from tilecast.kernels.candidates import spec_for
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.spec import KernelSpec


class Session(Protocol):
    """What a job needs of a GPU."""

    card: str
    """Short name of the card."""

    def check(self, spec: KernelSpec) -> str | None:
        """What is wrong with a kernel's results, or None; raises KernelFailure when it hangs."""
        ...

    def refusal(self, problem: GemmProblem) -> str | None:
        """Why PyTorch does not multiply a problem, in one line; None where it does."""
        ...

    def bench(self, problem: GemmProblem, careful: bool) -> Bench:
        """A bench for one problem; careful: each replay is announced and waited for."""
        ...


SessionFactory = Callable[[Callable[[KernelSpec | None], None]], Session]
"""Makes a session in the worker, given what to call before a kernel runs: with its spec, or None
for PyTorch's. Must pickle."""


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """What became of a job where it was tried before."""

    careful: bool = False
    """Announce and wait for each kernel, so that a failure names its kernel."""
    suspect: KernelSpec | None = None
    """The kernel that one card blames."""
    accuser: str | None = None
    """That card."""
    not_on: str | None = None
    """The card where it failed last: another one is to do it, where there is one."""
    unexplained: int = 0
    """How often it failed with no kernel to blame."""

    def with_suspect(self, culprit: KernelSpec, card: str) -> Self:
        """The same, after a card has blamed a kernel."""
        return replace(self, careful=True, suspect=culprit, accuser=card, not_on=card)

    def failed_unexplained(self, card: str, *, cleared: bool) -> Self:
        """The same, after a failure with no kernel to blame, or ``cleared``: not the suspect."""
        suspect, accuser = (None, None) if cleared else (self.suspect, self.accuser)
        unexplained = self.unexplained + 1
        return replace(self, suspect=suspect, accuser=accuser, not_on=card, unexplained=unexplained)

    def afresh(self) -> Self:
        """The same, as if its failures so far were all due to a kernel that is known by now."""
        careful = type(self).careful
        return replace(self, careful=careful, suspect=None, accuser=None, not_on=None)


@dataclass(frozen=True)
class CheckJob(_Tried):
    """Compare kernels with a reference of PyTorch."""

    specs: tuple[KernelSpec, ...]
    """The kernels."""
    careful: bool = field(default=True, kw_only=True)
    """They always run one by one."""
    doubted_by: str | None = field(default=None, kw_only=True)
    """The card on which the results of all of them were wrong, where it is asked once more."""

    @property
    def kernels(self) -> tuple[KernelSpec, ...]:
        """What it runs."""
        return self.specs

    def without(self, checks: Mapping[str, str | None]) -> CheckJob:
        """The same, less the kernels that fail by `WorkerPool.checks`."""
        return replace(self, specs=tuple(s for s in self.specs if not checks.get(kernel_key(s))))

    def run(self, session: Session) -> dict[KernelSpec, str | None]:
        """What is wrong with each, or None."""
        return {spec: session.check(spec) for spec in self.specs}


@dataclass(frozen=True)
class MeasureJob(_Tried):
    """Screen and race the kernels of a problem."""

    problem: GemmProblem
    """What to multiply."""
    configs: tuple[KernelConfig, ...]
    """Its candidates; PyTorch's kernel is timed beside them where it multiplies the problem."""
    known_failures: Mapping[KernelConfig, str] = field(default_factory=dict)
    """Candidates that are not run, with the reason that is recorded instead of a time."""

    @property
    def kernels(self) -> tuple[KernelSpec, ...]:
        """The tilecast kernels that it runs."""
        return tuple(spec_for(config, self.problem) for config in self.configs)

    def without(self, checks: Mapping[str, str | None]) -> MeasureJob:
        """The same, with the kernels that fail by the checks known to fail."""
        found = {c: _failure(c, self.problem, checks) for c in self.configs}
        failed = {config: reason for config, reason in found.items() if reason}
        rest = tuple(config for config in self.configs if config not in failed)
        return replace(self, configs=rest, known_failures={**self.known_failures, **failed})

    def run(self, session: Session) -> list[Measurement]:
        """Screen and race rows, and the reason of failure of what is not run."""
        entrants: list[Entrant] = [*self.configs]
        failures: dict[Entrant, str] = {**self.known_failures}
        if self.problem.in_library:
            if refusal := session.refusal(self.problem):
                failures[None] = refusal
            else:
                entrants.append(None)
        bench = session.bench(self.problem, self.careful)
        return measure(bench, self.problem, entrants) + [
            Measurement(self.problem, entrant, "sustained", "screen", None, None, 0, reason)
            for entrant, reason in failures.items()
        ]


@dataclass(frozen=True)
class VerifyJob(_Tried):
    """Time the best kernels of a problem again."""

    problem: GemmProblem
    """What to multiply."""
    raced: tuple[Measurement, ...]
    """Its race rows."""
    card: str
    """The card that ran the race."""
    known_failures: Mapping[KernelConfig, str] = field(default_factory=dict)
    """Configs that have failed since, with the reason that is recorded instead of a time."""

    @property
    def kernels(self) -> tuple[KernelSpec, ...]:
        """The tilecast kernels that it runs."""
        configs = dict.fromkeys(row.config for row in self.raced if row.config)
        return tuple(spec_for(config, self.problem) for config in configs)

    def without(self, checks: Mapping[str, str | None]) -> VerifyJob:
        """The same, less the kernels that fail by the checks."""
        failed = {row.config: _failure(row.config, self.problem, checks) for row in self.raced}
        new = {config: reason for config, reason in failed.items() if config and reason}
        sound = tuple(row for row in self.raced if row.config not in new)
        return replace(self, raced=sound, known_failures={**self.known_failures, **new})

    def run(self, session: Session) -> list[Measurement]:
        """Verify rows, and the reason of failure of what is not run any more."""
        return self._verified(session) + [
            Measurement(self.problem, config, "burst", "verify", None, None, 0, reason)
            for config, reason in self.known_failures.items()
        ]

    def _verified(self, session: Session) -> list[Measurement]:
        return verify(session.bench(self.problem, self.careful), self.problem, self.raced)


@dataclass(frozen=True)
class CompareJob(VerifyJob):
    """Time the best kernels of a problem on a card, to compare it with the other cards."""

    def run(self, session: Session) -> list[Measurement]:
        """Verify rows."""
        return self._verified(session)


def _failure(
    entrant: Entrant, problem: GemmProblem, checks: Mapping[str, str | None]
) -> str | None:
    return entrant and checks.get(kernel_key(spec_for(entrant, problem)))


Job = CheckJob | MeasureJob | VerifyJob
"""What a worker is given."""

Checks = dict[KernelSpec, str | None]
"""What is wrong with each of some kernels, or None."""

Result = Checks | list[Measurement]
"""What a job's ``run`` returns."""


@dataclass(frozen=True)
class Ready:
    """The first message: the worker has its GPU."""

    card: str
    """Short name of the card."""


@dataclass(frozen=True)
class Running:
    """A kernel runs next."""

    kernel: KernelSpec | None
    """Which; None for PyTorch's."""


@dataclass(frozen=True)
class Failed:
    """The last message: the worker is gone, or its GPU context is."""

    culprit: KernelSpec | None
    """The kernel to blame; None where several were in flight."""
    reason: str
    """What happened, in one line."""
    innocent: bool = False
    """No kernel is to blame, whichever was running: the card is, or whoever killed the process."""


@dataclass(frozen=True)
class Lost:
    """The last message: the worker is gone, with its host or for the host's sake."""

    reason: str
    """What happened, in one line."""


class Worker:
    """Has one GPU, says which card it is, then does one job after another."""

    def __init__(self, factory: SessionFactory):
        """Start with what makes its session."""
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


News = Result | Failed | Lost
"""What becomes of a worker's job."""


class Engine(Protocol):
    """Starts workers and hears what becomes of their jobs."""

    def start(self, factory: SessionFactory, silence: float) -> Any:
        """A worker that starts; it counts as hung after ``silence`` seconds without a message."""
        ...

    def news(self, workers: Sequence[Any], seconds: float) -> Iterable[tuple[Any, News]]:
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
    engine: Engine
    """What workers run on."""
    build: Build
    """What compiles."""
