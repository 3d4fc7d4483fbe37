"""What do models of Hugging Face gain? Time per step and to compile, and who does their products.

``python benchmarks/hook/real_models.py --gpus 2``, or ``real_models.py Llama`` for some. Models
(`hf_models`) are compiled as they come. A decoding step is one token for each of some sequences;
there are none before it, so that it has all products of such a step but reads no earlier keys and
values, which all variants would do alike. Prefill computes the logits of each sequence's last
token, as generation does; training has no dropout and computes the gradients of all weights. int8
and fp8 are torchao's dynamic quantization, by rows. Experts are products of groups of rows, in
decoding, too, where ``generate`` would copy each row's matrices and multiply a batch.

Nothing but GEMMs is tuned (``max_autotune_gemm``): the rest of max-autotune tries variants of all
other kernels, which takes longer and is the same whatever does the GEMMs. Triton's kernels are
compiled once (`variants.share_ptxas`). Each variant compiles with fresh Inductor caches, tilecast
with kernels that are compiled already, and with scales and activations in them
but for those that are named unfused; then all take turns, round by round.
With k=1, Triton's choices are for what the model does not decide: other types, or groups. A forward
step is a CUDA graph, a training step the calls themselves; the card is kept busy. "ATEN,TRITON
again" is the same code in a graph of its own: how far it is from the first is the noise of timing,
not what another compilation would choose. ``error`` is relative to the same model in float32,
unquantized, without `torch.compile`, over the result or all gradients.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from tilecast.inductor_hook.eager import decide_again
from tilecast.kernels.build.builder import object_builder

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from compile_time import WARM_UP, first_call, warm_up
from hf_models import (
    CASES,
    LAYERS,
    MODELS,
    WEIGHTS,
    Case,
    built,
    in_float32,
    inputs,
    quantize,
    run_model,
    step_of,
)
from runner import Measure, Row, Sweep
from steps import ROUNDS, Step, captured, seconds, timed
from variants import (
    BASELINE,
    Variant,
    competing,
    compiled,
    gemm_calls,
    share_ptxas,
    tilecast_share,
    without_choice,
)

RIVAL, BEST, FIRST = "ATEN,TRITON", "ATEN,TRITON,TILECAST k=5", "ATEN,TILECAST k=1"
FIRST_OR_TRITON = "ATEN,TRITON,TILECAST k=1"
ADAPTIVE = "ATEN,TILECAST k=auto"
AGAIN = f"{RIVAL} again"
VARIANTS = (BASELINE, RIVAL, BEST, FIRST, FIRST_OR_TRITON, ADAPTIVE)
UNFUSED = f"{BEST} unfused"
EAGER = ("eager", "eager TILECAST")
OURS = Variant("TILECAST k=5")
"""Asks for all tilecast kernels that any other variant asks for."""


@contextmanager
def measuring() -> Iterator[Measure]:
    """Make ready to compile, so that the first case does not pay for it.

    What keeps tilecast from running at all is raised here, not kept as each case's result.
    """
    share_ptxas()
    warm_up()
    first_call(WARM_UP, OURS)
    yield measure


def measure(case: Case) -> list[Row]:
    """Compile and time a case; a row has figures by variant."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = built(MODELS[case.model])
        given = inputs(case, model)
    expected = in_float32(case, model, given)
    if case.quantized:
        quantize(model, case.quantized)
    bring_kernels(step_of(compiled(run_model, OURS, only_gemms=True), case, model, given))
    steps, found = {}, {}
    for variant in map(Variant, variants_of(case)):
        step = step_of(compiled(run_model, variant, only_gemms=True), case, model, given)
        # What a backend cannot compile is a result; the others go on.
        try:
            with competing(variant) as sources:
                found[variant.name] = compile_step(step, sources)
                decide_again()  # with what eager calls have begun to compile
                found[variant.name]["error"] = relative_error(step(), expected)
                steps[variant.name] = launched(step, case)
                if variant.name == RIVAL:
                    steps[AGAIN], found[AGAIN] = launched(step, case), {}
        except Exception as failure:
            found[variant.name] = {"failed": f"{type(failure).__name__}: {failure}"[:300]}
        print(f"{case.name}: {variant.name}: {found[variant.name]}", flush=True)
    for name, times in timed(steps).items():
        speed = 1e3 * case.batch * case.tokens / times["milliseconds"]
        found[name] |= times | {"tokens_per_second": speed}
    return [{"variants": found}]


def variants_of(case: Case) -> tuple[str, ...]:
    """Names of what a case is run with.

    Without fusion, too, where it is of activations; eager calls where a graph may be
    captured of them. Of mixtures the few that matter most: each compiles for half a minute.
    """
    if case.quantized in WEIGHTS:
        return RIVAL, BEST, FIRST
    if MODELS[case.model].mixture:
        return BASELINE, RIVAL, BEST, FIRST
    unfused = () if case.quantized else (UNFUSED,)
    eager = EAGER if case.kind != "train" and not case.quantized else ()
    return (*VARIANTS, *unfused, *eager)


def bring_kernels(step: Step) -> None:
    """Have tilecast's kernels compiled before a compilation is timed, which reports failures."""
    from torch._inductor.utils import fresh_cache

    with suppress(Exception), competing(OURS), fresh_cache():
        step()
    object_builder().settle()


def relative_error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The norm of all differences over that of all that is expected."""
    pairs = zip(found, expected, strict=True)
    apart = math.hypot(*(torch.linalg.norm(one.float() - right).item() for one, right in pairs))
    return apart / math.hypot(*(torch.linalg.norm(right).item() for right in expected))


def compile_step(step: Step, sources: Sequence[str]) -> Row:
    """Run a step for the first time; what came of its products, and why some are not tilecast's."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    counters.clear()
    with fresh_cache(), without_choice() as reasons:
        taken = seconds(step)
    return {
        "compile_seconds": taken,
        "gemms": gemm_calls("\n".join(sources)),
        "graph_breaks": sum(counters["graph_break"].values()),
        "hook": dict(counters["tilecast"]),
        "reasons": dict(reasons),
    }


def launched(step: Step, case: Case) -> Step:
    """A step as it is timed, in a graph if it can."""
    return step if case.kind == "train" else captured(step)


def figures(rows: Sequence[Row]) -> Row:
    """What became of each case, and beside ATen and Triton over all, with what was promised."""
    shown = {
        row["case"]: {
            name: one if "failed" in one else _shown(one, row["variants"])
            for name, one in row["variants"].items()
            if name != AGAIN
        }
        for row in rows
    }
    cases = {row["case"]: row["variants"] for row in rows}
    # ATen takes a hundred times as long for int8 weights as for bf16: no rival.
    fair = {case: one for case, one in cases.items() if CASES[case].quantized not in WEIGHTS}
    beside = {}
    for case, variants in fair.items():
        ran = {name: one for name, one in variants.items() if "spread" in one}
        if RIVAL in ran:
            beside[case] = beside_rival(ran, "milliseconds")
    return {
        "cases": shown,
        "beside": beside,
        "summary": summary(beside),
        "compiling": compiling([*fair.values()]),
        **beside_bf16(cases),
    }


def _shown(one: Row, variants: Row) -> Row:
    names = ("milliseconds", "compile_seconds", "error")
    time = variants.get(BASELINE, {}).get("milliseconds")
    return {name: one[name] for name in names} | {
        "speedup": time and time / one["milliseconds"],
        "products": sum(one["gemms"].values()),
        "tilecast_share": tilecast_share(one["gemms"]),
        # The second is what the committed rows call it.
        "left_to_library": _events(one, "fell back to ATen", "left to the library"),
        "not_covered": _events(one, "not covered"),
    }


def _events(one: Row, *kinds: str) -> int:
    starts = tuple(f"{kind}: " for kind in kinds)
    return sum(count for event, count in one["hook"].items() if event.startswith(starts))


def beside_rival(variants: Mapping[str, Row], what: str) -> dict[str, float]:
    """ATen's and Triton's milliseconds or seconds of a case over those of each other variant."""
    rival = variants[RIVAL][what]
    return {n: rival / one[what] for n, one in variants.items() if n != RIVAL and what in one}


def beside_bf16(cases: Mapping[str, Mapping[str, Row]]) -> Row:
    """How many times as fast int8 weights are as bf16, both with five choices, where both ran."""
    found = {}
    for name, variants in cases.items():
        plain = CASES[name]._replace(quantized="").name
        if CASES[name].quantized in WEIGHTS and plain in cases:
            found[name] = cases[plain][BEST]["milliseconds"] / variants[BEST]["milliseconds"]
    return {"beside_bf16": found} if found else {}


def compiling(rows: Sequence[Mapping[str, Row]]) -> Row:
    """ATen's and Triton's seconds to compile over those of each variant, over all cases."""
    what = "compile_seconds"
    beside = [beside_rival(row, what) for row in rows if what in row[RIVAL]]
    names = dict.fromkeys(name for one in beside for name in one if name not in EAGER)
    return {name: extremes([one[name] for one in beside if name in one]) for name in names}


def summary(beside: Mapping[str, Mapping[str, float]]) -> Row:
    """Speed over ATen and Triton by kind of case: geomean, least and most, of each variant.

    Decoding is of 16 rows and more. "again" is the noise: the same code timed twice.
    """
    kinds: dict[str, list[str]] = {}
    for name in beside:
        case = CASES[name]
        if case.batch > 1 or case.kind != "decode":
            kinds.setdefault(f"{case.quantized or 'bf16'} {case.kind}", []).append(name)
    return {
        kind: {
            variant: extremes(found)
            for variant in (*VARIANTS, UNFUSED, AGAIN, *EAGER)
            if (found := [beside[name][variant] for name in names if variant in beside[name]])
        }
        for kind, names in kinds.items()
    }


def extremes(ratios: Sequence[float]) -> Row:
    """How many ratios there are, their geometric mean, the least and the most."""
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return {"cases": len(ratios), "geomean": mean, "least": min(ratios), "most": max(ratios)}


SETTINGS = {
    "layers": LAYERS,
    "rounds": ROUNDS,
    "models": {n: m._asdict() for n, m in MODELS.items()},
}
SWEEP = Sweep("case", CASES, measuring, figures, 100.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
