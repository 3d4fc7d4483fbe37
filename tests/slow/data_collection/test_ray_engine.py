"""The Ray engine: a cluster of three nodes, each with a cache of its own, that loses parts of it.

Kernels are really compiled for sm_90a; the timer is fake and the same every time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

# Spawned workers get this process's path, and find the module that their factories come from.
import fake_session
import pytest
from collection_bed import Bed, failed
from fake_session import CONFIGS, PROBLEMS, FakeFactory, Fault, NodeFactory, Turn
from processes import alive, until
from ray.cluster_utils import Cluster

from tilecast.cli.main import main
from tilecast.data_collection.engines import ray_cluster, ray_engine
from tilecast.data_collection.engines.ray_engine import Measurer, RayEngine
from tilecast.data_collection.jobs.jobs import CheckJob, Failed, Ready
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run import scheduler
from tilecast.data_collection.run.cards import card_times
from tilecast.data_collection.run.scheduler import Progress
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

SILENCE = 30.0
"""Seconds after which a worker counts as hung; more than a stall of a busy machine."""
BROKEN = CONFIGS[1]
WORKLOAD = {
    **dict.fromkeys(PROBLEMS[:4], CONFIGS[:5]),
    **dict.fromkeys(PROBLEMS[4:], CONFIGS[2:]),
}
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}
"""So that a node that is gone is missed after seconds."""


class Nodes(NamedTuple):
    """A cluster of a node that compiles, and two with what counts as a GPU."""

    cluster: Cluster
    address: str
    gpus: list[Any]
    folder: Path


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("nodes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        paths = [str(Path(fake_session.__file__).parent), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

        def about(name: str) -> dict[str, Any]:
            env = {"TILECAST_CACHE": str(folder / name)}
            return {"object_store_memory": 100 << 20, "env_vars": env}

        head = {"num_cpus": 2, "num_gpus": 0, "include_dashboard": False, "_system_config": QUICK}
        cluster = Cluster(initialize_head=True, head_node_args=head | about("head"))
        gpus = [
            cluster.add_node(wait=False, num_cpus=1, num_gpus=1, **about(name))
            for name in ("left", "right")
        ]
        cluster.wait_for_nodes()
        assert cluster.address
        yield Nodes(cluster, cluster.address, gpus, folder)
        cluster.shutdown()


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _compiling(cluster: Cluster) -> list[int]:
    """Processes of Ray's in which a compile task runs now."""
    raylets = {
        about.process.pid
        for node in cluster.list_all_nodes()
        for about in node.all_processes["raylet"]
    }
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            named = (path / "cmdline").read_bytes().startswith(b"ray::compile_on_node")
            if named and _parent(int(path.name)) in raylets:
                found.append(int(path.name))
    return found


def test_node_with_other_versions_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ray_cluster.node_versions()
    other = ours | {"nvidia-cutlass-dsl": "0.1"}
    monkeypatch.setattr(ray_cluster, "node_versions", lambda: other)
    with pytest.raises(TilecastError) as caught, ray_cluster.connected(nodes.address):
        pass
    message = str(caught.value)
    assert f"has nvidia-cutlass-dsl {ours['nvidia-cutlass-dsl']}; allowed: " in message
    assert "nvidia-cutlass-dsl 0.1" in message and "\n" not in message


def test_node_whose_gpu_is_none_is_refused_in_one_line(nodes: Nodes) -> None:
    place = ray_cluster.ray_cluster(
        nodes.address, ObjectCache(nodes.folder / "unused"), hardware("H200")
    )
    with pytest.raises(TilecastError, match="^CUDA device 0 is not there; allowed: "), place:
        pass
    assert not (nodes.folder / "unused").exists()


def test_campaign_has_a_gpu_that_nobody_knows_described_where_it_is(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This host has none; the rates are those that the node says, and a later run keeps them."""
    new = replace(hardware("H100"), name="H20", device_names=("NVIDIA H20",))
    measured = replace(new, dram_bytes_per_second=3.8e12)

    def describe(device: int, known: Sequence[Hardware], *, measure: bool) -> Hardware:
        assert measure
        import ray

        assert ray.get_gpu_ids() == [device]
        assert os.environ["TILECAST_CACHE"].endswith(("left", "right"))
        return replace(measured, sm_count=78 + len(known))

    monkeypatch.setattr(ray_cluster, "hardware_of", describe)
    asked: list[Hardware] = []
    monkeypatch.setattr(
        "tilecast.cli.commands.collect.collect", lambda options, tell: asked.append(options.gpu)
    )
    command = [
        *("campaign", "--engine", "ray", "--address", nodes.address),
        *("--store", str(tmp_path / "store"), "--out", str(tmp_path / "model")),
        *("--cache", str(tmp_path / "objects")),
    ]
    assert main(command) == 2  # nothing was measured
    assert set(asked) == {replace(measured, sm_count=78)}
    with closing(MeasurementStore(tmp_path / "store")) as store:
        store.begin_run({"gpu": new.name, "hardware": new.facts()})
    asked.clear()
    assert main(command) == 2
    assert set(asked) == {replace(measured, sm_count=79)}


PRIORITY = """
import os
import ray
from tilecast.data_collection.engines.ray_cluster import connected

def priority():
    return os.getpriority(os.PRIO_PROCESS, 0)

with connected("local"):
    print(priority(), ray.get(ray.remote(priority).remote()))
"""


def test_what_measures_on_this_host_alone_comes_behind_nobody() -> None:
    # In a process of its own, as this one may be part of the cluster above.
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    told = subprocess.check_output([sys.executable, "-c", PRIORITY], env=env, text=True)
    ours, theirs = told.split()[-2:]
    assert theirs == ours


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_cluster_that_is_not_there(address: str) -> None:
    with (
        pytest.raises(TilecastError, match=f"^no Ray cluster can be used at {address!r}"),
        ray_cluster.connected(address),
    ):
        pass


@pytest.mark.parametrize("stage", ["start", "run"])
def test_actor_ends_a_worker_that_hangs(tmp_path: Path, stage: str) -> None:
    before = set(multiprocessing.active_children())
    (tmp_path / "log").touch()
    hangs = Fault(CONFIGS[1], "check", "hang")
    slow = 60.0 if stage == "start" else 0.0
    factory = FakeFactory(tmp_path / "log", faults=(hangs,), slow_start=slow)
    silence = 0.5 if stage == "start" else 5.0
    measurer = Measurer(factory, silence)
    said = measurer.start()
    culprit, seconds = None, 2
    if stage == "run":
        assert said == Ready("card")
        specs = tuple(KernelSpec(config, LINEAR_BF16) for config in CONFIGS[:3])
        said, culprit, seconds = measurer.run(CheckJob(specs), {}), specs[1], 5
    assert said == Failed(culprit, f"hung: no sign of life for {seconds} s")
    assert set(multiprocessing.active_children()) <= before


def test_what_a_throttling_card_says_is_measured_again_on_another_node(
    nodes: Nodes, tmp_path: Path
) -> None:
    bed = Bed(tmp_path)
    # As cuBLAS's kernel runs, which is in every job.
    hot = bed.factory(card="hot", faults=(Fault(None, "screen", "throttle", times=1),))
    cool = bed.factory(card="cool", turns=(Turn("screen", "hot.screen"),))
    pairs = [(card, PROBLEMS[0]) for card in ("cool", "hot")]
    with ray_cluster.connected(nodes.address):
        engine = RayEngine(ObjectCache(tmp_path / "objects"))
        bed.collect(hot, cool, workload=WORKLOAD, engine=engine, compared=pairs)
    assert bed.verified() == {problem.m for problem in WORKLOAD}
    assert bed.failing() == set()
    assert bed.troubles() == [("hot", "the GPU throttles: hardware thermal")]
    compared = card_times(bed.ask(lambda store: store.runs()))
    assert sorted((one.card, one.problem) for one in compared) == pairs
    assert {progress.gpus for progress in bed.progress} == {2}


def test_compilers_that_hang_are_given_up_once_nobody_waits(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "hanging"

    def hang(spec: KernelSpec) -> None:
        with noted.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(3600)

    monkeypatch.setattr(ray_engine, "compile_on_node", hang)
    kernels = [KernelSpec(config, LINEAR_BF16) for config in CONFIGS]
    engine = RayEngine(ObjectCache(tmp_path / "objects"))
    with ray_cluster.connected(nodes.address):
        assert list(engine.build(kernels, stop=noted.exists)) == []
        until(lambda: not any(alive(int(process)) for process in noted.read_text().split()), 60)


def test_store_is_complete_though_a_worker_and_a_node_are_lost(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "STRETCH", 2)  # the last problem's kernels are compiled later
    objects = ObjectCache(tmp_path / "objects")
    monkeypatch.setenv("TILECAST_CACHE", str(objects.root))
    many, one = Bed(tmp_path / "many"), Bed(tmp_path / "one")
    # Its check takes the process with it, on whichever engine.
    faults = (Fault(BROKEN, "check", "exit"),)
    killed: list[int] = []

    def lose(progress: Progress) -> None:
        if progress.phase == "compile" and not killed:
            # Of five kernels on two cores, so that others are compiled now, or soon.
            while not (compiling := _compiling(nodes.cluster)):
                time.sleep(0.01)
            killed.append(compiling[0])
            os.kill(killed[0], signal.SIGKILL)
        if progress.phase == "measure" and progress.done == 1:
            # The actor of Ray's, above the process that has just timed something.
            killed.append(_parent(many.logged()[-1][-1]))
            os.kill(killed[1], signal.SIGKILL)
        if progress.phase == "measure" and progress.done == 2:
            nodes.cluster.remove_node(nodes.gpus.pop(), allow_graceful=False)

    with ray_cluster.connected(nodes.address):
        engine = RayEngine(objects)
        many.collect(
            *(NodeFactory(many.log, card, faults, pace=0.1) for card in ("left", "right")),
            **{"workload": WORKLOAD, "engine": engine, "build": engine.build, "report": lose},
            silence_seconds=SILENCE,
        )
    assert len(killed) == 2 and len(nodes.gpus) == 1

    # On this host, with the objects that the nodes compiled.
    one.collect(
        *(NodeFactory(one.log, card, faults) for card in ("left", "right")),
        workload=WORKLOAD,
        build=partial(compile_all, cache=objects, workers=2),
    )
    assert [row[:12] for row in many.rows()] == [row[:12] for row in one.rows()]
    assert many.checks() == one.checks()
    assert many.verified() == {problem.m for problem in WORKLOAD}
    reasons = {name: {why for _, _, why in found} for name, found in failed(many.rows()).items()}
    assert reasons == {BROKEN.name: {"crashed: exit code 139"}}
    # Every kernel came from a node.
    assert len(objects.sizes()) == len(CONFIGS)
    # Nothing that touched a GPU has outlived its actor, however that ended.
    workers = {line[-1] for line in many.logged()}
    assert len(workers) >= 3  # two were ended, and one has measured the last
    assert not any(map(alive, workers))
