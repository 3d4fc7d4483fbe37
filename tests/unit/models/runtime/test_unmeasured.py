"""On a GPU of which nothing was measured an arithmetic order is benchmarked and decides nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hook_graph import choices_of, linear, warnings_told

from tilecast.data_collection.dataset.dataset import read_dataset, shipped_data
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.candidates import candidates
from tilecast.models.evaluation.evaluation import held_out, unfitted
from tilecast.models.evaluation.regret import regrets
from tilecast.models.learning.labels import label_table, spread
from tilecast.models.runtime.unmeasured import AnalyticOrder, terms

B200, H100 = hardware("B200"), hardware("H100")


@pytest.fixture(autouse=True)
def blackwell(hook: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook as on a B200."""
    monkeypatch.setattr(selection, "hardware_of", lambda device, settings: B200)


@pytest.mark.parametrize(("k", "count"), [(5, 5), (2, 2), ("auto", 5)])
def test_max_autotune_benchmarks_the_first_and_says_so_once(
    graph: Any, caplog: pytest.LogCaptureFixture, k: int | str, count: int
) -> None:
    install(k=k)
    for m in (16, 512, 8192):
        among = candidates(GemmProblem(m, 4096, 4096), B200)
        first = AnalyticOrder(B200).rank(GemmProblem(m, 4096, 4096), among, limit=count)
        found = choices_of(linear(m, 4096, 4096), "mm")
        assert [one.name.removeprefix("tilecast_") for one in found] == [c.name for c in first]
    assert warnings_told(caplog) == [f"tilecast: {terms(B200)}"]


def test_nothing_is_decided_without_a_benchmark(
    graph: Any, hook: list, caplog: pytest.LogCaptureFixture
) -> None:
    install(k=1)
    assert choices_of(linear(16, 4096, 4096), "mm") == []
    assert hook == []
    assert "no model is shipped for B200; allowed: H100, H200" in caplog.text
    with pytest.raises(TilecastError, match="no model is shipped for B200"):
        selection.portfolio(Settings(), [GemmProblem(16, 4096, 4096)], B200)


def test_no_kernel_of_another_family_is_put_in_order() -> None:
    """NVGEMM and FlexGEMM keep their own."""
    hopper = tuple(candidates(GemmProblem(16, 4096, 4096), H100)[:4])
    with pytest.raises(TilecastError, match="no model is shipped for B200"):
        selection.ranked(Settings(), GemmProblem(16, 4096, 4096), B200, hopper, 2)


def test_a_problem_without_candidates_is_refused() -> None:
    with pytest.raises(TilecastError, match="no config suits 16x4096x4096 on B200"):
        selection.shortlist(Settings(invariant=True), GemmProblem(16, 4096, 4096), B200)


def test_the_first_five_are_near_the_best_on_a_gpu_that_was_measured() -> None:
    """On 70 problems of an H100, which the constants were not fitted on."""
    data = shipped_data(H100)
    assert data
    table = [x for x in label_table(read_dataset(data)) if x.problem.operands == LINEAR_BF16][::4]
    asked = held_out(lambda *_: AnalyticOrder(H100), table, "robust", unfitted(table))
    one, five = (spread(regrets(asked, table)[:, k - 1])["geomean"] for k in (1, 5))
    assert five < 0.03
    assert five < one < 0.08
