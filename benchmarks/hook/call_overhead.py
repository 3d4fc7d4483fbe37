"""What does a call cost the host? Eager multiplications, the switch, a dynamic extent, installing.

``python benchmarks/hook/call_overhead.py`` on one GPU. Calls are timed back to back on a problem
that takes the GPU 3 microseconds, less than launching it takes the host, so that the host is what
is measured: the median over rounds in which contestants take turns.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner

M, N, K = 16, 512, 512
CALLS, ROUNDS = 1000, 15  # calls of one contestant in a round
TURNS = 10  # of the switch, off and on
NEW_EXTENTS = range(17, 81)  # that a dynamic call has not met before
_TIMED = """
import os, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # so that nothing is loaded before it is timed
import torch
{before}
start = time.perf_counter()
{timed}
print(time.perf_counter() - start)
"""


def take_turns(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median microseconds of one call of each contestant."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def seconds(timed: str, before: str, runs: int = 3) -> float:
    """Median of the seconds that some code takes, each time in a fresh interpreter."""
    code = _TIMED.format(timed=timed, before=before)
    return statistics.median(float(runner.python("-c", code)[1].split()[-1]) for _ in range(runs))


def switch() -> runner.Row:
    """Microseconds of torch's own calls on the current GPU, the switch off and on.

    Of products that we multiply, and of some that come to us and go back: in float32, and with a k
    whose rows TMA does not read.
    """
    import torch

    from tilecast.inductor_hook import eager
    from tilecast.inductor_hook.run import static

    x, weight = (torch.randn(s, dtype=torch.bfloat16, device="cuda") for s in ((M, K), (N, K)))
    bias, b = weight[:1, 0].expand(N).contiguous(), weight.t()
    wide = x.float(), b.float()
    odd = x[:, 1:].contiguous(), weight[:, 1:].contiguous().t()
    contestants = {
        "torch.mm": lambda: torch.mm(x, b),
        "torch.addmm": lambda: torch.addmm(bias, x, b),
        "torch.mm, float32": lambda: torch.mm(*wide),
        "torch.mm, odd k": lambda: torch.mm(*odd),
    }
    rounds: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
    changes = {"off": eager.disable, "on": eager.enable}
    with torch.no_grad():
        # In turns, as what a call costs the host drifts by more than what is asked for.
        for state in TURNS * [*changes]:
            changes[state]()
            for _ in range(2):  # the second time with the kernels that the first began to compile
                for call in contestants.values():
                    call()
                eager.decide_again()
            rounds[state].append(take_turns(contestants, 3))
    eager.disable()
    times = {
        state: {name: statistics.median(one[name] for one in found) for name in contestants}
        for state, found in rounds.items()
    }
    above = {
        name: statistics.median(
            on[name] - off[name] for off, on in zip(rounds["off"], rounds["on"], strict=True)
        )
        for name in contestants
    }
    ours = [spec.operands.text for spec, _ in static._loaded]
    return {"microseconds": times, "above_off": above, "kernels_of_ours": ours}


def calls() -> runner.Row:
    """Microseconds per call on the current GPU."""
    import torch

    from tilecast.heuristics.hardware import hardware
    from tilecast.heuristics.problem import GemmProblem
    from tilecast.inductor_hook import mm
    from tilecast.inductor_hook.run.dynamic import DynamicMatmul
    from tilecast.inductor_hook.run.static import StaticMatmul
    from tilecast.inductor_hook.select.selection import portfolio
    from tilecast.inductor_hook.settings import Settings
    from tilecast.kernels.spec import KernelSpec

    def tensors(m: int) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.randn(m, K, dtype=torch.bfloat16, device="cuda")
        return a, torch.empty(m, N, dtype=torch.bfloat16, device="cuda")

    (a, out), b = tensors(M), tensors(N)[0].t()
    gpu = hardware(torch.cuda.get_device_name())
    sweep = tuple(GemmProblem(m, N, K) for m in (1, 16, 64, 256, 1024))
    settings = Settings(k=1)
    configs = portfolio(settings, sweep, gpu)
    specs = [KernelSpec(config, sweep[0].operands) for config in configs]
    dynamic = DynamicMatmul(specs, "", settings.power, settings.digest)
    static = StaticMatmul(specs[0])
    contestants = {
        "torch.mm": lambda: torch.mm(a, b),
        "tilecast.mm": lambda: mm(a, b),
        "torch.mm, out given": lambda: torch.mm(a, b, out=out),
        "generated call, static": lambda: static(a, b, out),
        "generated call, dynamic m": lambda: dynamic(a, b, out),
    }
    with torch.no_grad():
        for call in contestants.values():
            call()
        times = take_turns(contestants, ROUNDS)
        first = []
        for rows, into in map(tensors, NEW_EXTENTS):
            start = time.perf_counter()
            dynamic(rows, b, into)
            first.append((time.perf_counter() - start) * 1e6)
    slower = times["generated call, dynamic m"] - times["generated call, static"]
    shares = runner.quantiles(first, p50=0.5, p95=0.95)
    return {
        "microseconds": times,
        "eager_above_torch": times["tilecast.mm"] - times["torch.mm"],
        "dynamic_above_static": slower,
        "dynamic_first_call_of_an_extent": {"configs_to_choose_from": len(configs), **shares},
    }


def main() -> None:
    """Measure, and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    figures, hook = {"switch": switch(), **calls()}, "from tilecast.inductor_hook"
    before = f"import torch._inductor.compile_fx; {hook} import install"
    figures["seconds"] = {
        "install": seconds("install()", f"{hook} import install"),
        "install_with_inductor_imported": seconds("install()", before),
        "autoload_when_not_named": seconds(f"{hook}.autoload import autoload; autoload()", "", 7),
    }
    settings = {"m": M, "n": N, "k": K, "calls": CALLS, "rounds": ROUNDS, "turns": TURNS}
    runner.write(options, settings, figures)


if __name__ == "__main__":
    main()
