"""What the benchmarks of the hook do without a GPU: turns, failures, ratios, bars."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import compile_time
import fused_activations
import hf_models
import inductor_timing
import invariant_models
import pandas as pd
import pytest
import real_models
import runner
import steps
import torch
from hook_graph import traced

from tilecast.inductor_hook.fuse.activation import activations


def test_turns_rotate_but_cold_comes_first() -> None:
    names = ["ATEN", "TRITON", compile_time.COLD, "TILECAST k=5"]
    assert compile_time.turn(names, 1) == [compile_time.COLD, "TRITON", "TILECAST k=5", "ATEN"]
    assert compile_time.turn(names[:2], 3) == ["TRITON", "ATEN"]


def test_steps_take_turns() -> None:
    order: list[str] = []

    def timer(step: Any, count: int) -> float:
        order.append(f"{step()} {count}")
        return {"fast": 1.0, "slow": 20.0}[step()]

    times = steps.interleaved({"a": lambda: "fast", "b": lambda: "slow"}, 3, timer)
    assert times == {"a": [1.0] * 3, "b": [20.0] * 3}
    # Once to learn how many steps fill a round, then in turns.
    assert order == ["fast 2", "slow 2"] + ["fast 5", "slow 1"] + ["slow 1", "fast 5"] + [
        "fast 5",
        "slow 1",
    ]


@pytest.mark.parametrize("name", fused_activations.ACTIVATIONS)
def test_what_is_to_be_fused_is_what_the_hook_looks_for(name: str) -> None:
    """A benchmark of what it does not find would measure nothing."""
    activation = fused_activations.ACTIVATIONS[name]
    operands = [((48, 32), torch.bfloat16), ((32, 64), torch.bfloat16)]
    (found,) = activations(traced(lambda x, weight: activation(x @ weight), operands))
    assert found.fused.epilogue == (name,)


def test_error_is_over_all_tensors() -> None:
    expected = [torch.tensor([3.0]), torch.tensor([0.0, 4.0])]
    found = [torch.tensor([3.0]), torch.tensor([0.0, 4.5])]
    assert real_models.relative_error(found, expected) == pytest.approx(0.1)


def test_a_reference_is_wide_and_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 4, dtype=torch.bfloat16)
    config = SimpleNamespace(_experts_implementation="grouped_mm")
    used: list[str] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.config = layer, config

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            used.append(config._experts_implementation)
            return [self.layer(x).square().sum()]

    model, given = Model(), {"x": torch.randn(3, 8, dtype=torch.bfloat16)}
    before = [weight.detach().clone() for weight in model.parameters()]
    wide = torch.nn.Linear(8, 4)
    wide.load_state_dict(layer.state_dict())
    loss = wide(given["x"].float()).square().sum()
    expected = torch.autograd.grad(loss, [*wide.parameters()])

    case = hf_models.Case("any", "train", 1, 3)
    found = hf_models.in_float32(case, model, given)
    assert all(map(torch.equal, found, expected))
    assert {one.dtype for one in found} == {torch.float32}
    assert (used, config._experts_implementation) == (["eager"], "grouped_mm")
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert all(map(torch.equal, model.parameters(), before))
    narrow = hf_models.step_of(hf_models.run_model, case, model, given)()
    assert {one.dtype for one in narrow} == {torch.bfloat16}


def test_problems_of_the_timing_are_of_families_that_were_never_measured() -> None:
    rows = pd.read_parquet(runner.DATA, columns=["n", "k"]).drop_duplicates()
    measured = set(zip(rows["n"], rows["k"], strict=True))
    assert not measured & set(inductor_timing.FAMILIES)


def test_prompts_whose_logits_depend_on_the_batch_are_counted() -> None:
    prompts = torch.arange(invariant_models.BATCH)[:, None]
    assert set(invariant_models.differing(lambda rows: rows * 2.0, prompts).values()) == {0}
    found = invariant_models.differing(lambda rows: rows + 1.0 * (len(rows) == 7), prompts)
    assert found == {"alone": 0, "by seven": 63, "in another order": 0, "again": 0}
    by_place = invariant_models.differing(
        lambda rows: rows + torch.arange(len(rows))[:, None] % 2, prompts
    )
    assert by_place["in another order"] > 0
    assert by_place["alone"] > 0
    assert by_place["again"] == 0
