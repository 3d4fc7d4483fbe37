"""The network predicts as torch does, learns what is planted, and is checked whole."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from itertools import pairwise
from threading import Event, Thread, current_thread

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.hardware import hardware
from tilecast.models.features.features import log_analytic
from tilecast.models.learning.fit_network import fit_network
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import problem_features
from tilecast.models.runtime import network as network_module
from tilecast.models.runtime.network import MAX_LAYERS, MAX_OUTPUT, MAX_WIDTH, REACH, Network

H200 = hardware("H200")
WIDTHS = (5, 7, 4, 3)


@pytest.fixture
def network() -> Network:
    source = np.random.default_rng(0)
    shapes = [shape for above, below in pairwise(WIDTHS) for shape in ((above, below), (below,))]
    drawn = [source.normal(size=shape).astype(np.float32) for shape in shapes]
    return Network(
        np.array([False, True, False, False, True]),
        np.array([0, 3, 0, 1, 4], np.float32),
        np.array([1, 2, 0.5, 1, 3], np.float32),
        tuple(zip(drawn[::2], drawn[1::2], strict=True)),
    )


@pytest.fixture
def rows() -> np.ndarray:
    drawn = np.random.default_rng(1).normal(size=(40, WIDTHS[0])).astype(np.float32)
    drawn[:, [1, 4]] = np.abs(drawn[:, [1, 4]]) * 100
    return drawn


def _by_torch(network: Network, rows: torch.Tensor) -> torch.Tensor:
    values = rows.float()
    for index, (weights, bias) in enumerate(network.layers):
        if index:
            values = values.relu()
        values = values @ torch.from_numpy(weights) + torch.from_numpy(bias)
    return values


def test_predictions_are_those_of_torch(network: Network, rows: np.ndarray) -> None:
    expected = _by_torch(network, torch.from_numpy(network.scaled(rows))).numpy()
    found = network.predict(rows)
    assert (found.dtype, found.shape) == (np.float32, (40, 3))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert network.predict(rows[:0]).shape == (0, 3)


def test_one_thread_multiplies_and_others_may_again(
    network: Network, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many a matrix library has: they would wait for cores that compilers keep busy."""
    network_module._blas.cache_clear()  # others may have loaded one since
    meanwhile, values = [], Network._values
    monkeypatch.setattr(
        Network, "_values", lambda self, rows: meanwhile.append(_threads()) or values(self, rows)
    )
    with threadpool_limits(2, user_api="blas"):
        network.predict(rows)
        assert _threads() == {2}
    assert meanwhile == [{1}]


def test_predictions_that_overlap_leave_the_threads_as_they_were(
    network: Network, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Thread(target=network.predict, args=(rows,)) for _ in range(2))
    inside = {first: Event(), second: Event()}

    values = Network._values

    def slowly(network: Network, rows: np.ndarray) -> np.ndarray:
        inside[current_thread()].set()
        if current_thread() is first:
            inside[second].wait(0.2)
        else:
            first.join()
        return values(network, rows)

    monkeypatch.setattr(Network, "_values", slowly)
    (before,) = _threads()
    _limit_from_elsewhere(2)
    try:
        first.start()
        inside[first].wait()
        second.start()
        second.join()
        assert _threads() == {2}
    finally:
        _limit_from_elsewhere(before)


def _limit_from_elsewhere(threads: int) -> None:
    """Set a limit in a thread that ends: while the one that set it lives, no other may."""
    thread = Thread(target=threadpool_limits, args=(threads, "blas"))
    thread.start()
    thread.join()


def _threads() -> set[int]:
    return {found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"}


def test_features_are_scaled_and_end_where_nothing_was_seen(network: Network) -> None:
    row = np.array([[0.25, 31, 100, 1, 2**20]], np.float32)
    before = row.copy()
    np.testing.assert_allclose(network.scaled(row), [[0.25, 1, REACH, 0, REACH]], atol=1e-6)
    np.testing.assert_array_equal(row, before)
    further = np.array([[0.25, 31, 1e6, 1, 1e9]], np.float32)
    np.testing.assert_array_equal(network.predict(row), network.predict(further))


def test_what_is_predicted_fits_into_a_time(network: Network, rows: np.ndarray) -> None:
    *before, (weights, bias) = network.layers
    loud = replace(network, layers=(*before, (weights * 1e4, bias)))
    found = loud.predict(rows)
    assert np.abs(found).max() == MAX_OUTPUT
    assert np.isfinite(np.exp(found)).all()


def test_a_round_trip_changes_nothing(network: Network, rows: np.ndarray) -> None:
    content = network.pack()
    assert len(content) == Network.packed_bytes(WIDTHS) == 4 * (3 * 5 + 6 * 7 + 8 * 4 + 5 * 3)
    again = Network.unpack(content, list(WIDTHS))
    assert again.widths == WIDTHS
    assert again.pack() == content
    np.testing.assert_array_equal(again.predict(rows), network.predict(rows))


def _with(network: Network, place: int, value: float) -> bytes:
    numbers = np.frombuffer(network.pack(), "<f4").copy()
    numbers[place] = value
    return numbers.tobytes()


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, 0.5, "a scale that is none"),
        (10, 0.0, "a scale that is none"),
        (10, -1.0, "a scale that is none"),
        (20, np.nan, "a weight that is no number"),
        (-1, np.inf, "a weight that is no number"),
        (20, 3e38, r"weights that add up to \S+e\+3\d"),
    ],
)
def test_what_is_unsound_is_refused(
    network: Network, place: int, value: float, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Network.unpack(_with(network, place, value), WIDTHS)


@pytest.mark.parametrize(
    "widths",
    [(5,), (), (5, 0, 3), (5, -7, 3), (5, MAX_WIDTH + 1, 3), (5, 7.0, 3), (5, True, 3),
     (5,) * (MAX_LAYERS + 2)],
)  # fmt: skip
def test_layers_that_none_has_are_refused(widths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="layers of "):
        Network.packed_bytes(widths)


def test_it_learns_both_regimes(synthetic_table: list[ProblemLabels]) -> None:
    network = fit_network(synthetic_table, (), H200)
    for output, power in enumerate(REGIMES):
        lost = []
        for labels in synthetic_table:
            features = problem_features(labels, H200)
            scores = network.predict(features)[:, output] + log_analytic(features)
            lost.append(labels.slowdown(power, truth=True)[scores.argmin()])
        assert np.log(lost).mean() < np.log(1.05)


def test_it_learns_from_few_problems_whose_other_configs_are_far_slower(
    synthetic_table: list[ProblemLabels],
) -> None:
    few = []
    for labels in synthetic_table[:3]:
        slow = labels.slowdown("burst") > 1
        few.append(
            replace(labels, label={one: times * 1000**slow for one, times in labels.label.items()})
        )
    network = fit_network(few, (), H200)
    for labels in few:
        features = problem_features(labels, H200)
        scores = network.predict(features)[:, REGIMES.index("burst")] + log_analytic(features)
        assert np.isfinite(scores).all()
        assert scores[labels.label["burst"].argmin()] < np.median(scores)


def test_a_process_forked_amid_a_prediction_predicts(network: Network) -> None:
    features = np.zeros((3, WIDTHS[0]), np.float32)
    with network_module._limiting:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                network.predict(features)
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
