"""What the hook does on a GPU, as its tests set it up and look at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.utils import fresh_cache

from on_gpu.tensors import TOLERANCE, bf16, error, exact
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import eager, installed
from tilecast.inductor_hook.run import static
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels import occupancy


def failures() -> list[str]:
    """Events that the hook has counted as failures."""
    return [event for event in counters["tilecast"] if event.startswith("failed")]


def texts() -> set[str]:
    """Operands of the kernels that have run."""
    return {spec.operands.text for spec, _ in static._loaded}


def forget_kernels() -> None:
    """As in a process that has multiplied nothing yet."""
    eager.decide_again()
    static._loaded.clear()
    occupancy._max_active_clusters.cache_clear()


def this_gpu() -> Hardware:
    """What is written down of the GPU that tests run on."""
    return hardware(torch.cuda.get_device_name())


def best_config(problem: GemmProblem) -> KernelConfig:
    """What the shipped model chooses for a problem at k = 1."""
    (best,) = shortlist(Settings(k=1), problem, this_gpu())
    return best.config


def settings(backends: str = "TILECAST", pads: bool = False) -> dict[str, Any]:
    """Inductor's; most without padding, which makes other products of some."""
    return {
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": backends,
        "shape_padding": pads,
    }


@contextmanager
def hooked(
    k: int = 3,
    model: Path | None = None,
    *,
    backends: str = "TILECAST",
    pads: bool = False,
    **options: Any,
) -> Iterator[None]:
    """Inside, graphs are compiled anew with the backends; options are those of `install`."""
    with installed(k, model, **options), fresh_cache(), config.patch(settings(backends, pads)):
        yield


def check_cuda_graphs_of_torch(m: int, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """That a layer is right on new inputs in graphs that ``mode="max-autotune"`` captures."""
    function: Any = torch.compile(F.linear, mode="max-autotune", fullgraph=True)
    for _ in range(5):
        x = bf16(m, weight.shape[1])
        torch.compiler.cudagraph_mark_step_begin()
        result = function(x, weight, bias).clone()
        assert error(result, exact(F.linear, x, weight, bias)) < TOLERANCE
    assert counters["inductor"]["cudagraph_skips"] == 0
