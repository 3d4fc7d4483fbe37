"""One rank of a training run with checkpointing under the eager switch.

The CPU passes for a GPU. Kernels count as compiled from a moment on that differs from rank to rank:
in the middle of the first step, or of the second. Prints who multiplied each problem, in order,
before and behind `decide_again`, and the digest of the weights.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import defaultdict
from typing import Any

import pytest
import torch
from fixtures import _taking_all, pass_for_a_gpu
from torch import distributed
from torch.utils.checkpoint import checkpoint

from tilecast.heuristics.hardware import hardware
from tilecast.inductor_hook import eager
from tilecast.inductor_hook.dispatch import switch
from tilecast.inductor_hook.patch import patching
from tilecast.inductor_hook.select import selection
from tilecast.kernels.build.builder import ObjectBuilder

WIDTHS = (128, 256, 192, 128)
ROWS, STEPS = 64, 3


def main(rank: int, store: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    patch, stock_kernel = pytest.MonkeyPatch(), patching.stock_kernel
    seen: defaultdict[str, list[str]] = defaultdict(list)
    compiled = False

    def note(who: str, a: torch.Tensor, b: torch.Tensor, biased: bool) -> None:
        problem = (*a.shape, *a.stride(), *b.shape, *b.stride(), biased)
        seen[" ".join(map(str, problem))].append(who)

    def noted(name: str, key: str) -> Any:
        stock = stock_kernel(name, key)

        def kernel(*operands: torch.Tensor, **options: Any) -> torch.Tensor:
            note("torch", *operands[-2:], biased=len(operands) == 3)
            return stock(*operands, **options)

        return kernel

    pass_for_a_gpu(
        patch, lambda spec, a, b, *rest: note("tilecast", a, b, bool(spec.operands.extras))
    )
    patch.setattr(switch, "_KEY", "CPU")
    patch.setattr(patching, "stock_kernel", noted)
    patch.setattr(selection, "hardware_of", lambda device, settings: hardware("H200"))
    patch.setattr(selection, "load_heuristic", _taking_all)
    patch.setattr(ObjectBuilder, "ready", lambda builder, spec: compiled)
    patch.setattr(ObjectBuilder, "wait", lambda builder, spec: None)

    torch.manual_seed(0)
    layers = [torch.nn.Linear(k, n).bfloat16() for k, n in zip(WIDTHS, WIDTHS[1:], strict=False)]
    weights = [weight for layer in layers for weight in layer.parameters()]
    data = torch.randn(2, ROWS, WIDTHS[0]).bfloat16()[rank]
    eager.enable()
    phases = []
    for _ in range(2):
        seen.clear()
        for step in range(STEPS):
            x = data
            for layer in layers:
                x = checkpoint(torch.nn.Sequential(layer, torch.nn.GELU()), x, use_reentrant=False)
            compiled = compiled or rank == 0 or step == 1
            x.float().square().mean().backward()
            for weight in weights:
                assert weight.grad is not None
                distributed.all_reduce(weight.grad)
                weight.data.sub_(weight.grad, alpha=0.01)
                weight.grad = None
        phases.append(dict(seen))
        distributed.barrier()
        eager.decide_again()
    eager.disable()
    patch.undo()
    bits = b"".join(weight.detach().view(torch.uint8).numpy().tobytes() for weight in weights)
    print(json.dumps({"phases": phases, "weights": hashlib.sha256(bits).hexdigest()}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
