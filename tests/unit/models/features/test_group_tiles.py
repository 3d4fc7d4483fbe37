"""How many tiles groups of rows have, beside all ways to deal rows and what a collector draws."""

from itertools import product

import numpy as np
import pytest
import torch

from tilecast.data_collection.timing.tensors import group_ends
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import MAX_EXTENT, GemmProblem
from tilecast.models.features.group_tiles import group_tiles


def _spread(counts: list[int]) -> list[float]:
    """Of what is about normal: the middles of fifths, rounded."""
    mean, deviation = np.mean(counts), np.std(counts)
    return [round(mean + deviation * step) for step in (-1.28, -0.52, 0, 0.52, 1.28)]


@pytest.mark.parametrize(
    ("rows", "groups", "height"), [(9, 4, 1), (9, 4, 2), (12, 3, 5), (3, 6, 2), (7, 2, 8)]
)
def test_tiles_of_all_ways_to_deal_rows(rows: int, groups: int, height: int) -> None:
    """With shares of a flat Dirichlet distribution all are as likely."""
    ways = [way for way in product(range(rows + 1), repeat=groups) if sum(way) == rows]
    counts = [sum(-(-size // height) for size in way) for way in ways]
    assert group_tiles(rows, groups, height).tolist() == _spread(counts)
    problem = GemmProblem(rows, 8, 8, groups, GemmOperands.parse("bf16:rcr:row-groups"))
    assert problem.products == pytest.approx(np.mean([sum(map(bool, way)) for way in ways]))


def test_tiles_are_those_that_the_collector_draws() -> None:
    random, heights = torch.Generator().manual_seed(0), np.array([64, 128, 256])
    ends = torch.stack([group_ends(4096, 32, random) for _ in range(2000)])
    sizes = ends.diff(prepend=torch.zeros(len(ends), 1, dtype=torch.int32)).numpy()
    drawn = -(-sizes[..., None] // heights)
    for height, counts in zip(heights.tolist(), drawn.sum(1).T, strict=True):
        found = group_tiles(4096, 32, height)
        assert found.mean() == pytest.approx(counts.mean(), abs=0.5)
        assert found.std() == pytest.approx(0.87 * counts.std(), abs=0.4)


def test_one_group_has_all_rows_and_one_row_one_tile() -> None:
    assert group_tiles(300, 1, 64).tolist() == [5] * 5
    assert group_tiles(1, 512, 64).tolist() == [1] * 5


@pytest.mark.parametrize("groups", [1, 2, 1000, 40_000, MAX_EXTENT])
def test_any_number_of_rows_takes_few_terms(groups: int) -> None:
    """Hundreds of tiles of a group are half a tile more than its rows fill, on average."""
    found = group_tiles(MAX_EXTENT, groups, 64)
    assert (np.diff(found) >= 0).all()
    if groups < 2**20:
        assert found.mean() == pytest.approx(MAX_EXTENT / 64 + groups / 2, rel=1e-6)
    assert found.max() <= MAX_EXTENT


def test_the_two_ways_to_count_many_rows_meet() -> None:
    summed, filled = (group_tiles(rows, 60, 64) for rows in (983_040, 983_041))
    np.testing.assert_allclose(summed, filled, atol=3)
