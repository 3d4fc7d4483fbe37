"""How the network is fitted: on whole problems, for both regimes at once, with torch.

As for the trees (`tilecast.models.learning.targets`), the target of a config is the log of its time
over the analytic time, and only differences within a problem count: the weighted mean of the errors
of a problem is subtracted before they are squared. A second part of the loss is the cross entropy
between a softmax of the expected times and one of the measured: it looks at which come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.hardware import Hardware
from tilecast.models.features.features import log_analytic
from tilecast.models.learning.autotune_pairs import Comparison, compared_features
from tilecast.models.learning.folds import one_thread
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import FAR, FLOOR, FOCUS, THINNING, problem_features
from tilecast.models.runtime.network import Network, take_logarithms

if TYPE_CHECKING:
    import torch

HIDDEN = (192, 192, 192)
"""Widths of the layers between features and outputs."""
EPOCHS = 40
"""How often each problem is seen, unless that takes more than `MOST_STEPS`."""
MOST_STEPS = 8_500
"""Steps at most, so that training takes no longer the more problems there are."""
TOGETHER = 8
"""Problems of a step."""
RATE = 3e-3
"""The largest learning rate of one cycle that rises and falls (Smith and Topin, 2018)."""
DECAY = 1e-2
"""Weight decay."""
ORDER_SHARE = 3e-3
"""What the cross entropy counts for beside the squared error."""
EXPECTED_NEAR, MEASURED_NEAR = 0.03, 0.02
"""Log slowdowns over which the shares of a softmax fall to 1/e."""
LARGE = 64.0
"""A feature that exceeds it counts by its logarithm."""


@dataclass(frozen=True, eq=False)
class _Configs:
    """The configs of one problem; what the loss needs of them is computed once.

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
    mean: torch.Tensor
    """The same over its sum: weights of a mean."""
    share: torch.Tensor
    """A softmax of the measured times."""

    @classmethod
    def of(
        cls, features: np.ndarray, log_time: np.ndarray, slowdown: np.ndarray, scale: Network
    ) -> _Configs:
        """Take features as they are, and log times up to a constant of the problem."""
        import torch

        level = log_time - log_analytic(features)[:, None]
        weight = np.exp(-FOCUS * slowdown) + FLOOR
        near = np.exp(-slowdown / MEASURED_NEAR)
        arrays = (level, slowdown, weight, weight / weight.sum(0), near / near.sum(0))
        tensors = (torch.from_numpy(array.astype(np.float32)) for array in arrays)
        return cls(torch.from_numpy(scale.scaled(features).astype(np.float32)), *tensors)


def fit_network(
    table: Sequence[ProblemLabels],
    compared: Sequence[Comparison],
    hardware: Hardware,
    epochs: int = EPOCHS,
    seed: int = 0,
) -> Network:
    """Learn log(time / analytic time) of configs up to a constant of the problem.

    The network has an output for each of `REGIMES`; see `tilecast.models.learning.fit_ranker`.
    """
    import torch
    from torch.nn.utils import clip_grad_norm_
    from torch.optim.lr_scheduler import OneCycleLR

    random = torch.Generator().manual_seed(seed)
    scale = _scale(np.concatenate([problem_features(labels, hardware) for labels in table]))
    problems = [_configs(labels, hardware, scale) for labels in table]
    problems += [_compared(one, hardware, scale) for one in compared]
    weights = _first_weights((len(scale.mean), *HIDDEN, len(REGIMES)), random)
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=DECAY, fused=True)
    orders = (torch.randperm(len(problems), generator=random) for _ in range(epochs))
    groups = [group.tolist() for order in orders for group in order.split(TOGETHER)][:MOST_STEPS]
    cycle = OneCycleLR(optimizer, RATE, len(groups))
    with one_thread():
        for group in groups:
            optimizer.zero_grad()
            _loss(weights, [problems[i] for i in group]).backward()
            clip_grad_norm_(weights, 1.0)
            optimizer.step()
            cycle.step()
    arrays = [weight.detach().numpy() for weight in weights]
    layers = tuple(zip(arrays[::2], arrays[1::2], strict=True))
    return Network(scale.logarithmic, scale.mean, scale.deviation, layers)


def _scale(features: np.ndarray) -> Network:
    """A network without layers, which scales features as they are distributed."""
    logarithmic = features.max(0) > LARGE
    rows = features.copy()
    take_logarithms(rows, logarithmic)
    # What is the same everywhere must not be divided by nothing.
    return Network(logarithmic, rows.mean(0), rows.std(0) + np.float32(1e-6), ())


def _configs(labels: ProblemLabels, hardware: Hardware, scale: Network) -> _Configs:
    """The configs near the best of a problem in one of the regimes, and some of the others.

    Without any of these, the network would know nothing of slow configs, and put one first.
    """
    features, log_time = problem_features(labels, hardware), labels.log_times()
    slowdown = log_time - log_time.min(0)
    near = slowdown.min(1) < np.log(FAR)
    kept = near | (np.arange(len(near)) % THINNING == 0)
    return _Configs.of(features[kept], log_time[kept], slowdown[kept], scale)


def _compared(one: Comparison, hardware: Hardware, scale: Network) -> _Configs:
    """Configs of which only the order is known, the same for both regimes."""
    slowdown = np.log(np.stack([one.slowdown] * len(REGIMES), axis=1))
    return _Configs.of(compared_features(one, hardware), slowdown, slowdown, scale)


def _first_weights(widths: tuple[int, ...], random: torch.Generator) -> list[torch.Tensor]:
    """Weights and biases of each layer, drawn as torch's own linear layers draw them."""
    import torch

    drawn = []
    for above, below in zip(widths, widths[1:], strict=False):
        for shape in ((above, below), (below,)):
            uniform = torch.rand(shape, generator=random) * 2 - 1
            drawn.append((uniform / above**0.5).requires_grad_())
    return drawn


def _loss(weights: list[torch.Tensor], problems: list[_Configs]) -> torch.Tensor:
    """How far a network is from some problems' times."""
    import torch

    values = torch.cat([one.features for one in problems])
    level = torch.cat([one.level for one in problems])
    slowdown = torch.cat([one.slowdown for one in problems])
    weight = torch.cat([one.weight for one in problems])
    mean = torch.cat([one.mean for one in problems])
    share = torch.cat([one.share for one in problems])
    counts = torch.tensor([len(one.level) for one in problems])
    problem = torch.repeat_interleave(torch.arange(len(problems)), counts)

    *hidden, last = zip(weights[::2], weights[1::2], strict=True)
    for layer, bias in hidden:
        values = torch.addmm(bias, values, layer).relu()
    error = torch.addmm(last[1], values, last[0]) - level

    def of_problem(each: torch.Tensor) -> torch.Tensor:
        """Sums over the configs of a problem, beside each of them."""
        sums = torch.zeros(len(problems), each.shape[1]).index_add(0, problem, each)
        return sums[problem]

    centred = error - of_problem(mean * error)
    squared = (weight * centred**2).sum() / weight.sum()
    # Centred, no exponential overflows by what all configs of a problem share.
    log_expected = -(centred + slowdown).clamp(-1, 1) / EXPECTED_NEAR
    entropy = (share * (torch.log(of_problem(torch.exp(log_expected))) - log_expected)).sum()
    return squared + ORDER_SHARE * entropy / len(problems) / len(REGIMES)
