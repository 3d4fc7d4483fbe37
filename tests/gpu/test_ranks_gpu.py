"""The same choices and the same bits on every rank: k = 1 in two processes on two GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import printed, started

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings

M, N, K = 192, 1024, 512
PRODUCTS = (
    ("bf16:rcr:bias", M, N, K),
    ("bf16:rcr:bias", M, K, N),
    ("bf16:rrr", M, N, K),
    ("bf16:rrr", M, K, N),
    ("bf16:crr", K, N, M),
    ("bf16:crr", N, K, M),
)
"""Of a step of two linear layers: forward, gradients of the inputs, gradients of the weights."""

STEP = f"""
import hashlib, json, os, re
import torch
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
layers = torch.nn.Sequential(
    torch.nn.Linear({K}, {N}), torch.nn.GELU(), torch.nn.Linear({N}, {K})
).bfloat16()
x, gradient = (torch.randn({M}, {K}).bfloat16() for _ in range(2))

def step(layers, x, gradient):
    out = layers(x)
    # Not those of the biases, which are sums that Triton's kernels make.
    wanted = (x, layers[0].weight, layers[2].weight)
    return [out.detach(), *torch.autograd.grad(out, wanted, gradient)]

def bits(tensors):
    whole = b"".join(t.contiguous().view(torch.uint8).cpu().numpy().tobytes() for t in tensors)
    return hashlib.sha256(whole).hexdigest()

def error(found, exact):
    return (torch.linalg.norm(found.float() - exact) / torch.linalg.norm(exact)).item()

layers, x, gradient = layers.cuda(), x.cuda().requires_grad_(), gradient.cuda()
# Settings of their own: a backward pass compiles in another thread.
layers.forward = torch.compile(layers.forward, options={{"max_autotune_gemm": True}})
results = [step(layers, x, gradient) for _ in range(20)]
torch._dynamo.reset()
del layers.forward
exact = step(layers.float(), x.detach().float().requires_grad_(), gradient.float())
sources = "".join(open(module.__file__).read() for module in PyCodeCache.modules)
kernels = set(re.findall(r"StaticMatmul.named\\(\\s*'([^']+)', '([^']+)'", sources))
print(json.dumps({{
    "device": results[0][0].get_device(),
    "bits": sorted(set(map(bits, results))),
    "error": max(map(error, results[0], exact)),
    "kernels": sorted(kernels),
    "benchmarked": counters["inductor"]["select_algorithm_autotune"],
    "failed": [name for name in counters["tilecast"] if name.startswith("failed")],
}}))
"""


PARALLEL = """
import json, os
import torch
from torch import distributed
from torch.nn import functional as F

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
distributed.init_process_group(
    "nccl", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=2
)
torch.manual_seed(0)
x, up, down = (torch.randn(*s).bfloat16() for s in ((64, 4096), (1024, 4096), (4096, 1024)))
up, down = up.chunk(2)[rank] / 64, down.chunk(2, 1)[rank].contiguous() / 32
x, up, down = x.cuda(), up.cuda(), down.cuda()

def layer(x):
    return F.linear(F.silu(F.linear(x, up)), down)

def whole(call, x):
    out = call(x)
    distributed.all_reduce(out)
    return out

found = {}
for name, call in {"eager": layer, "compiled": torch.compile(layer, dynamic=False)}.items():
    every = whole(call, x)
    parts = torch.cat([whole(call, x[row : row + 1]) for row in range(8)])
    parts = torch.cat([parts, *(whole(call, rows.contiguous()) for rows in x[8:].split(7))])
    other = every.clone()
    distributed.broadcast(other, 0)
    differing = [int((a != every).any(-1).sum()) for a in (parts, other)]
    exact = F.silu(x.float() @ up.float().T) @ down.float().T
    distributed.all_reduce(exact)
    error = (torch.linalg.norm(every - exact) / torch.linalg.norm(exact)).item()
    found[name] = {"differing": differing, "error": error}
distributed.destroy_process_group()
print(json.dumps(found))
"""


def _run(step: str, folder: Path, **environment: str) -> list[dict[str, Any]]:
    """What two ranks report that run at the same time.

    Each is started as a launcher does it, with caches of Inductor that nobody else has.
    """
    ranks = []
    for rank in range(2):
        own = {"LOCAL_RANK": str(rank), "TORCHINDUCTOR_CACHE_DIR": str(folder / str(rank))}
        ranks.append(started("-c", step, **own, **environment))
    return [json.loads(lines[-1]) for lines in printed(*ranks)]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")
@pytest.mark.usefixtures("gpu_with_a_model")
@pytest.mark.parametrize("backends", ["TILECAST", "ATEN,TRITON,TILECAST"])
def test_every_rank_chooses_and_computes_alike(tmp_path: Path, backends: str) -> None:
    gpu = hardware(torch.cuda.get_device_name())
    names = {"TILECAST_K": "1", "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": backends}
    reports = [one for run in "ab" for one in _run(STEP, tmp_path / run, **names)]
    assert [one.pop("device") for one in reports] == [0, 1, 0, 1]
    first, *others = reports
    assert others == [first] * 3
    assert len(first["bits"]) == 1, "each step has the bits of the first"
    assert first["error"] < 2e-2, "three products behind each other, rounded to bf16"
    assert first["benchmarked"] == 0
    assert first["failed"] == []
    problems = [GemmProblem(*e, operands=GemmOperands.parse(text)) for text, *e in PRODUCTS]
    best = [shortlist(Settings(k=1), problem, gpu)[0].config.name for problem in problems]
    expected = sorted({(name, text) for name, (text, *_) in zip(best, PRODUCTS, strict=True)})
    if backends == "TILECAST":
        assert first["kernels"] == [list(one) for one in expected]
    else:  # the model leaves some to ATen
        assert {tuple(one) for one in first["kernels"]} <= set(expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")
def test_rows_of_layers_over_two_ranks_have_the_same_bits_in_every_batch(tmp_path: Path) -> None:
    """The sum of two ranks has one order; k is added up in stretches in the first layer."""
    names = {"TILECAST_INVARIANT": "1", "MEETING": str(tmp_path / "meeting")}
    for report in _run(PARALLEL, tmp_path, **names):
        for one in report.values():
            assert one["differing"] == [0, 0]
            assert one["error"] < 2e-2
