"""The model's choices for a problem, remembered.

All functions raise `TilecastError` where no model knows the GPU, dtypes and majors; and, where
nothing is benchmarked, if it is the model of another GPU or does not know the operands well enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from tilecast.data_collection.gpu import gpu_model
from tilecast.heuristics.config import Candidates, KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.candidates import candidates, config_table
from tilecast.models.runtime import unmeasured
from tilecast.models.runtime.known_operands import check_decides_for
from tilecast.models.runtime.learned import (
    FirstChoice,
    LearnedHeuristic,
    Prediction,
    load_heuristic,
)
from tilecast.models.runtime.manifest import model_hardware
from tilecast.models.runtime.nearest_gpu import known_gpus, terms
from tilecast.reporting.choices import choices_digest, read_choices

_REMEMBERED = 4096
"""Problems whose answer is kept; a model has some dozens."""


def hardware_of(device: int, settings: Settings) -> Hardware:
    """The hardware of a CUDA device, as the user's model, tilecast or its driver describes it.

    Raises:
        TilecastError: no kernel is for this GPU, or the model is refused.
    """
    import torch

    if settings.model:
        own = _own_hardware(settings.model, settings.digest)
        if torch.cuda.get_device_name(device) in own.device_names:
            return own
    return _gpu_here(device)


@cache
def _own_hardware(model: str, digest: str) -> Hardware:
    """The GPU that a model is for: another one may come to be in its folder, with its digest."""
    return model_hardware(Path(model))


@cache
def _gpu_here(device: int) -> Hardware:
    return gpu_model.hardware_of(device)


@lru_cache
def untried(settings: Settings, gpu: Hardware) -> bool:
    """Whether nobody, not even the user, has run tilecast's kernels on such a GPU."""
    return not settings.model and not known_gpus(gpu)


@lru_cache(_REMEMBERED)
def shortlist(settings: Settings, problem: GemmProblem, gpu: Hardware) -> tuple[Prediction, ...]:
    """The configs that a problem deserves and what is expected of them, best first."""
    if settings.k == 1:
        return (first(settings, problem, gpu).prediction,)
    if named := _named(settings, problem, gpu):
        return named if settings.k == "auto" else named[: int(settings.k)]
    if untried(settings, gpu):
        telemetry.say_once("no model", unmeasured.terms(gpu))
        limit = unmeasured.OFFERED if settings.k == "auto" else int(settings.k)
        configs = candidates(problem, gpu, invariant=settings.invariant)
        return tuple(unmeasured.AnalyticOrder(gpu).predict(problem, configs, limit=limit))
    heuristic = _ranking(settings, problem.operands, gpu, benchmarked=True)
    configs = heuristic.candidates(problem, invariant=settings.invariant)
    if settings.k == "auto":
        return tuple(heuristic.shortlist(problem, configs))
    return tuple(heuristic.predict(problem, configs, limit=int(settings.k)))


@lru_cache(_REMEMBERED)
def first(settings: Settings, problem: GemmProblem, gpu: Hardware) -> FirstChoice:
    """The model's first choice for a problem, and whether the model falls back to cuBLAS.

    It never does if rows have to be the same in every batch, and decides for operands and on GPUs
    that nothing was measured of. Nor does it where a file names the config.
    """
    if named := _named(settings, problem, gpu):
        return FirstChoice(named[0], None, False)
    # Candidates that agree bit for bit: which of them is taken decides about time alone.
    heuristic = _ranking(settings, problem.operands, gpu, benchmarked=settings.invariant)
    choice = heuristic.first(problem, heuristic.candidates(problem, invariant=settings.invariant))
    return replace(choice, deferred=False) if settings.invariant else choice


def _named(settings: Settings, problem: GemmProblem, gpu: Hardware) -> tuple[Prediction, ...]:
    """What the user's file of choices names for a problem, in its order; mostly nothing."""
    if not settings.choices:
        return ()
    wanted = _choices(settings.choices, settings.named, settings.invariant).get(problem, ())
    if not wanted:
        return ()
    if untried(settings, gpu):
        configs = candidates(problem, gpu, invariant=settings.invariant)
        every = unmeasured.AnalyticOrder(gpu).predict(problem, configs)
    else:
        heuristic = _ranking(settings, problem.operands, gpu, benchmarked=True)
        configs = heuristic.candidates(problem, invariant=settings.invariant)
        every = heuristic.predict(problem, configs)
    expected = {one.config: one for one in every}
    for config in wanted:
        if config not in expected:
            raise TilecastError(
                f"{settings.choices} names {config} for {problem}, which is no candidate on "
                f"{gpu.name}; allowed: one that `tilecast space {problem} --list` prints"
            )
    return tuple(expected[config] for config in wanted)


@cache
def _choices(
    path: str, digest: str, invariant: bool
) -> Mapping[GemmProblem, tuple[KernelConfig, ...]]:
    """A file of choices, if it is still the one that was installed; problems as they are posed."""
    if choices_digest(Path(path)) != digest:
        raise TilecastError(
            f"{path} has changed since it was installed; allowed: the same; call "
            "tilecast.inductor_hook.install() again"
        )
    found = read_choices(Path(path))
    if not invariant:
        return found
    # Of two that are posed alike the first counts.
    return {one.invariant(): configs for one, configs in reversed(found.items())}


def decided(settings: Settings, problem: GemmProblem, gpu: Hardware, any_rows: bool) -> FirstChoice:
    """What runs without a benchmark: `first`, but never cuBLAS if TMA cannot store the rows.

    With ``any_rows`` the result's rows are shorter than those of the problem, which TMA can store.
    """
    choice = first(settings, problem, gpu)
    # cuBLAS takes longer for such rows than the model expects of padded ones.
    return replace(choice, deferred=False) if any_rows else choice


@lru_cache(_REMEMBERED)
def ranked(
    settings: Settings,
    problem: GemmProblem,
    gpu: Hardware,
    configs: tuple[KernelConfig, ...],
    limit: int,
) -> tuple[KernelConfig, ...]:
    """The ``limit`` of some configs that the model prefers for a problem, best first.

    In the order of all candidates of the problem, as its features compare them with each other.
    Configs that are not candidates but run come last, in the order of the model. With a ``limit``
    of 1 nothing is benchmarked.
    """
    heuristic = _ranking(settings, problem.operands, gpu, benchmarked=limit > 1)
    rivals = heuristic.candidates(problem, invariant=settings.invariant)
    best = _those_among(configs, rank(heuristic, problem, rivals))[:limit]
    others = set(configs) - set(rivals.select(configs))
    if others and len(best) < limit:
        every = config_table((*rivals, *sorted(others, key=str)), problem.operands).all()
        best += _those_among(tuple(others), rank(heuristic, problem, every))
    return tuple(best[:limit])


def _those_among(configs: Sequence[KernelConfig], ranking: Candidates) -> list[KernelConfig]:
    index = ranking.table.index
    wanted = [index[config] for config in configs if config in index]
    return list(ranking.take(np.flatnonzero(np.isin(ranking.rows, wanted))))


def portfolio(
    settings: Settings,
    problems: Sequence[GemmProblem],
    gpu: Hardware,
    any_rows: bool = False,
) -> tuple[KernelConfig, ...]:
    """The distinct first choices for several problems, in order; none where cuBLAS is chosen."""
    firsts = (decided(settings, problem, gpu, any_rows) for problem in problems)
    return tuple(dict.fromkeys(one.prediction.config for one in firsts if not one.deferred))


def _ranking(
    settings: Settings, operands: GemmOperands, gpu: Hardware, *, benchmarked: bool
) -> LearnedHeuristic:
    """The model for some operands; if it is the nearest GPU's, that is logged once."""
    heuristic = _heuristic(gpu, operands, settings.power, settings.model, settings.digest)
    if heuristic.artifact.trained_for:
        if not benchmarked:
            raise TilecastError(
                f"no model decides without a benchmark: {terms(heuristic.artifact)}"
            )
        telemetry.say_once("nearest GPU's model", terms(heuristic.artifact))
    if not benchmarked:
        check_decides_for(heuristic.artifact.measured, operands)
    return heuristic


@cache
def _heuristic(
    gpu: Hardware, operands: GemmOperands, power: str, model: str | None, digest: str
) -> LearnedHeuristic:
    """The model for some operands, if it is still the one that was installed."""
    heuristic = load_heuristic(gpu, operands, power, Path(model) if model else None)
    if not str(heuristic.artifact.digest).startswith(tuple(digest.split("+"))):
        raise TilecastError(
            f"model {model or 'shipped'} has changed since it was installed, when its digest was "
            f"{digest}; allowed: the same; call tilecast.inductor_hook.install() again"
        )
    return heuristic
