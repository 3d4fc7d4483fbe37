"""Checks and times kernels on one GPU, with CUDA graphs and events."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import torch

from tilecast.data_collection.gpu.environment import device_hash
from tilecast.data_collection.gpu.gpu_model import stated_gpu
from tilecast.data_collection.timing.card_health import watch
from tilecast.data_collection.timing.correctness import check_problems, wrong_elements
from tilecast.data_collection.timing.drift import levelled
from tilecast.data_collection.timing.in_use import InUse
from tilecast.data_collection.timing.protocol import Entrant, KernelFailure
from tilecast.data_collection.timing.tensors import (
    inputs_and_reference,
    launch_tensors,
    poisoned_out,
)
from tilecast.data_collection.timing.torch_reference import library_launch, torch_refusal
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import spec_for
from tilecast.kernels.launch import load_kernel
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

GAP_SECONDS = 0.001
"""Longest idle time before a replay in the burst regime."""
GAP_PER_BUSY = 2.5
"""Idle time before a replay, over the time of the kernel's last one. 0.2 ms do for short kernels
(models/EXPERIMENTS.md); large ones leave the card no rest then."""
WARM_UP_SECONDS = 0.1
"""Busy time before the first round in the sustained regime. After 0.5 s all times are 0.7% longer,
and compare as they do after this (models/EXPERIMENTS.md)."""
WARM_UP_PER_IDLE = 2.0
"""Longest warming up, over the idle time before it."""
WARM_UP_DEPTH = 16
"""Replays queued ahead while warming up, so that a busy host does not let the card idle."""
REPLAY_SECONDS = 200e-6
"""Kernel time that one graph replay aims at, so that an event's resolution of 0.5 us is 0.25%."""
MAX_LAUNCHES = 40
"""Most launches in one graph."""
REFERENCE = -1
"""Stands in the order of a screen for the kernel that shows the level of the card."""
LOOK_SECONDS = 10e-3
"""Kernel time between two looks at the level, which changes in some tens of milliseconds."""
LEAST_BETWEEN = 2
"""Fewest kernels between two looks."""
LOOK_GRAPHS = 3
"""Graphs that look, so that the card has work while one is read."""
MIN_SETS = 8
"""Least operand sets of a finalist, where memory and rounds allow it: the place of a set in memory
can move a kernel's time by 1%."""
ATTAINED_FLOPS, ATTAINED_BANDWIDTH = 0.7075, 1 / 1.2
"""Shares of a GPU's rates that a good kernel reaches, by which launches of a replay are counted."""
LEAST_RATE = 1e12
"""Bytes per second of the memory of a GPU whose driver does not tell its clock."""
COLD_FACTOR = 4
"""A graph reuses an operand set after reading others of this many times the L2."""
MOST_SET_BYTES = 16e9
"""Memory of all operand sets; twice this is taken while new ones replace the last."""
MOST_CHECKED_BYTES = 4e9
"""Size of a problem above which results are not compared on the tensors that were timed: beside
these, a reference and copies have to fit into the memory."""
HANG_SECONDS = 5.0
"""A replay that takes longer counts as a hang."""
SIGN_SECONDS = 5.0
"""How often a sign of life is sent: a round of large kernels exceeds the allowed silence."""
HEALTH_SECONDS = 0.5
"""How often a card is asked while it is timed whether it throttles."""


@dataclass(eq=False)
class _Graph:
    """Several launches of one kernel on successive operand sets, between two timing events."""

    spec: KernelSpec | None
    """None for PyTorch's."""
    graph: torch.cuda.CUDAGraph
    start: torch.cuda.Event
    end: torch.cuda.Event
    done: torch.cuda.Event
    launches: int
    times: list[float]
    """Microseconds per launch of each replay so far, with those of the kernel's other graphs."""

    def read(self) -> None:
        """Wait for the last replay and take its time."""
        wait(self.done, self.spec)
        self.times.append(self.start.elapsed_time(self.end) * 1e3 / self.launches)

    def gap(self) -> float:
        """Seconds that the card idles before the next replay in the burst regime."""
        busy = self.times[-1] * self.launches * 1e-6 if self.times else math.inf
        return min(GAP_SECONDS, GAP_PER_BUSY * busy)


_Graphs = list[_Graph]
"""Those of one kernel, each on operand sets of its own; they share their list of times."""


class GpuSession:
    """Loaded kernels on one device; lives as long as its process."""

    def __init__(
        self, objects: ObjectCache, device: int, announce: Callable[[KernelSpec | None], None]
    ):
        """Bind a CUDA device; ``announce`` is called with each kernel before it first runs.

        None stands for PyTorch's.
        """
        torch.cuda.set_device(device)
        torch.manual_seed(0)
        properties = torch.cuda.get_device_properties(device)
        self.card = device_hash(str(properties.uuid))
        self.check_card = watch(str(properties.uuid))
        self.announce = announce
        self.busy_until = -math.inf
        """When the card was last busy for a while, by the clock of `time.perf_counter`."""
        self.chained: set[KernelSpec] = set()
        """Kernels that were right on padded operands and in chains."""
        self._signed = self._asked = -math.inf
        self._kernel = cache(partial(load_kernel, objects=objects, device=device))
        self._reference = cache(inputs_and_reference)
        self._gpu = stated_gpu(device)
        # A row for each block that reads, so that the sum needs no workspace.
        rows = 32 * properties.multi_processor_count
        self._unrelated = torch.ones(rows, 2 * self._gpu.l2_bytes // (4 * rows), device="cuda")
        self._sums = torch.empty(rows, device="cuda")

    def check(self, spec: KernelSpec) -> str | None:
        """Compare one kernel with torch in float32 on the ragged problems.

        Returns:
            What is wrong with its results, or None.

        Raises:
            KernelFailure: it hung or crashed.
        """
        # Before the kernel is announced: it is not to blame for its reference.
        self.announce(None)
        references = [(p, *self._reference(p)) for p in check_problems(spec)]
        self.announce(spec)
        kernel = self._kernel(spec)
        for problem, (a, b, *extras), right in references:
            out = poisoned_out(problem)
            kernel(a, b, out, *extras)
            self.finish(spec)
            if wrong := wrong_elements(out, right, problem):
                return f"{wrong}, on {problem}"
        return None

    def refusal(self, problem: GemmProblem) -> str | None:
        """Try PyTorch's call once: why it refuses a problem, in one line, or None.

        Raises:
            KernelFailure: it hung.
            RuntimeError: memory is short, or the GPU context is lost.
        """
        self.announce(None)
        return torch_refusal(problem, partial(self.finish, None))

    def bench(self, problem: GemmProblem, careful: bool) -> GpuBench:
        """Operands for one problem; ``careful`` waits for each replay: a failure has a name."""
        return GpuBench(self, problem, self._gpu, careful)

    def alive(self) -> None:
        """Send a sign of life when one is due, without waiting for the GPU.

        Raises:
            CardFailure: the card throttles, if it is time to ask.
        """
        now = time.perf_counter()
        if now > self._signed + SIGN_SECONDS:
            self._signed = now
            self.announce(None)
        if now > self._asked + HEALTH_SECONDS:
            self._asked = now
            self.check_card()

    def clean_l2(self) -> None:
        """Read twice the L2, so that it holds no operand and nothing to be written back."""
        torch.sum(self._unrelated, 1, out=self._sums)

    def launcher(self, entrant: Entrant, problem: GemmProblem) -> Callable[..., object]:
        """The launcher of an entrant, f(a, b, out, *extras)."""
        if entrant is None:
            return library_launch(problem.operands)
        return self._kernel(spec_for(entrant, problem))

    def finish(self, spec: KernelSpec | None) -> None:
        """Wait for all launches so far, which are of one kernel, or of several where it is None.

        Raises:
            KernelFailure: they hang.
        """
        done = torch.cuda.Event()
        done.record()
        wait(done, spec)


class GpuBench:
    """Times kernels of one problem; see `tilecast.data_collection.timing.protocol.Bench`."""

    def __init__(self, session: GpuSession, problem: GemmProblem, gpu: Hardware, careful: bool):
        """Choose how many launches and operand sets a graph has."""
        self._session = session
        self._problem = problem
        self._careful = careful
        multiplied = problem.flops / (ATTAINED_FLOPS * gpu.peak_flops)
        moved = problem.min_bytes / (
            ATTAINED_BANDWIDTH * max(gpu.dram_bytes_per_second, LEAST_RATE)
        )
        floor = max(multiplied, moved, 3e-6)
        self._launches = max(1, min(MAX_LAUNCHES, round(REPLAY_SECONDS / floor)))
        between = round(LOOK_SECONDS / (floor * self._launches))
        self._between_looks = max(LEAST_BETWEEN, between)
        cold = math.ceil(COLD_FACTOR * gpu.l2_bytes / problem.min_bytes)
        sets = max(MIN_SETS, min(self._launches, cold))
        self._set_count = max(1, min(sets, int(MOST_SET_BYTES // problem.stored_bytes)))
        self._sets: list[tuple] = []
        self._stream = torch.cuda.Stream()

    def screen(
        self, entrants: Sequence[Entrant], rounds: int, give_up: Sequence[float]
    ) -> list[list[float]]:
        """Time many entrants, without the card's level; see the protocol."""
        with torch.cuda.stream(self._stream):
            self._new_sets()
            # PyTorch's kernel is near the best, where it multiplies the problem.
            shown = None if None in entrants else entrants[len(entrants) // 2]
            kernels = self._captured(entrants, 1)
            (reference,) = self._captured([shown], LOOK_GRAPHS)
            self._session.check_card()
            self._warm_up(reference)
            run, active, order = list[int](), [*enumerate(kernels)], random.Random(0)
            looks = ((REFERENCE, [graph]) for graph in itertools.cycle(reference))
            with self._queue("sustained") as take_turn:
                for turn in range(rounds):
                    order.shuffle(active)
                    for start in range(0, len(active), self._between_looks):
                        stretch = active[start : start + self._between_looks]
                        for number, (graph,) in (next(looks), *stretch):
                            take_turn(graph)
                            run.append(number)
                    active = _still_near(active, give_up[min(turn, len(give_up) - 1)])
                take_turn(next(looks)[1][0])
                run.append(REFERENCE)
        taken = [iter(graphs[0].times) for graphs in (*kernels, reference)]
        found = levelled([(number, next(taken[number])) for number in run], REFERENCE)
        return [found[number] for number in range(len(kernels))]

    def time(self, entrants: Sequence[Entrant], regime: str, rounds: int) -> list[list[float]]:
        """Time every entrant once a round, rounds interleaved; see the protocol."""
        with torch.cuda.stream(self._stream):
            self._new_sets()
            draws = min(rounds, math.ceil(MIN_SETS / self._launches))
            kernels = self._captured(entrants, draws)
            # Times of a card that throttles are worthless, though it may recover meanwhile.
            self._session.check_card()
            if regime == "sustained":
                self._warm_up([graph for graphs in kernels for graph in graphs])
            with self._queue(regime) as take_turn:
                for turn in range(rounds):
                    shift = turn * len(kernels) // rounds
                    for graphs in kernels[shift:] + kernels[:shift]:
                        take_turn(graphs[turn % len(graphs)])
        return [graphs[0].times for graphs in kernels]

    def _new_sets(self) -> None:
        """Operand sets, allocated while the last exist, so that they lie elsewhere in memory."""
        # Memory of graphs that are gone, which no capture gets back by itself: a product of groups
        # allocates its result in each of PyTorch's graphs.
        torch.cuda.empty_cache()
        self._sets = [launch_tensors(self._problem) for _ in range(self._set_count)]

    def _captured(self, entrants: Sequence[Entrant], draws: int) -> list[_Graphs]:
        """The graphs of each entrant, once all have been launched."""
        captured = [self._capture(entrant, draws) for entrant in entrants]
        # One by one, as all together may take a minute, and so that one that hangs is named.
        for launched, graphs in captured:
            self._session.alive()
            wait(launched, graphs[0].spec)
        return [graphs for _, graphs in captured]

    @contextmanager
    def _queue(self, regime: str) -> Iterator[Callable[[_Graph], None]]:
        """What replays a graph; behind it all times are read."""
        in_flight: deque[_Graph] = deque()
        yield partial(self._take_turn, in_flight=in_flight, regime=regime)
        for graph in in_flight:
            self._session.alive()
            graph.read()
        if regime == "sustained":
            self._session.busy_until = time.perf_counter()
        # No kernel is to blame for what comes next.
        self._session.announce(None)
        # At once, before the card cools down.
        self._session.check_card()

    def check(self, configs: Sequence[KernelConfig]) -> None:
        """Compare the results of some kernels on tensors that were timed; see the protocol."""
        if self._problem.min_bytes > MOST_CHECKED_BYTES:
            return
        session = self._session
        with torch.cuda.stream(self._stream):
            used = InUse(self._problem, self._sets[0], self._sets[-1])
            for config in configs:
                spec = spec_for(config, self._problem)
                session.announce(spec)
                launch = session.launcher(config, self._problem)
                chains, finish = spec not in session.chained, partial(session.finish, spec)
                if found := used.wrong(launch, finish, chains=chains):
                    raise KernelFailure(spec, found)
                session.chained.add(spec)
            session.announce(None)

    def _take_turn(self, graph: _Graph, in_flight: deque[_Graph], regime: str) -> None:
        """Replay a graph, behind those in flight or, in the burst regime, after an idle gap."""
        self._session.alive()
        # A graph's events are read before it runs again; all others stay queued behind the one
        # that is waited for, so in the sustained regime the card never idles.
        while graph in in_flight or (regime == "burst" and in_flight):
            self._session.alive()
            in_flight.popleft().read()
        if regime == "burst":
            time.sleep(graph.gap())
        self._replay(graph)
        in_flight.append(graph)

    def _capture(self, entrant: Entrant, draws: int) -> tuple[torch.cuda.Event, _Graphs]:
        """The event behind a kernel's first launch, and its graphs on the common operand sets."""
        spec = None if entrant is None else spec_for(entrant, self._problem)
        self._session.announce(spec)
        launch = self._session.launcher(entrant, self._problem)
        # Outside the graph first: loading the code may not be captured.
        launch(*self._sets[0])
        launched = torch.cuda.Event()
        launched.record(self._stream)
        if self._careful:
            self._session.finish(spec)
        sets = itertools.cycle(self._sets)
        times: list[float] = []
        graphs = []
        for _ in range(draws):
            graph = torch.cuda.CUDAGraph()
            start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
            graph.capture_begin()
            # Else the L2 holds operands of the kernel before, or results to be written back.
            self._session.clean_l2()
            start.record(self._stream)
            for operands in itertools.islice(sets, self._launches):
                launch(*operands)
            end.record(self._stream)
            graph.capture_end()
            done = torch.cuda.Event()
            graphs.append(_Graph(spec, graph, start, end, done, self._launches, times))
        return launched, graphs

    def _warm_up(self, graphs: list[_Graph]) -> None:
        """Keep the card busy; returns with work still queued, so that it stays busy."""
        idle = time.perf_counter() - self._session.busy_until
        deadline = time.perf_counter() + min(WARM_UP_SECONDS, WARM_UP_PER_IDLE * idle)
        queued: deque[_Graph] = deque()
        for graph in itertools.cycle(graphs):
            self._replay(graph)
            queued.append(graph)
            if len(queued) > WARM_UP_DEPTH:
                first = queued.popleft()
                wait(first.done, first.spec)
            if time.perf_counter() > deadline:
                return

    def _replay(self, graph: _Graph) -> None:
        if self._careful:
            self._session.announce(graph.spec)
        graph.graph.replay()
        graph.done.record(self._stream)
        if self._careful:
            wait(graph.done, graph.spec)


def _still_near(kernels: list[tuple[int, _Graphs]], give_up: float) -> list[tuple[int, _Graphs]]:
    """The kernels that are timed on: PyTorch's, and those near the best tilecast kernel so far."""
    firsts = [graphs[0] for _, graphs in kernels]
    best = min((min(one.times) for one in firsts if one.times and one.spec), default=math.inf)
    return [
        kernel
        for kernel, one in zip(kernels, firsts, strict=True)
        if not (one.times and one.spec) or min(one.times) <= give_up * best
    ]


def wait(event: torch.cuda.Event, spec: KernelSpec | None) -> None:
    """Wait for an event of a kernel, None for PyTorch's, but not for ever.

    Raises:
        KernelFailure: it does not happen within `HANG_SECONDS`.
    """
    deadline = time.perf_counter() + HANG_SECONDS
    while not event.query():
        if time.perf_counter() > deadline:
            raise KernelFailure(spec, f"hung: not done after {HANG_SECONDS:g} s")
