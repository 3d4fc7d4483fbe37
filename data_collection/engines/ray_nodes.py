"""What runs on a node of a Ray cluster: the processes of the local engine, below those of Ray.

So a bad kernel ends its own process; one of Ray's is lost with its node, and no kernel is to blame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import ray

from tilecast.data_collection.engines.worker import LocalEngine, LocalWorker
from tilecast.data_collection.gpu.environment import cards, claimed, present
from tilecast.data_collection.jobs.jobs import Failed, Job, Ready, Result, Session, SessionFactory
from tilecast.data_collection.jobs.store import store_versions
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.kernels.build.builder import ObjectBuilder
from tilecast.kernels.build.compiling import CompileResult
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.objects.entry import Entry
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.spec import KernelSpec

_SHARED = ("heuristics", "kernels", "data_collection")
"""Packages of tilecast that run on nodes."""


@cache
def node_versions() -> dict[str, str]:
    """What must be the same on every node: the versions of a store, and tilecast's source."""
    digest = hashlib.sha256()
    for package in _SHARED:
        for path in sorted((Path(__file__).parents[2] / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return store_versions() | {"tilecast sources": digest.hexdigest()[:16]}


def check_versions(wanted: Mapping[str, str]) -> None:
    """Check that this node has the versions of the host of the command.

    Raises:
        TilecastError: it has others.
    """
    found = node_versions()
    if found == wanted:
        return
    names = sorted({name for name, _ in found.items() ^ wanted.items()})
    here, wanted_text = (
        ", ".join(f"{name} {facts.get(name)}" for name in names) for facts in (found, wanted)
    )
    raise TilecastError(
        f"node {ray.util.get_node_ip_address()} has {here}; allowed: {wanted_text}, as where the "
        "command runs; install the same tilecast on every node"
    )


def describe_node(gpus: int, target: Hardware) -> tuple[list[str], dict[str, Any]]:
    """Hashes of the GPUs that Ray gave to this process and that are there, and `describe`."""
    return present(range(gpus), target)


def compile_on_node(spec: KernelSpec, wanted: Mapping[str, str]) -> tuple[CompileResult, bytes]:
    """Compile a kernel unless the node's cache holds it; its whole entry, empty if it failed.

    Raises:
        TilecastError: the node has other versions, or its cache cannot be written.
    """
    check_versions(wanted)
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

    def __init__(self, factory: SessionFactory, silence: float, wanted: Mapping[str, str]):
        """Take what `LocalWorker` takes, and the versions that the node must have."""
        self._begin = partial(LocalWorker, factory, silence)
        self._wanted = wanted

    def start(self) -> Ready | Failed:
        """Start the worker, and wait until it has its GPU.

        Raises:
            TilecastError: the node has other versions.
        """
        check_versions(self._wanted)
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
        _take(objects)
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


def _take(objects: Mapping[str, ray.ObjectRef]) -> None:
    """Store those kernels that the cache of this node lacks."""
    mine = ObjectCache(default_root())
    missing = [key for key in objects if mine.entry(key, asked=True) is None]
    found = ray.get([objects[key] for key in missing]) if missing else []
    for key, whole in zip(missing, found, strict=True):
        mine.add(checked(key, whole))


def checked(key: str, whole: bytes) -> Entry:
    """The entry of a key that came through the cluster.

    Raises:
        TilecastError: it is not whole.
    """
    entry = Entry.read(key, whole)
    if entry is None:
        raise TilecastError(
            f"kernel {key} came damaged through the cluster; allowed: the entry that a node "
            "compiled; run again"
        )
    return entry
