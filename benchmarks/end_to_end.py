"""What does a decoder layer gain? Time per step, time to compile, and who does its GEMMs.

``python benchmarks/end_to_end.py --gpus 4``. One layer of Llama 3.1, forward for prefill and
decoding, and with backward for training. Each variant compiles with fresh Inductor caches; then all
take turns, round by round. A forward step is a CUDA graph, a training step the calls themselves;
the card is kept busy, as it is when a model runs. Tokens per second are those of one layer, whose
weights exceed the L2: they come from DRAM each time, as in a model.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from decoder import SIZES, Cache, DecoderLayer, rotary
from runner import Row, Sweep
from steps import ROUNDS, Step, captured, first_call, timed
from variants import BASELINE, IN_MODELS, Variant, competing, compiled, gemm_calls, tilecast_share

CACHED_TOKENS = 1024  # in the cache of a decoding step, the new one last


class Case(NamedTuple):
    """A layer of `decoder.SIZES`; prefill, decode or train; sequences, and tokens of each."""

    size: str
    kind: str
    batch: int
    tokens: int


FORWARD = (("prefill", 1, 2048), ("decode", 1, 1), ("decode", 16, 1), ("decode", 64, 1))
_ALL = (*(Case(size, *case) for size in SIZES for case in FORWARD), Case("8B", "train", 1, 2048))
CASES = {f"{case.size} {case.kind} {case.batch}x{case.tokens}": case for case in _ALL}


def measure(case: Case) -> list[Row]:
    """Compile and time a case; a row has figures by variant."""
    steps, found = compile_all(case)
    if case.kind != "train":
        steps = {name: captured(step) for name, step in steps.items()}
    for name, times in timed(steps).items():
        speed = 1e3 * case.batch * case.tokens / times["milliseconds"]
        found[name] |= times | {"tokens_per_second": speed}
    return [{"variants": found}]


def run_layer(layer: Any, x: Any, cosine: Any, sine: Any, cache: Any) -> Any:
    """What is compiled."""
    return layer(x, cosine, sine, cache)


def compile_all(case: Case) -> tuple[dict[str, Step], dict[str, Row]]:
    """Compile a case with every variant, into a step and what is known of it.

    A step returns what tells right from wrong; ``difference`` is from the first variant, relative.
    """
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, arguments = _inputs(case)
    wanted, upstream = [arguments[0], *layer.parameters()], torch.randn_like(arguments[0])

    def step_of(call: Callable[..., Any]) -> Step:
        if case.kind != "train":
            return torch.no_grad()(lambda: call(layer, *arguments))
        return lambda: torch.autograd.grad(call(layer, *arguments), wanted, upstream)[0]

    steps, found, expected = {}, {}, None
    for variant in map(Variant, IN_MODELS):
        with fresh_cache(), competing(variant) as sources:
            steps[variant.name] = step = step_of(compiled(run_layer, variant))
            seconds, out = first_call(step)
        out = out.float()
        expected = out if expected is None else expected
        difference = torch.linalg.norm(out - expected) / torch.linalg.norm(expected)
        facts = {"gemms": gemm_calls("\n".join(sources)), "difference": difference.item()}
        found[variant.name] = {"compile_seconds": seconds, **facts}
    return steps, found


def _inputs(case: Case) -> tuple[DecoderLayer, tuple[Any, ...]]:
    size, train = SIZES[case.size], case.kind == "train"
    kinds: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    with torch.device("cuda"):
        layer = DecoderLayer(size).bfloat16().requires_grad_(train)
    x = torch.randn(case.batch, case.tokens, size.hidden, **kinds).requires_grad_(train)
    if case.kind != "decode":
        return layer, (x, *rotary(range(case.tokens), size.head_dim, "cuda"), None)
    shape = (case.batch, size.kv_heads, CACHED_TOKENS, size.head_dim)
    keys, values = (torch.randn(shape, **kinds) for _ in range(2))
    cache = Cache(keys, values, torch.tensor([CACHED_TOKENS - 1], device="cuda"))
    newest = range(CACHED_TOKENS - 1, CACHED_TOKENS)
    return layer, (x, *rotary(newest, size.head_dim, "cuda"), cache)


def figures(rows: Sequence[Row]) -> Row:
    """Speed over the default mode and share of GEMMs that are ours, for every case."""
    shown = ("milliseconds", "tokens_per_second", "compile_seconds")
    return {
        row["case"]: {
            name: {figure: one[figure] for figure in shown}
            | {"speedup": row["variants"][BASELINE]["milliseconds"] / one["milliseconds"]}
            | {"tilecast_share": tilecast_share(one["gemms"])}
            for name, one in row["variants"].items()
        }
        for row in rows
    }


SETTINGS = {"cached_tokens": CACHED_TOKENS, "rounds": ROUNDS}
SWEEP = Sweep("case", CASES, lambda: nullcontext(measure), figures, 90.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
