"""What Inductor writes: in C++, cached for the next process, and run where nothing is installed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from on_gpu.hook import best_config
from on_gpu.layers import BIASED, FACTORS, added, linear
from on_gpu.tensors import K, M, N, bf16
from processes import printed, started
from torch._dynamo.utils import counters

from tilecast.heuristics.problem import GemmProblem

BACKENDS = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"


def _calls_from_cpp(code: str) -> int:
    """Calls of our operator in C++, as PyTorch writes them until 2.11 and since."""
    spelled = ('findSchemaOrThrow("tilecast::launch"', '("torch.ops.tilecast.launch.default")')
    return sum(map(code.count, spelled))


@pytest.mark.usefixtures("cpp_wrapper")
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", ["mm", "of nn.Linear", *FACTORS])
def test_a_cpp_wrapper_calls_our_operator(
    close: Callable[..., str], matrix_model: Path, kind: str, k: int
) -> None:
    function, bias = {"mm": (linear, None), **BIASED}.get(kind, (added(kind), (M, N)))
    operands = [*([bf16(*bias)] if bias else []), bf16(M, K), bf16(N, K)]
    code = close(function, *operands, k=k, model=matrix_model if kind in FACTORS else None)
    assert _calls_from_cpp(code) == 1
    assert "StaticMatmul" not in code
    assert kind not in FACTORS or f'"bf16:rcr:{kind}"' in code
    assert counters["tilecast"]["problems"] == 1


@pytest.mark.usefixtures("cpp_wrapper")
def test_one_graph_in_cpp_for_every_m(close: Callable[..., str]) -> None:
    x, weight = bf16(M, K), bf16(N, K)
    torch._dynamo.mark_dynamic(x, 0)
    assert _calls_from_cpp(close(linear, x, weight, k=1)) == 1


@pytest.mark.usefixtures("cpp_wrapper")
def test_stock_choices_compete_in_cpp(close: Callable[..., str]) -> None:
    """Where Triton's are among them, Inductor may put the winner in when it schedules the graph."""
    operands, backends = (bf16(M, K), bf16(N, K)), "ATEN,TRITON,TILECAST"
    close(lambda x, w: torch.relu(x @ w.T), *operands, backends=backends, fuse=False)
    assert counters["tilecast"]["won"] + counters["tilecast"]["lost"] == 1


SCRIPT = """
import re
import torch
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache

torch.manual_seed(0)
x, weight = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((192, 512), (1024, 512)))
function = torch.compile(lambda x, w: x @ w.T, options={"max_autotune_gemm": True})
result = function(x, weight)
exact = x.float() @ weight.float().T
print((torch.linalg.norm(result.float() - exact) / torch.linalg.norm(exact)).item() < 1e-2)
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print("hit" if hits else "miss", counters["inductor"]["select_algorithm_autotune"])
print(sum(name.startswith("failed") for name in counters["tilecast"]))
sources = [open(module.__file__).read() for module in PyCodeCache.modules]
print(*sorted(set(re.findall(r"StaticMatmul.named\\(\\s*'(\\w+)'", "".join(sources)))))
"""


def _started(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """The script in a process that has nothing but environment variables."""
    own = {BACKENDS: "TILECAST", "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    return started("-c", SCRIPT, **own, **environment)


def test_processes_choose_alike_and_share_graphs(tmp_path: Path) -> None:
    here, there = printed(*(_started(tmp_path / n, TILECAST_K="1") for n in ("here", "there")))
    assert here[:3] == there[:3] == ["True", "miss 0", "0"]
    assert here[3] == there[3] == best_config(GemmProblem(192, 1024, 512)).name
    again, other = printed(*(_started(tmp_path / "here", TILECAST_K=k) for k in "12"))
    assert again == ["True", "hit 0", "0", here[3]]
    assert other[:3] == ["True", "miss 1", "0"]


RUNNER = """
import importlib.util, sys
import torch
spec = importlib.util.spec_from_file_location("generated", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
x, weight = torch.load(sys.argv[2])
code = open(sys.argv[1]).read()
first = f"assert_size_stride(arg0_1, ({x.shape[0]}, {x.shape[1]})" in code
(result,) = module.call([x.clone(), weight.clone()] if first else [weight.clone(), x.clone()])
exact = x.float() @ weight.float().T
print((torch.linalg.norm(result.float() - exact) / torch.linalg.norm(exact)).item() < 1e-2)
print("tilecast.inductor_hook.installation" in sys.modules)
from torch._dynamo.utils import counters
print(sum(name.startswith("failed") for name in counters["tilecast"]))
"""


def test_generated_code_runs_where_nothing_is_installed(
    compiled: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    operands = bf16(M, K), bf16(N, K)
    _, code = compiled(linear, *operands)
    (tmp_path / "generated.py").write_text(code)
    torch.save(operands, tmp_path / "operands.pt")
    monkeypatch.delenv(BACKENDS, raising=False)
    process = started("-c", RUNNER, tmp_path / "generated.py", tmp_path / "operands.pt")
    assert printed(process) == [["True", "False", "0"]]
