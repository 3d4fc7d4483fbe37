"""What Inductor's benchmark on a GPU leaves behind for `tilecast train --add`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from tilecast.data_collection.dataset.autotuned import read_autotuned
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import installed
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.models.learning.autotune_pairs import comparisons


@pytest.mark.usefixtures("gpu_with_a_model")
@pytest.mark.parametrize("subprocesses", [False, True])
def test_times_of_a_compiled_graph_are_written_and_teach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subprocesses: bool
) -> None:
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    gpu = hardware(torch.cuda.get_device_name())
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "objects"))
    (tmp_path / "objects").mkdir(0o700)
    x = torch.randn(512, 4096, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    settings = {
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": "ATEN,TILECAST",
        "autotune_in_subproc": subprocesses,
    }
    own = tmp_path / "own.jsonl"
    torch._dynamo.reset()
    counters.clear()
    with installed(4, fuse=False, learn=own), fresh_cache(), config.patch(settings):
        torch.compile(lambda a, b: torch.relu(a @ b.T))(x, weight)
        torch.compile(lambda row, a, b: torch.addmm(row, a, b.T))(bias, x, weight)
    assert not [event for event in counters["tilecast"] if event.startswith("failed")]

    usable = read_autotuned([own], gpu)
    assert usable.left_out == {}
    plain, biased = usable.found
    assert plain.problem == GemmProblem(512, 4096, 4096)
    assert biased.problem.operands == GemmOperands.parse("bf16:rcr:bias")
    for one in usable.found:
        predictions = shortlist(Settings(4), one.problem, gpu)
        assert set(one.milliseconds) == {prediction.config for prediction in predictions}
        assert one.library and 0.01 < one.library < 0.2
        for prediction in predictions:
            # Of the same size: a busy host's launches are in the time, and another power regime.
            ratio = 1000 * one.milliseconds[prediction.config] / prediction.microseconds
            assert 0.7 < ratio < 10
    assert len(comparisons(usable.found, set(), gpu)) == 2
