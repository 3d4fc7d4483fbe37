"""A Ray cluster as the place of a collection: its nodes, their GPUs and their versions."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tilecast.data_collection.engines.ray_engine import RayEngine, node_session, returned
from tilecast.data_collection.gpu.environment import present, public_command
from tilecast.data_collection.gpu.gpu_model import hardware_of
from tilecast.data_collection.jobs.jobs import Site
from tilecast.data_collection.jobs.store import store_versions
from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.hardware import Hardware
from tilecast.kernels.objects.cache import ObjectCache

ANSWER_SECONDS = 5.0
"""Within this time a cluster can be reached, or counts as absent."""
FREE_SECONDS = 60.0
"""How long GPUs are waited for that something else in the cluster holds."""
OF_THIS_HOST: dict[str, Any] = {"_system_config": {"worker_niceness": 0}}
"""How the cluster `local` starts. With Ray's default niceness of 15, launches would wait for a core
while the host does something else."""


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Be part of a cluster whose nodes all have the versions of this host.

    Raises:
        TilecastError: it does not answer, or a node has others.
    """
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray would try for minutes
            socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
        elif address not in ("auto", "local"):
            raise ValueError("it is no address")
        begun = OF_THIS_HOST if address == "local" else {}
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING, **begun)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        raise TilecastError(
            f"no Ray cluster can be used at {address!r} ({one_line(error)}); allowed: on "
            "one of its nodes auto or HOST:PORT, or local for one of this host alone; start it "
            "with `ray start`, or name another one"
        ) from error
    try:
        check = ray.remote(_check_versions)
        returned([_on(node, check).remote(node_versions()) for node in _nodes()])
        yield
    finally:
        ray.shutdown()


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


def _check_versions(wanted: Mapping[str, str]) -> None:
    """Check that this node has the versions of the host of the command."""
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


def _nodes() -> dict[str, int]:
    """The nodes that live, each with its number of GPUs."""
    return {
        node["NodeID"]: int(node["Resources"].get("GPU", 0))
        for node in ray.nodes()
        if node["Alive"]
    }


def _hosts() -> dict[str, int]:
    """The nodes that have GPUs."""
    if hosts := {node: gpus for node, gpus in _nodes().items() if gpus}:
        return hosts
    raise TilecastError(
        "the Ray cluster has no GPU; allowed: one with NVIDIA GPUs; add a node with `ray start`"
    )


def _on(node: str, task: Any, gpus: int = 0) -> Any:
    """A task as it runs on one node, with some of its GPUs."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return task.options(num_cpus=0, num_gpus=gpus, scheduling_strategy=there)


def _described(
    hosts: Mapping[str, int], target: Hardware
) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """For each node its GPUs' hashes and what `describe` says of them; see `ray_cluster`."""
    there = ray.remote(present)
    asked = [_on(node, there, gpus).remote(range(gpus), target) for node, gpus in hosts.items()]
    found = dict(zip(hosts, _once_free(asked), strict=True))
    libraries = {json.dumps([f["cuda"], f["versions"]], sort_keys=True) for _, f in found.values()}
    if len(libraries) > 1:
        raise TilecastError(
            f"nodes of the Ray cluster have other libraries ({' or '.join(sorted(libraries))}); "
            "allowed: the same on every node with a GPU, as times of different ones do not mix"
        )
    return found


def _once_free(asked: Sequence[ray.ObjectRef]) -> list[Any]:
    """What tasks returned that need GPUs."""
    try:
        return returned(asked, FREE_SECONDS)
    except GetTimeoutError as error:
        raise TilecastError(
            f"GPUs of the Ray cluster were not free for {FREE_SECONDS:g} s; allowed: one in which "
            "nothing else runs; see `ray status`, then run again"
        ) from error


def cluster_gpu(address: str, known: Sequence[Hardware]) -> Hardware:
    """The hardware of one of a cluster's GPUs, as `hardware_of` measures it on its node.

    Raises:
        TilecastError: the cluster cannot be used or has no GPU that is free; or as `hardware_of`.
    """
    with connected(address):
        node = next(iter(_hosts()))
        task = _on(node, ray.remote(hardware_of), 1)
        (found,) = _once_free([task.remote(0, known, measure=True)])
        return found


@contextmanager
def ray_cluster(address: str, objects: ObjectCache, target: Hardware) -> Iterator[Site]:
    """All GPUs and cores of a cluster, for one collection.

    Raises:
        TilecastError: it does not answer; its nodes differ from this host or each other in what is
            installed; it has no GPU, other ones, or such as something else holds.
    """
    with connected(address):
        hosts = _hosts()
        found = _described(hosts, target)
        engine = RayEngine(objects)
        (_, facts), *_others = found.values()
        gpus = [gpu for _, about in found.values() for gpu in about["gpus"]]
        yield Site(
            facts | {"gpus": gpus, "command": public_command(sys.argv)},
            [card for chosen, _ in found.values() for card in chosen],
            [partial(node_session, target)] * sum(hosts.values()),
            engine,
            engine.build,
        )
