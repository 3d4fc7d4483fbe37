"""The engine of many hosts: compile tasks and measuring actors of a Ray cluster.

Compiled kernels and results go through Ray's store; this host and each node that measures also keep
the kernels in their object caches. What runs on a node are the processes of the local engine, below
those of Ray: a bad kernel ends its own process, and one of Ray's is lost with its node, with no
kernel to blame.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from tilecast.data_collection.engines.worker import START_FACTOR, LocalEngine, LocalWorker
from tilecast.data_collection.gpu.environment import cards, claimed
from tilecast.data_collection.jobs.jobs import (
    Failed,
    Job,
    Lost,
    Ready,
    Result,
    Session,
    SessionFactory,
    Worker,
)
from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.hardware import Hardware
from tilecast.kernels.build.builder import STOP_SECONDS, CompileResult, ObjectBuilder
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.objects.entry import Entry
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.spec import KernelSpec


def compile_on_node(spec: KernelSpec) -> tuple[CompileResult, bytes]:
    """Compile a kernel unless the node's cache holds it; its whole entry, empty if it failed.

    Raises:
        TilecastError: the node's cache cannot be written.
    """
    objects = ObjectCache(default_root())
    (result,) = _builder(objects).build([spec])
    entry = None if result.error else objects.entry(kernel_key(spec), asked=True)
    return result, entry.whole if entry else b""


@cache
def _builder(objects: ObjectCache) -> ObjectBuilder:
    """Keeps a process with the compiler below this one."""
    return ObjectBuilder(objects, 1)


def node_session(target: Hardware, announce: Callable[[KernelSpec | None], None]) -> Session:
    """A session on the GPU that Ray gave to this process, which holds it until it ends."""
    from tilecast.data_collection.timing.gpu_session import GpuSession

    _held.enter_context(claimed(cards((0,), target)))
    return GpuSession(ObjectCache(default_root()), 0, announce)


_held = ExitStack()


class Measurer:
    """An actor with one GPU; a worker process below it touches that."""

    def __init__(self, factory: SessionFactory, silence: float):
        """Take what `LocalWorker` takes."""
        self._begin = partial(LocalWorker, factory, silence)

    def start(self) -> Ready | Failed:
        """Start the worker, and wait until it has its GPU."""
        self._worker = self._begin()
        while self._worker.card is None:
            if (news := self._news()) is not None:
                assert isinstance(news, Failed)
                return news
        return Ready(self._worker.card)

    def run(self, job: Job, objects: Mapping[str, ray.ObjectRef]) -> Result | Failed:
        """Do a job, once the node has its kernels, which are given by their keys.

        Raises:
            TilecastError: the node's cache cannot be written, or others may write it.
        """
        mine = ObjectCache(default_root())
        for key, reference in objects.items():
            if mine.entry(key, asked=True) is None:
                mine.add(_checked(key, ray.get(reference)))
        self._worker.give(job)
        while (news := self._news()) is None:
            pass
        return news

    def _news(self) -> Result | Failed | None:
        """What happens within a second; a worker that failed is ended, as the actor may be next."""
        for worker, news in LocalEngine().news([self._worker], 1.0):
            if isinstance(news, Failed):
                worker.stop()
            return news


def _checked(key: str, whole: bytes) -> Entry:
    """The entry of a key that came through the cluster."""
    entry = Entry.read(key, whole)
    if entry is None:
        raise TilecastError(
            f"kernel {key} came damaged through the cluster, or of another version; allowed: what "
            "a node with this version of tilecast compiled; run again"
        )
    return entry


class RayWorker(Worker):
    """A worker that is an actor."""

    def __init__(
        self, objects: Mapping[str, ray.ObjectRef], factory: SessionFactory, silence: float
    ):
        """Ask for a GPU; ``objects`` are the compiled kernels by key, and grow meanwhile."""
        super().__init__(factory)
        self.silence = silence
        self.begun = time.monotonic()
        self._objects = objects
        self._sent: set[str] = set()
        # A core of its own: compilers beside it must not delay its launches.
        remote = ray.remote(Measurer).options(num_cpus=1, num_gpus=1)
        self._actor: Any = remote.remote(factory, silence)
        self.reply: Any = self._actor.start.remote()
        """None while nothing is asked of it."""

    def give(self, job: Job) -> None:
        """Start a job."""
        self.job = job
        keys = {kernel_key(spec) for spec in job.kernels} - self._sent
        fresh = {key: self._objects[key] for key in sorted(keys & self._objects.keys())}
        self._sent |= fresh.keys()
        self.reply = self._actor.run.remote(job, fresh)

    def hear(self) -> Result | Failed | Lost | None:
        """Take the reply, which has arrived; None when there is nothing to act on."""
        reply, self.reply = self.reply, None
        try:
            message = ray.get(reply)
        except RayTaskError as error:
            raise _cause(error) from error
        except RayError as error:
            return Lost(one_line(error))
        if isinstance(message, Ready):
            self.card = self.name = message.card
            return None
        return message

    def stop(self) -> None:
        """End the actor, whatever it is doing, and what is below it."""
        ray.kill(self._actor)


class RayEngine:
    """Workers and compilers of a cluster. See `tilecast.data_collection.jobs.jobs.Engine`."""

    def __init__(self, objects: ObjectCache):
        """Take this host's cache, which gets every kernel that the cluster compiles."""
        self._cache = objects
        self._objects: dict[str, ray.ObjectRef] = {}

    def start(self, factory: SessionFactory, silence: float) -> RayWorker:
        """A worker that starts as soon as a GPU is free."""
        return RayWorker(self._objects, factory, silence)

    def news(
        self, workers: Sequence[RayWorker], seconds: float
    ) -> Iterator[tuple[RayWorker, Result | Failed | Lost]]:
        """What happens within some seconds."""
        waited = {worker.reply: worker for worker in workers if worker.reply is not None}
        # One is enough to go on, and then all that are done by now.
        if waited and ray.wait(list(waited), timeout=seconds)[0]:
            done, _ = ray.wait(list(waited), num_returns=len(waited), timeout=0)
        else:
            done = []
        for worker in map(waited.__getitem__, done):
            if (news := worker.hear()) is not None:
                yield worker, news
        waits = {
            worker: time.monotonic() - worker.begun
            for worker in workers
            if not worker.card and worker.reply is not None  # else its news are yielded above
        }
        # A GPU that went with its node may never come back.
        gone = len(workers) - _resource("GPU") if waits else 0
        for place, (worker, waited_for) in enumerate(reversed(waits.items())):
            if place < gone or waited_for > worker.silence:
                worker.card = ""
            allowed = START_FACTOR * worker.silence
            if len(waits) == len(workers) and min(waits.values()) > allowed:
                yield worker, Failed(None, f"no GPU of the cluster was free for {allowed:g} s")

    def build(
        self, kernels: Sequence[KernelSpec], /, *, stop: Callable[[], bool]
    ) -> Iterator[CompileResult]:
        """Compile what this host's cache lacks; what is there can be measured on any node.

        Raises:
            TilecastError: the cluster fails, or a cache cannot be written.
        """
        missing = []
        for spec in kernels:
            if kernel_key(spec) not in self._objects:
                entry = self._cache.entry(kernel_key(spec), asked=True)
                if entry is None:
                    missing.append(spec)
                    continue
                self._objects[kernel_key(spec)] = ray.put(entry.whole)
            yield CompileResult(spec, 0.0)
        if missing:
            self._cache.tidy()
        yield from self._compile(iter(missing), stop)

    def _compile(
        self, missing: Iterator[KernelSpec], stop: Callable[[], bool]
    ) -> Iterator[CompileResult]:
        # The compiler is a process below the task: a task is lost with its node, and begun anew.
        task = ray.remote(compile_on_node).options(num_cpus=1, max_retries=-1)
        running: list[ray.ObjectRef] = []
        while True:
            for spec in itertools.islice(missing, max(0, _cores() - len(running))):
                running.append(task.remote(spec))
            if not running:
                return
            done, running = ray.wait(running, timeout=STOP_SECONDS)
            if stop():
                for reference in running:
                    ray.cancel(reference, force=True)
                return
            for result, whole in returned(done):
                if result.error is None:
                    self._cache.add(_checked(kernel_key(result.spec), whole))
                    self._objects[kernel_key(result.spec)] = ray.put(whole)
                yield result


def _cores() -> int:
    """How many kernels compile at once: one per core that no GPU needs."""
    return max(1, _resource("CPU") - _resource("GPU"))


def _resource(name: str) -> int:
    """How much of something the nodes have that live."""
    return int(ray.cluster_resources().get(name, 0))


def returned(references: Sequence[ray.ObjectRef], seconds: float | None = None) -> list[Any]:
    """What tasks returned.

    Raises:
        TilecastError: one raised it, or failed otherwise.
        GetTimeoutError: the time is up.
    """
    try:
        return ray.get(list(references), timeout=seconds)
    except GetTimeoutError:
        raise
    except RayTaskError as error:
        raise _cause(error) from error
    except RayError as error:
        raise _failed(error) from error


def _cause(error: RayTaskError) -> TilecastError:
    """What a node raised, in one line."""
    return error.cause if isinstance(error.cause, TilecastError) else _failed(error.cause or error)


def _failed(error: BaseException) -> TilecastError:
    return TilecastError(
        f"the Ray cluster failed ({one_line(error)}); allowed: nodes that stay, with the same "
        "tilecast installed on each; see `ray status`, then run again: it goes on where it was"
    )
