"""What a decoder layer gains: time per step, time to compile, and who does its GEMMs.

One layer of Llama 3.1, forward for prefill and decoding, and forward with backward for training.
Each variant compiles with fresh Inductor caches; then all take turns, round by round, in a rotating
order. A forward step is a CUDA graph, a training step the calls themselves; the card is kept busy,
as it is when a model runs. Tokens per second are those of one layer.

The weights of a layer exceed the L2, so they come from DRAM each time, as in a model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from decoder import SIZES, Cache, DecoderLayer, rotary
from pieces import Deadline, Record, ResultFile, over_gpus, shares, span
from variants import Variant, competing, compiled, gemm_calls

OUT = Path(__file__).with_name("results") / "end_to_end.json"

VARIANTS = (
    Variant("default", None),
    Variant("ATEN,TRITON", "ATEN,TRITON"),
    Variant("ATEN,TRITON,TILECAST k=5", "ATEN,TRITON,TILECAST", 5),
    Variant("ATEN,TILECAST k=1", "ATEN,TILECAST", 1),
)
BASELINE = VARIANTS[0].name
CACHED_TOKENS = 1024
"""Tokens in the cache of a decoding step, the new one last."""
ROUNDS = 15
ROUND_SECONDS = 5e-3
"""Time of the steps between two events, so that their resolution does not matter."""
WARM_UP_SECONDS = 0.5
LONGEST_SECONDS = 90.0

Step = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """What one layer is run on."""

    size: str
    """Key of `decoder.SIZES`."""
    kind: str
    """``prefill``, ``decode`` or ``train``."""
    batch: int
    """Sequences."""
    tokens: int
    """Tokens of each."""

    @property
    def name(self) -> str:
        """What the result calls it."""
        return f"{self.size} {self.kind} {self.batch}x{self.tokens}"


CASES = (
    *(
        Case(size, kind, batch, tokens)
        for size in SIZES
        for kind, batch, tokens in (
            ("prefill", 1, 2048),
            ("decode", 1, 1),
            ("decode", 16, 1),
            ("decode", 64, 1),
        )
    ),
    Case("8B", "train", 1, 2048),
)


def run_layer(layer: Any, x: Any, cosine: Any, sine: Any, cache: Any) -> Any:
    """What is compiled."""
    return layer(x, cosine, sine, cache)


def compile_all(
    case: Case, variants: Sequence[Variant]
) -> tuple[dict[str, Step], dict[str, dict[str, Any]]]:
    """Compile a case with every variant.

    Returns:
        The steps, and for each ``compile_seconds``, ``gemms`` by who does them, and the relative
        ``difference`` of its result from that of the first variant.
    """
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, arguments = _layer(case), _arguments(case)
    steps: dict[str, Step] = {}
    found: dict[str, dict[str, Any]] = {}
    expected: torch.Tensor | None = None
    for variant in variants:
        with fresh_cache(), competing(variant) as sources:
            torch.cuda.synchronize()
            start = time.perf_counter()
            step = _step(case, compiled(run_layer, variant), layer, arguments)
            out = step()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        out = out.float()
        expected = out if expected is None else expected
        steps[variant.name] = step
        found[variant.name] = {
            "compile_seconds": seconds,
            "gemms": gemm_calls("\n".join(sources)),
            "difference": (torch.linalg.norm(out - expected) / torch.linalg.norm(expected)).item(),
        }
    return steps, found


def _layer(case: Case) -> DecoderLayer:
    with torch.device("cuda"):
        layer = DecoderLayer(SIZES[case.size]).bfloat16()
    return layer.requires_grad_(case.kind == "train")


def _arguments(case: Case) -> tuple[Any, ...]:
    size = SIZES[case.size]
    kinds: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    x = torch.randn(case.batch, case.tokens, size.hidden, **kinds)
    if case.kind != "decode":
        return x, *rotary(range(case.tokens), size.head_dim, "cuda"), None
    shape = (case.batch, size.kv_heads, CACHED_TOKENS, size.head_dim)
    keys, values = (torch.randn(shape, **kinds) for _ in range(2))
    cache = Cache(keys, values, torch.tensor([CACHED_TOKENS - 1], device="cuda"))
    return x, *rotary(range(CACHED_TOKENS - 1, CACHED_TOKENS), size.head_dim, "cuda"), cache


def _step(case: Case, call: Callable[..., Any], layer: Any, arguments: tuple[Any, ...]) -> Step:
    """One step; what it returns tells right from wrong."""
    if case.kind != "train":

        def forward() -> Any:
            with torch.no_grad():
                return call(layer, *arguments)

        return forward

    x = arguments[0].requires_grad_()
    wanted = [x, *layer.parameters()]
    torch.manual_seed(1)  # every variant's gradients are of the same loss
    upstream = torch.randn_like(x)

    def train() -> Any:
        out = call(layer, *arguments)
        return torch.autograd.grad(out, wanted, upstream)[0]

    return train


def captured(step: Step) -> Step:
    """A step as a CUDA graph; launching it costs the host next to nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(step: Step, count: int) -> float:
    """Time of one of ``count`` steps in a row on the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def interleaved(
    steps: Mapping[str, Step], rounds: int, timer: Callable[[Step, int], float]
) -> dict[str, list[float]]:
    """Time all steps once a round; the order rotates.

    Args:
        steps: by name; each has run before.
        rounds: how often each is timed.
        timer: milliseconds of a step, given it and how often to run it.
    """
    counts = {
        name: max(1, round(1e3 * ROUND_SECONDS / timer(step, 2))) for name, step in steps.items()
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(timer(steps[name], counts[name]))
    return times


def measure(case: Case, variants: Sequence[Variant]) -> dict[str, dict[str, Any]]:
    """Compile and time a case; figures by variant."""
    steps, found = compile_all(case, variants)
    if case.kind != "train":
        steps = {name: captured(step) for name, step in steps.items()}
    deadline = time.perf_counter() + WARM_UP_SECONDS
    while time.perf_counter() < deadline:
        for step in steps.values():
            milliseconds(step, 1)
    times = interleaved(steps, ROUNDS, milliseconds)
    tokens = case.batch * case.tokens
    return {name: found[name] | _summary(times[name], tokens) for name in found}


def _summary(times: Sequence[float], tokens: int) -> dict[str, float]:
    median = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return {
        "milliseconds": median,
        "spread": (high - low) / median,
        "tokens_per_second": 1e3 * tokens / median,
    }


def figures(records: Sequence[Record]) -> dict[str, Any]:
    """Speed over the default mode and share of GEMMs that are ours, for every PyTorch and case."""
    found: dict[str, Any] = {}
    for record in records:
        variants = record["variants"]
        found.setdefault(record["torch"], {})[record["case"]] = {
            name: {
                "milliseconds": one["milliseconds"],
                "tokens_per_second": one["tokens_per_second"],
                "compile_seconds": one["compile_seconds"],
                "speedup": variants[BASELINE]["milliseconds"] / one["milliseconds"],
                "tilecast_share": tilecast_share(one["gemms"]),
            }
            for name, one in variants.items()
        }
    return found


def tilecast_share(gemms: Mapping[str, int]) -> float | None:
    """Share of the GEMMs that are ours; None where Inductor does without GEMMs."""
    return gemms.get("tilecast", 0) / sum(gemms.values()) if gemms else None


def main() -> None:
    """Measure what is missing; print progress and, last, one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="added to where it exists")
    parser.add_argument("--cases", type=span, default=slice(0, None), metavar="START:STOP")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs to spread over")
    parser.add_argument("--deadline", type=float, default=600, metavar="SECONDS")
    options = parser.parse_args()
    kept = ResultFile(options.out, ("torch", "case"), figures)
    if options.gpus > 1:
        pieces = shares(options.cases, len(CASES), options.gpus)
        over_gpus(
            "--cases", pieces, ["--out", str(options.out), "--deadline", str(options.deadline)]
        )
    else:
        _measure_missing(kept, CASES[options.cases], options.deadline)
    print(json.dumps({"out": str(options.out), "figures": kept.read()["figures"]}))


def _measure_missing(kept: ResultFile, cases: Sequence[Case], seconds: float) -> None:
    deadline = Deadline(seconds, LONGEST_SECONDS)
    identity = {"torch": torch.__version__}
    run = kept.start()
    for case in cases:
        if kept.has(case=case.name, **identity):
            continue
        if not deadline.allows():
            print(f"stopped before {case.name}: {deadline.left():.0f} s left", file=sys.stderr)
            break
        start = time.perf_counter()
        variants = measure(case, VARIANTS)
        kept.add({"case": case.name, **identity, "run": run, "variants": variants})
        deadline.spent(time.perf_counter() - start)
        print(f"{case.name} {deadline.left():.0f} s left: {variants}", flush=True)
    kept.end(run)


if __name__ == "__main__":
    main()
