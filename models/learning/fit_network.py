"""How the network is fitted: on whole problems, for both regimes at once, with torch.

As for the trees (`tilecast.models.learning.targets`), the target of a config is the log of its time
over the analytic time, and only differences within a problem count: the weighted mean of the errors
of a problem is subtracted before they are squared. A second part of the loss is the cross entropy
between a softmax of the expected times and one of the measured: it looks at which come first.

A step sees some configs of each of its problems, drawn anew each time. Configs of a problem tell
much of the same; with a third of them a step has three times the problems in the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.hardware import Hardware
from tilecast.models.features.features import log_analytic
from tilecast.models.learning.autotune_pairs import Comparison, compared_features
from tilecast.models.learning.folds import one_thread
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import FAR, THINNING, problem_features
from tilecast.models.runtime.network import Network, take_logarithms

if TYPE_CHECKING:
    import torch

HIDDEN = (128, 128, 128)
"""Widths of the layers between features and outputs."""
PASSES = 120
"""How often each problem is seen, unless that takes more than `MOST_STEPS`."""
MOST_STEPS = 16_000
"""Steps at most, so that training takes no longer the more problems there are."""
TOGETHER = 24
"""Problems of a step."""
SHARE = 0.35
"""Of a problem's configs, that a step sees."""
RATE = 1.5e-3
"""The largest learning rate of one cycle that rises and falls (Smith and Topin, 2018)."""
DECAY = 0.1
"""Weight decay."""
FOCUS, FLOOR = 4.0, 0.05
"""Exponent and least of a config's weight, as in `tilecast.models.learning.targets`; there they are
those of the trees, which do better with steeper ones."""
ORDER_SHARE = 3e-3
"""What the cross entropy counts for beside the squared error."""
EXPECTED_NEAR, MEASURED_NEAR = 0.03, 0.02
"""Log slowdowns over which the shares of a softmax fall to 1/e."""
MOST = 1.0
"""The log slowdown from which they fall no further: the exponential of it would become 0."""
LARGE = 64.0
"""A feature that exceeds it counts by its logarithm."""


@dataclass(frozen=True, eq=False)
class _Configs:
    """The configs of some problems.

    The tensors are float32 [configs, ...], and but for the first one number for each of `REGIMES`.
    """

    features: torch.Tensor
    """As the first layer sees them."""
    level: torch.Tensor
    """log(time / analytic time)."""
    slowdown: torch.Tensor
    """Log of the time over the problem's best."""
    weight: torch.Tensor
    """What a squared error counts."""
    near: torch.Tensor
    """What a config counts for in the softmax of the measured times."""
    problem: torch.Tensor
    """int64 [configs]: the number of the problem; within a step, one below `TOGETHER`."""

    @classmethod
    def of(
        cls, problem: int, features: np.ndarray, log_time: np.ndarray, scale: Network
    ) -> _Configs:
        """Take features as they are, and log times up to a constant of the problem."""
        import torch

        slowdown = log_time - log_time.min(0)
        level = log_time - log_analytic(features)[:, None]
        weight = np.exp(-FOCUS * slowdown) + FLOOR
        near = np.exp(-slowdown.clip(max=MOST) / MEASURED_NEAR)
        tensors = (
            torch.from_numpy(array.astype(np.float32))
            for array in (scale.scaled(features), level, slowdown, weight, near)
        )
        return cls(*tensors, problem=torch.full((len(features),), problem))

    @classmethod
    def joined(cls, parts: Sequence[_Configs]) -> _Configs:
        """All of some, one below the other."""
        import torch

        names = [field.name for field in fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def take(self, rows: torch.Tensor) -> _Configs:
        """Those in some rows."""
        names = [field.name for field in fields(self)]
        return _Configs(*(getattr(self, name).index_select(0, rows) for name in names))

    def totals(self, each: torch.Tensor) -> torch.Tensor:
        """Sums over the configs of each problem of a step, beside each of them."""
        import torch

        place = self.problem[:, None].expand_as(each)
        return torch.zeros(TOGETHER, each.shape[1]).scatter_add(0, place, each).gather(0, place)


def fit_network(
    table: Sequence[ProblemLabels],
    compared: Sequence[Comparison],
    hardware: Hardware,
    passes: int = PASSES,
    seed: int = 0,
) -> Network:
    """Learn log(time / analytic time) of configs up to a constant of the problem.

    The network has an output for each of `REGIMES`; see `tilecast.models.learning.fit_ranker`.
    """
    import torch
    from torch.optim.lr_scheduler import OneCycleLR

    random = torch.Generator().manual_seed(seed)
    known = [_taught(labels, hardware) for labels in table]
    known += [_compared(one, hardware) for one in compared]
    scale = _scale(np.concatenate([problem_features(labels, hardware) for labels in table]))
    configs = _Configs.joined([_Configs.of(i, *one, scale) for i, one in enumerate(known)])
    weights = _first_weights((len(scale.mean), *HIDDEN, len(REGIMES)), random)
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=DECAY, fused=True)
    steps = min(passes * math.ceil(len(known) / TOGETHER), MOST_STEPS)
    cycle = OneCycleLR(optimizer, RATE, steps)
    with one_thread():
        for step in islice(_steps(configs, random), steps):
            optimizer.zero_grad()
            _loss(weights, step).backward()
            optimizer.step()
            cycle.step()
    arrays = [np.ascontiguousarray(weight.detach().numpy().T) for weight in weights]
    layers = tuple(zip(arrays[::2], arrays[1::2], strict=True))
    return Network(scale.logarithmic, scale.mean, scale.deviation, layers)


def _scale(features: np.ndarray) -> Network:
    """A network without layers, which scales features as they are distributed."""
    logarithmic = features.max(0) > LARGE
    rows = features.copy()
    take_logarithms(rows, logarithmic)
    # What is the same everywhere must not be divided by nothing.
    return Network(logarithmic, rows.mean(0), rows.std(0) + np.float32(1e-6), ())


def _taught(labels: ProblemLabels, hardware: Hardware) -> tuple[np.ndarray, np.ndarray]:
    """Features and log times of configs near a problem's best in a regime, and some of the others.

    Without any of these, the network would know nothing of slow configs, and put one first.
    """
    features, log_time = problem_features(labels, hardware), labels.log_times()
    near = (log_time - log_time.min(0)).min(1) < np.log(FAR)
    kept = near | (np.arange(len(near)) % THINNING == 0)
    return features[kept], log_time[kept]


def _compared(one: Comparison, hardware: Hardware) -> tuple[np.ndarray, np.ndarray]:
    """The same of configs of which only the order is known, which is that of both regimes."""
    slowdown = np.log(np.stack([one.slowdown] * len(REGIMES), axis=1))
    return compared_features(one, hardware), slowdown


def _first_weights(widths: tuple[int, ...], random: torch.Generator) -> list[torch.Tensor]:
    """Weights [below, above] and biases of each layer, drawn as torch's linear layers draw them."""
    import torch

    drawn = []
    for above, below in zip(widths, widths[1:], strict=False):
        for shape in ((below, above), (below,)):
            uniform = torch.rand(shape, generator=random) * 2 - 1
            drawn.append((uniform / above**0.5).requires_grad_())
    return drawn


def _steps(configs: _Configs, random: torch.Generator) -> Iterator[_Configs]:
    """Without end: all problems in a random order, `TOGETHER` at a time, then in another order.

    Of each problem some configs are there, `SHARE` of all on average.
    """
    import torch

    count = int(configs.problem[-1]) + 1
    while True:
        place = torch.randperm(count, generator=random)[configs.problem]
        rows = torch.nonzero(torch.rand(len(place), generator=random) < SHARE)[:, 0]
        rows = rows[place[rows].argsort(stable=True)]
        sizes = (place[rows] // TOGETHER).bincount().tolist()
        numbered = replace(configs, problem=place % TOGETHER)
        yield from (numbered.take(step) for step in rows.split(sizes) if len(step))


def _loss(weights: list[torch.Tensor], step: _Configs) -> torch.Tensor:
    """How far a network is from the times of a step's problems."""
    import torch
    from torch.nn.functional import linear

    *hidden, last = zip(weights[::2], weights[1::2], strict=True)
    values = step.features
    for layer in hidden:
        values = linear(values, *layer).relu()
    error = linear(values, *last) - step.level
    sums = step.totals(torch.cat((step.weight * error, step.weight, step.near), 1))
    of_error, of_weight, of_near = sums.chunk(3, 1)
    centred = error - of_error / of_weight
    squared = (step.weight * centred**2).sum() / step.weight.sum()
    # Centred, no exponential overflows by what all configs of a problem share.
    log_expected = -(centred + step.slowdown).clamp(-MOST, MOST) / EXPECTED_NEAR
    share = step.near / of_near
    entropy = share * (torch.log(step.totals(torch.exp(log_expected))) - log_expected)
    return squared + ORDER_SHARE * entropy.sum() / share.sum()
