"""What a call costs the host: eager multiplications, calls with a dynamic extent, installing.

Calls are timed back to back on a problem that takes the GPU less time than launching it takes the
host, so that the host is what is measured: the median over rounds in which contestants take turns.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import result

M, N, K = 16, 512, 512
"""The problem: about 3 microseconds on the GPU."""
CALLS = 1000
"""Calls of one contestant in a round."""
ROUNDS = 15
NEW_EXTENTS = range(17, 81)
"""Extents that a dynamic call has not met before."""
EAGER_BAR = 5.0
"""Microseconds that an eager call may take more than ``torch.mm``."""
INSTALL_BAR = 0.3
"""Seconds that installing may take."""
_INSTALL = """
import time, torch
{before}
from tilecast.inductor_hook import install
start = time.perf_counter()
install()
print(time.perf_counter() - start)
"""
_AUTOLOAD = """
import os, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # so that it is not loaded before it is timed
import torch
start = time.perf_counter()
from tilecast.inductor_hook.autoload import autoload
autoload()
print(time.perf_counter() - start)
"""


def take_turns(
    contestants: Mapping[str, Callable[[], object]],
    synchronize: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median microseconds of one call of each contestant."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, call in contestants.items():
            synchronize()
            start = clock()
            for _ in range(CALLS):
                call()
            times[name].append((clock() - start) / CALLS * 1e6)
    return {name: statistics.median(rounds) for name, rounds in times.items()}


def in_a_process(code: str, runs: int = 3) -> float:
    """Median of the seconds that some code prints, each time in a fresh interpreter."""
    found = []
    for _ in range(runs):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        found.append(float(done.stdout.split()[-1]))
    return statistics.median(found)


def calls() -> dict[str, Any]:
    """Microseconds per call on the current GPU."""
    import torch

    from tilecast.heuristics.hardware import hardware
    from tilecast.heuristics.problem import GemmProblem
    from tilecast.inductor_hook import mm
    from tilecast.inductor_hook.launcher import DynamicMatmul, StaticMatmul
    from tilecast.inductor_hook.selection import Settings, portfolio
    from tilecast.kernels.spec import KernelSpec

    a = torch.randn(M, K, dtype=torch.bfloat16, device="cuda")
    b = torch.randn(N, K, dtype=torch.bfloat16, device="cuda").t()
    out = torch.empty(M, N, dtype=torch.bfloat16, device="cuda")
    gpu = hardware(torch.cuda.get_device_name())
    sweep = tuple(GemmProblem(m, N, K) for m in (1, 16, 64, 256, 1024))
    configs = portfolio(Settings(k=1), sweep, gpu)
    specs = [KernelSpec(config, sweep[0].operands, arch=gpu.arch) for config in configs]
    static, dynamic = StaticMatmul(specs[0]), DynamicMatmul(specs, "", "robust")
    contestants = {
        "torch.mm": lambda: torch.mm(a, b),
        "tilecast.mm": lambda: mm(a, b),
        "torch.ops.tilecast.mm": lambda: torch.ops.tilecast.mm.default(a, b),
        "torch.mm, out given": lambda: torch.mm(a, b, out=out),
        "generated call, static": lambda: static(a, b, out),
        "generated call, dynamic m": lambda: dynamic(a, b, out),
    }
    with torch.no_grad():
        for call in contestants.values():
            call()
        times = take_turns(contestants, torch.cuda.synchronize)
        first = []
        for m in NEW_EXTENTS:
            rows = torch.randn(m, K, dtype=torch.bfloat16, device="cuda")
            into = torch.empty(m, N, dtype=torch.bfloat16, device="cuda")
            start = time.perf_counter()
            dynamic(rows, b, into)
            first.append((time.perf_counter() - start) * 1e6)
    return {
        "microseconds": times,
        "eager_above_torch": times["tilecast.mm"] - times["torch.mm"],
        "dynamic_above_static": times["generated call, dynamic m"]
        - times["generated call, static"],
        "dynamic_first_call_of_an_extent": {
            "configs_to_choose_from": len(configs),
            "p50": result.quantile(first, 0.5),
            "p95": result.quantile(first, 0.95),
        },
    }


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    result.add_out(parser)
    options = parser.parse_args()
    measured = calls()
    seconds = {
        "install": in_a_process(_INSTALL.format(before="")),
        "install_with_inductor_imported": in_a_process(
            _INSTALL.format(before="import torch._inductor.compile_fx")
        ),
        "autoload_when_not_named": in_a_process(_AUTOLOAD, runs=7),
    }
    bars = {
        "eager_within_5_us": measured["eager_above_torch"] <= EAGER_BAR,
        "install_within_0.3_s": max(seconds["install"], seconds["install_with_inductor_imported"])
        <= INSTALL_BAR,
        "autoload_below_1_ms": seconds["autoload_when_not_named"] < 1e-3,
    }
    result.finish({**measured, "seconds": seconds, "bars": bars}, options.out)


if __name__ == "__main__":
    main()
