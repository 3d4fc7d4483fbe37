"""The same choices and the same bits on every rank: k = 1 in two processes on two GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.models.runtime.learned import load_heuristic

SECONDS = 300
"""Two processes compile six products, a backward pass and what lies between."""

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


def _started(rank: int, backends: str, folder: Path) -> subprocess.Popen[str]:
    """One rank as a launcher starts it, with caches of Inductor that nobody else has."""
    return subprocess.Popen(
        [sys.executable, "-c", STEP],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "LOCAL_RANK": str(rank),
            "TILECAST_K": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(folder),
            "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": backends,
        },
    )


def _run(backends: str, folder: Path) -> list[dict[str, Any]]:
    """What two ranks report that run at the same time."""
    processes = [_started(rank, backends, folder / str(rank)) for rank in range(2)]
    try:
        told = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, told, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in told]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")
@pytest.mark.parametrize("backends", ["TILECAST", "ATEN,TRITON,TILECAST"])
def test_every_rank_chooses_and_computes_alike(tmp_path: Path, backends: str) -> None:
    gpu = hardware(torch.cuda.get_device_name())
    try:
        load_heuristic(gpu, LINEAR_BF16)
    except TilecastError as error:
        pytest.skip(str(error))
    reports = [one for run in "ab" for one in _run(backends, tmp_path / run)]
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
