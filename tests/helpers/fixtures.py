"""Measurements that no GPU took: run times from a formula, in the shape of a real data set."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from filelock import FileLock

from tilecast.data_collection.dataset.dataset import COLUMNS, Dataset, write_dataset
from tilecast.data_collection.dataset.measurement import REFERENCE, REGIMES
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.operands import GROUP_ROWS, LINEAR_BF16, MATRIX, NUMBER, GemmOperands
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.candidates import candidates, space, stock_candidates
from tilecast.kernels.launch import Launch
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec
from tilecast.models.learning.fit_deferral import beside_library, fit_deferral
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.fit_trees import fit_times
from tilecast.models.learning.held_out import ask
from tilecast.models.runtime.artifact import SHIPPED, Artifact, save
from tilecast.models.runtime.known_operands import check_ranks_for
from tilecast.models.runtime.learned import LearnedHeuristic, load_heuristic
from tilecast.models.runtime.manifest import MANIFEST, digest_of
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.stopping import MEANS, StoppingRule

FAMILIES = ((4096, 4096), (12288, 4096), (4096, 11008), (2112, 7168), (1280, 8192), (7168, 2048))
EXTENTS = (8, 64, 512, 4096)
PROVENANCE = {
    "runs": [{"gpus": [{"name": "NVIDIA H200"}], "date": "2026-11-21T00:00:00+00:00"}],
    "space_version": 3,
    "protocol_version": 1,
}
FINALIST = 1.15
"""Within this of the best after the screen: raced."""


def change_manifest(folder: Path, change: Callable[[dict], object], *, sign: bool = True) -> None:
    """Change the manifest of the model in a folder, whose digest fits again unless it shall not."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    change(manifest)
    if sign:
        manifest["sha256"] = digest_of(manifest)
    path.write_text(json.dumps(manifest))


def synthetic_configs() -> frozenset[QuackConfig]:
    """Every twentieth config of the first family's space, and those of it that are stock."""
    gpu = hardware("H200")
    configs: Any = space(LINEAR_BF16, gpu, [QuackConfig.family]).configs
    stock: Any = stock_candidates(LINEAR_BF16, gpu, configs)
    return frozenset(configs[::20]) | set(stock)


def synthetic_microseconds(problem: GemmProblem, config: QuackConfig, regime: str) -> float:
    """A run time that a GPU might take: whole waves, a memory bound, a config's efficiency."""
    rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
    tiles = math.ceil(rows / config.tile_m) * math.ceil(columns / config.tile_n)
    area = config.tile_m * config.tile_n
    efficiency = 0.5 + 0.3 * area / 32768 + 0.02 * min(config.stages, 5)
    efficiency += 0.03 * (config.cluster_m * config.cluster_n > 1)
    efficiency -= 0.1 * (config.schedule == "pong" and area > 16384)
    waves = math.ceil(tiles * config.split_k / 132) / config.split_k
    compute = waves * 2 * area * problem.k / (7.5e6 * efficiency) + 0.5 * (config.split_k > 1)
    memory = problem.min_bytes / (4e6 * (1 - 0.3 / config.stages))
    if regime == "sustained":
        compute *= 1.15 + 0.05 * area / 32768
    wobble = zlib.crc32(f"{problem} {config}".encode()) / 2**32 - 0.5
    return (3 + max(compute, memory)) * (1 + 0.01 * wobble)


def _rows(
    problem: GemmProblem, configs: Collection[QuackConfig], noise: Callable[[], float]
) -> Iterator[dict[str, object]]:
    def row(config: QuackConfig, regime: str, stage: str, error: float, failure=None) -> dict:
        time = None if failure else synthetic_microseconds(problem, config, regime) * error
        return _row(problem, config.name, regime, stage, time, failure)

    measured: list[Any] = [c for c in candidates(problem, hardware("H200")) if c in configs]
    # One config fails on each problem.
    yield row(measured.pop(), "sustained", "screen", 1, "wrong result")
    screened = {config: 1 + 5 * noise() for config in measured}
    for config, error in screened.items():
        yield row(config, "sustained", "screen", error)
    times = {c: synthetic_microseconds(problem, c, "sustained") * e for c, e in screened.items()}
    finalists = [c for c in measured if times[c] <= FINALIST * min(times.values())]
    for regime in ("burst",) if problem.m <= 64 else ("burst", "sustained"):
        for config in finalists:
            yield row(config, regime, "race", 1 + noise())
        for config in finalists[:8]:
            yield row(config, regime, "verify", 1.01 * (1 + noise()))
    yield _row(problem, REFERENCE, "sustained", "screen", min(times.values()), None)


def _row(problem, config, regime, stage, microseconds, failure) -> dict[str, object]:
    return {
        **dict(zip(PROBLEM_FIELDS, problem.row(), strict=True)),
        **{
            "config": config,
            "regime": regime,
            "stage": stage,
            "microseconds": microseconds,
            "rounds": 3,
        },
        **{"spread": None if failure else 0.01, "failure": failure, "device": "synthetic"},
    }


def make_dataset(problems: list[GemmProblem], configs: Collection[QuackConfig]) -> Dataset:
    """Measurements of problems, the same every time."""
    source = random.Random(0)
    rows = [
        row
        for problem in problems
        for row in _rows(problem, configs, lambda: source.gauss(0, 0.001))
    ]
    return Dataset(pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS), PROVENANCE)


@pytest.fixture(scope="session")
def synthetic_dataset() -> Dataset:
    """Six (n, k) families, each with four m, and some hundred configs."""
    problems = [GemmProblem(m, n, k) for n, k in FAMILIES for m in EXTENTS]
    return make_dataset(problems, synthetic_configs())


@pytest.fixture(scope="session")
def data(synthetic_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its file."""
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    write_dataset(synthetic_dataset, path)
    return str(path)


@pytest.fixture(scope="session")
def few_dataset() -> Dataset:
    """Of the same families, each with two m, and of a quarter of those configs: trained on soon."""
    problems = [GemmProblem(m, n, k) for n, k in FAMILIES for m in (64, 512)]
    return make_dataset(problems, frozenset(sorted(synthetic_configs())[::4]))


@pytest.fixture(scope="session")
def sound_data(few_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of its rows of one problem."""
    path, rows = tmp_path_factory.mktemp("sound") / "data.parquet", few_dataset.rows
    own: Any = rows[(rows["m"] == 64) & (rows["n"] == 4096)]
    write_dataset(Dataset(own, few_dataset.provenance), path)
    return path


@pytest.fixture(scope="session")
def other_dataset(few_dataset: Dataset) -> Dataset:
    """The same again, as measured on an H100."""
    return Dataset(few_dataset.rows, PROVENANCE | {"runs": [{"gpu": "H100"}]})


@pytest.fixture(scope="session")
def synthetic_table(synthetic_dataset: Dataset):
    """Its labels."""
    from tilecast.models.learning.labels import label_table

    return label_table(synthetic_dataset)


@pytest.fixture(scope="session")
def small_model(synthetic_table) -> Artifact:
    """A whole artifact of a few shallow trees, which is quick to make, write and read."""
    gpu = hardware("H200")
    ranker = fit_ranker(synthetic_table, hardware=gpu, rounds=24, depth=6, passes=60)
    rule = StoppingRule(-5.0, (-1.0, -0.5, 50.0, -0.1), {mean: -5.0 - mean / 2 for mean in MEANS})
    line = dict.fromkeys(OBJECTIVES, (0.015, 0.4))
    learned = beside_library([ask(ranker, labels) for labels in synthetic_table])
    deferral, _ = fit_deferral((learned[::2], learned[1::2]))
    assert deferral
    return Artifact(
        *(gpu, (LINEAR_BF16,), (LINEAR_BF16,), ranker),
        {regime: fit_times(synthetic_table, gpu, regime) for regime in REGIMES},
        *(line, rule, deferral),
        {"dataset": {"sha256": "none"}},
    )


@pytest.fixture(scope="session")
def small_model_folder(small_model: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is saved, to be copied."""
    folder = tmp_path_factory.mktemp("small")
    save(small_model, folder)
    return folder


@pytest.fixture(scope="session")
def few_trained(few_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """What `train` makes of the few, by the first worker that asks; the others read its file."""
    from tilecast.models.learning.training import train
    from tilecast.models.learning.training_sets import by_gpu

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    path = folder / "few_trained"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            path.write_bytes(pickle.dumps(train(by_gpu([few_dataset]))))
    return pickle.loads(path.read_bytes())


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[KernelSpec]]:
    """The hook as on an H200, not installed; gives the kernels that it begins to compile.

    None is compiled: that takes seconds, and tests/slow/kernels/test_builder.py sees to it. The
    shipped model leaves nothing to the library, which depends on what it was trained on. What
    PyTorch compiles for the CPU is scalar code: vectors take a compiler twice as long.
    """
    from torch._dynamo.utils import counters
    from torch._inductor import config

    from tilecast.inductor_hook import telemetry, uninstall
    from tilecast.inductor_hook.dispatch.switch import disable
    from tilecast.inductor_hook.select import selection
    from tilecast.kernels.build.builder import ObjectBuilder

    started: list[KernelSpec] = []
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "objects"))
    monkeypatch.setattr(ObjectBuilder, "start", lambda self, spec: started.append(spec))
    monkeypatch.setattr(ObjectBuilder, "wait", lambda self, spec: None)
    monkeypatch.setattr(selection, "hardware_of", lambda device, settings: hardware("H200"))
    monkeypatch.setattr(selection, "load_heuristic", _taking_all)
    answers = (*(selection._heuristic, selection.first, selection.shortlist, selection.ranked),)
    telemetry._told.clear()
    counters["tilecast"].clear()
    for remembered in answers:
        remembered.cache_clear()
    with config.patch({"cpp.simdlen": 1, "cpp.vec_isa_ok": True}):
        yield started
    uninstall()
    disable()
    telemetry._told.clear()
    for remembered in answers:
        remembered.cache_clear()


@pytest.fixture
def asked(hook: list[KernelSpec]) -> Iterator[None]:
    """Inductor autotunes, with the hook at hand."""
    from torch._inductor import config

    with config.patch(max_autotune_gemm=True):
        yield


@pytest.fixture
def graph(hook: list[KernelSpec], request: pytest.FixtureRequest) -> Iterator[Any]:
    """A graph that is being lowered, with the hook at hand.

    Of the backends that the module calls `COMPETING`, or Inductor's own.
    """
    from hook_graph import lowering
    from torch._inductor import config

    backends = getattr(request.module, "COMPETING", config.max_autotune_gemm_backends)
    with lowering() as graph, config.patch(max_autotune_gemm_backends=backends):
        yield graph


def _taking_all(
    gpu: Hardware, operands: GemmOperands, power: str = "robust", folder: Path | None = None
) -> LearnedHeuristic:
    """`load_heuristic`, of which the shipped one leaves nothing to the library."""
    heuristic = load_heuristic(gpu, operands, power, folder)
    if folder is None:
        return LearnedHeuristic(replace(heuristic.artifact, deferral=None), power)
    return heuristic


@pytest.fixture
def gpu(hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[KernelSpec]]:
    """Has tensors of the CPU pass for a GPU's; gives the kernels that are launched."""
    from tilecast.inductor_hook.eager import decide_again

    launched: list[KernelSpec] = []
    pass_for_a_gpu(monkeypatch, lambda spec, *tensors: launched.append(spec))
    decide_again()
    yield launched
    decide_again()


@pytest.fixture
def switch(gpu: list[KernelSpec], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[KernelSpec]]:
    """The eager switch, off, for the kernels of the CPU; gives those of ours that are launched."""
    from tilecast.inductor_hook.dispatch import switch

    monkeypatch.setattr(switch, "_KEY", "CPU")
    yield gpu
    switch.disable()


def pass_for_a_gpu(monkeypatch: pytest.MonkeyPatch, launches: Callable[..., object]) -> None:
    """Have tensors of the CPU pass for a GPU's, and functions for kernels.

    ``launches`` is given the kernel and its tensors at each launch.
    """
    import torch
    from torch._C._dynamo import guards

    from tilecast.inductor_hook.dispatch import plan
    from tilecast.inductor_hook.run import in_torch, static

    scaled_groups_on_the_cpu()

    def load(spec: KernelSpec, objects: object, device: int) -> Launch:
        multiply = in_torch.in_torch(spec.operands)
        if spec.operands.groups:  # which torch does without `out` alone: the switch would be asked
            multiply = _by_reference(spec.operands)

        def function(*tensors: torch.Tensor) -> None:
            launches(spec, *tensors)
            check_handed(spec, *tensors)
            # It writes memory, and autograd does not see that.
            with torch.no_grad():
                multiply(*(t.data if isinstance(t, torch.Tensor) else t for t in tensors))

        return function

    monkeypatch.setattr(static, "load_kernel", load)
    monkeypatch.setattr(static, "_loaded", {})
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(plan, "_empty", vars(guards)["_empty_strided_cpu"])


def check_handed(spec: KernelSpec, a: Any, b: Any, out: Any, *extras: Any) -> None:
    """That a launch is given what a kernel takes behind ``out``."""
    for extra, given in zip(spec.operands.extras, extras, strict=True):
        if extra.kind == NUMBER:
            assert type(given) is float
        else:
            assert given.ndim == {MATRIX: out.ndim, GROUP_ROWS: 2}.get(extra.kind, 1)


@cache
def scaled_groups_on_the_cpu() -> object:
    """What keeps a kernel of ``_scaled_grouped_mm`` there, which PyTorch lacks on the CPU."""
    import torch

    def multiply(a, b, scale_a, scale_b, offs, bias=None, scale_result=None, out_dtype=None, *fast):
        out, start = a.new_empty(len(a), b.shape[-1], dtype=out_dtype or torch.bfloat16), 0
        for group, end in enumerate(offs.tolist()):
            rows = slice(start, end)
            if start < end:
                scales = scale_a[rows, None], scale_b[group, None]
                out[rows] = torch.ops.aten._scaled_mm(
                    a[rows], b[group], *scales, out_dtype=out.dtype
                )
            start = end
        return out

    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_grouped_mm", multiply, "CPU")
    return library


def _by_reference(operands: GemmOperands) -> Launch:
    from tilecast.data_collection.timing.tensors import reference

    def multiply(a: Any, b: Any, out: Any, *extras: Any) -> None:
        problem = GemmProblem(len(a), b.shape[-1], a.shape[-1], len(b), operands)
        out.copy_(reference(problem, (a, b, *extras)))

    return multiply


@pytest.fixture
def knowing_no_matrix(hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped model as if it had seen no matrix added."""
    from tilecast.inductor_hook.select import selection

    def load(gpu: Hardware, operands: GemmOperands, *rest: Any) -> LearnedHeuristic:
        heuristic = _taking_all(gpu, LINEAR_BF16, *rest)
        known = tuple(
            one
            for one in heuristic.artifact.operands
            if all(extra.kind != MATRIX for extra in one.extras)
        )
        check_ranks_for(known, operands)
        artifact = replace(heuristic.artifact, operands=known, measured=known)
        return LearnedHeuristic(artifact, heuristic.objective)

    monkeypatch.setattr(selection, "load_heuristic", load)


@pytest.fixture
def with_margin(another_model: Path) -> Callable[[float], Path]:
    """Gives a copy of the shipped model with another margin of its deferral."""

    def make(margin: float) -> Path:
        margins = dict.fromkeys(OBJECTIVES, margin)
        change_manifest(another_model, lambda m: m.update(deferral_margins=margins))
        return another_model

    return make


@pytest.fixture
def leaving_model(with_margin: Callable[[float], Path]) -> Path:
    """One that leaves everything to the library."""
    return with_margin(9.0)


@pytest.fixture
def another_model(tmp_path: Path) -> Path:
    """A copy of the shipped model that counts as another: its facts differ."""
    folder = tmp_path / "another"
    shutil.copytree(SHIPPED / "H200", folder)
    change_manifest(folder, lambda m: m["facts"].update(note="another"))
    return folder
