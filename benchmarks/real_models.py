"""What do models of Hugging Face gain? Time per step and to compile, and who does their products.

``python benchmarks/real_models.py --gpus 2``, or ``real_models.py Llama`` for some, where
transformers 5 and, for the quantized ones, torchao are installed, which nothing else here needs.
Models are built from a configuration, with random weights in bf16, and compiled as they come: two
layers at their real widths, and all that stands before and behind them. A decoding step is one
token for each of some sequences; there are none before it, so that it has all products of such a
step but reads no earlier keys and values, which all variants would do alike. Prefill computes the
logits of each sequence's last token, as generation does; training has no dropout and computes the
gradients of all weights. int8 and fp8 are torchao's dynamic quantization, by rows.

Each variant compiles with fresh Inductor caches, ours with the kernels that are compiled already;
then all take turns, round by round. A forward step is a CUDA graph, a training step the calls
themselves; the card is kept busy. "ATEN,TRITON again" is the same code in a graph of its own: how
far it is from the first is noise. ``error`` is relative to the same model in float32, unquantized,
without `torch.compile`, over the result or all gradients.
"""

import copy
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from compile_time import warm_up
from runner import Measure, Row, Sweep
from steps import ROUNDS, Step, captured, first_call, timed
from variants import (
    BASELINE,
    Variant,
    competing,
    compiled,
    gemm_calls,
    tilecast_share,
    without_choice,
)

from tilecast.kernels.builder import object_builder

LAYERS = 2
TEXT_TOKENS = 4  # with which a transcription begins: language, task, no timestamps
RIVAL, BEST, FIRST = "ATEN,TRITON", "ATEN,TRITON,TILECAST k=5", "ATEN,TILECAST k=1"
AGAIN = f"{RIVAL} again"
VARIANTS = (BASELINE, RIVAL, BEST, FIRST)
UNFUSED = f"{BEST} unfused"
EAGER = ("eager", "eager TILECAST")


class Model(NamedTuple):
    """A class of transformers, and the fields of its configuration that are not its defaults."""

    kind: str
    fields: dict[str, Any]
    fusible: bool = False
    """Whether it has activations that a product may end with."""


class Case(NamedTuple):
    """One of `MODELS`; prefill, decode, encode or train; sequences, and tokens of each."""

    model: str
    kind: str
    batch: int
    tokens: int
    quantized: str = ""
    """What torchao makes of its linear layers: ``int8``, ``fp8``, or nothing."""

    @property
    def name(self) -> str:
        """Such as ``Llama 3.1 8B int8 decode 16x1``."""
        model = " ".join(filter(None, (self.model, self.quantized)))
        return f"{model} {self.kind} {self.batch}x{self.tokens}"

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of what it is run with.

        Without fusion, too, where there is an activation to fuse; eager calls where a graph may be
        captured of them.
        """
        unfused = (UNFUSED,) if MODELS[self.model].fusible else ()
        eager = EAGER if self.kind != "train" and not self.quantized else ()
        return (*VARIANTS, *unfused, *eager)


_MIXTRAL = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": LAYERS}
_MIXTRAL |= {"num_attention_heads": 32, "num_key_value_heads": 8}
_WHISPER = {
    f"{part}_{field}": value
    for part in ("encoder", "decoder")
    for field, value in {"layers": LAYERS, "attention_heads": 20, "ffn_dim": 5120}.items()
}
MODELS = {
    "Llama 3.1 8B": Model("LlamaForCausalLM", _MIXTRAL | {"vocab_size": 128256}),
    "Qwen2.5 7B": Model(
        "Qwen2ForCausalLM",
        {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": LAYERS}
        | {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064},
    ),
    "GPT-2 XL": Model("GPT2LMHeadModel", {"n_embd": 1600, "n_head": 25, "n_layer": LAYERS}, True),
    "Mixtral 8x7B": Model("MixtralForCausalLM", _MIXTRAL),
    "BERT large": Model(
        "BertModel",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": LAYERS}
        | {"num_attention_heads": 16},
        True,
    ),
    "ViT-H": Model(
        "ViTModel",
        {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": LAYERS}
        | {"num_attention_heads": 16, "patch_size": 14},
        True,
    ),
    "Whisper large": Model(
        "WhisperForConditionalGeneration",
        _WHISPER | {"d_model": 1280, "num_mel_bins": 128, "vocab_size": 51866},
        True,
    ),
}
# In this order two GPUs have equal shares. One row is multiplied without a GEMM: once will do.
_ALL = (
    *(Case("Llama 3.1 8B", "decode", rows, 1) for rows in (16, 64, 200)),
    Case("Llama 3.1 8B", "prefill", 1, 2048),
    Case("Llama 3.1 8B", "train", 1, 2048),
    *(Case("Llama 3.1 8B", "decode", rows, 1, "int8") for rows in (16, 64, 200)),
    Case("Llama 3.1 8B", "prefill", 1, 2048, "int8"),
    *(Case("BERT large", "encode", batch, 512) for batch in (1, 16)),
    *(Case("ViT-H", "encode", batch, 257) for batch in (1, 16)),
    Case("Mixtral 8x7B", "decode", 64, 1),
    *(Case("GPT-2 XL", "decode", rows, 1) for rows in (16, 64, 200)),
    Case("GPT-2 XL", "prefill", 2, 1024),
    Case("GPT-2 XL", "train", 2, 1024),
    *(Case("Llama 3.1 8B", "decode", rows, 1, "fp8") for rows in (16, 64, 200)),
    Case("Llama 3.1 8B", "prefill", 1, 2048, "fp8"),
    *(Case("Qwen2.5 7B", "decode", rows, 1) for rows in (16, 64, 200)),
    Case("Qwen2.5 7B", "prefill", 1, 2048),
    Case("Whisper large", "encode", 1, 1500),
    Case("Mixtral 8x7B", "prefill", 1, 2048),
    Case("Llama 3.1 8B", "decode", 1, 1),
)
CASES = {case.name: case for case in _ALL}


@contextmanager
def measuring() -> Iterator[Measure]:
    """Make ready to compile, so that the first case does not pay for it."""
    warm_up()
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
    steps, found = {}, {}
    for variant in map(Variant, case.variants):
        step = step_of(compiled(run_model, variant), case, model, given)
        # What a backend cannot compile is a result; the others go on.
        try:
            with competing(variant) as sources:
                found[variant.name] = compile_step(step, sources, expected)
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


def built(model: Model) -> Any:
    """A model with random weights, in bf16, without dropout."""
    kind = getattr(importlib.import_module("transformers"), model.kind)
    config = kind.config_class(**model.fields, use_cache=False)
    built = kind._from_config(config, dtype=torch.bfloat16).eval()
    built.loss_type = "ForCausalLM"  # GPT-2 has none and warns of it, which would break its graph
    return built


def quantize(model: Any, name: str) -> None:
    """Have torchao quantize the linear layers of a model: weights now, rows of x at each call."""
    found = importlib.import_module("torchao.quantization")
    kinds = {
        "int8": found.Int8DynamicActivationInt8WeightConfig,
        "fp8": found.Float8DynamicActivationFloat8WeightConfig,
    }
    # What it would set of Inductor would stay set for the models after this one.
    config = kinds[name](granularity=found.PerRow(), set_inductor_config=False)
    found.quantize_(model, config)


def inputs(case: Case, model: Any) -> dict[str, Any]:
    """Random inputs by the names that a model has for them."""
    config, batch = model.config, case.batch
    if model.main_input_name == "pixel_values":
        size = (config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(batch, *size, dtype=torch.bfloat16)}
    tokens = TEXT_TOKENS if model.main_input_name == "input_features" else case.tokens
    ids = torch.randint(config.vocab_size, (batch, tokens))
    if model.main_input_name == "input_features":
        # The first layers halve the frames of a sound.
        size = (config.num_mel_bins, 2 * case.tokens)
        features = torch.randn(batch, *size, dtype=torch.bfloat16)
        return {"input_features": features, "decoder_input_ids": ids}
    further = {"train": {"labels": ids}, "prefill": {"logits_to_keep": 1}}
    return {"input_ids": ids, **further.get(case.kind, {})}


def run_model(model: Any, given: dict[str, Any]) -> Any:
    """What is compiled; the result, or the loss where there are labels."""
    return model(**given)[0]


def step_of(call: Callable[..., Any], case: Case, model: Any, given: dict[str, Any]) -> Step:
    """What returns the tensors that tell right from wrong."""
    if case.kind != "train":
        return torch.no_grad()(lambda: [call(model, given)])
    weights = list(model.parameters())
    return lambda: torch.autograd.grad(call(model, given), weights)


def in_float32(case: Case, model: Any, given: dict[str, Any]) -> Sequence[torch.Tensor]:
    """What a step of a model returns in float32, without `torch.compile`."""
    wide = {
        name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in given.items()
    }
    reference = copy.deepcopy(model).float()
    reference.config._experts_implementation = "eager"  # expert by expert, in any type
    return step_of(run_model, case, reference, wide)()


def relative_error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The norm of all differences over that of all that is expected."""
    pairs = zip(found, expected, strict=True)
    apart = math.hypot(*(torch.linalg.norm(one.float() - right).item() for one, right in pairs))
    return apart / math.hypot(*(torch.linalg.norm(right).item() for right in expected))


def compile_step(step: Step, sources: Sequence[str], expected: Sequence[torch.Tensor]) -> Row:
    """Run a step for the first time; what came of its products, and why not ours."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    counters.clear()
    with fresh_cache(), without_choice() as reasons:
        seconds, out = first_call(step)
    return {
        "compile_seconds": seconds,
        "gemms": gemm_calls("\n".join(sources)),
        "graph_breaks": sum(counters["graph_break"].values()),
        "hook": dict(counters["tilecast"]),
        "reasons": dict(reasons),
        "error": relative_error(out, expected),
    }


def launched(step: Step, case: Case) -> Step:
    """A step as it is timed: with what eager calls had begun to compile, in a graph if it can."""
    object_builder().settle()
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
    beside = {}
    for row in rows:
        ran = {name: one for name, one in row["variants"].items() if "spread" in one}
        if RIVAL in ran:
            beside[row["case"]] = beside_rival(ran, "milliseconds")
    return {
        "cases": shown,
        "beside": beside,
        "summary": summary(beside),
        "compiling": compiling([row["variants"] for row in rows]),
    }


def _shown(one: Row, variants: Row) -> Row:
    names = ("milliseconds", "compile_seconds", "error")
    time = variants.get(BASELINE, {}).get("milliseconds")
    return {name: one[name] for name in names} | {
        "speedup": time and time / one["milliseconds"],
        "products": sum(one["gemms"].values()),
        "tilecast_share": tilecast_share(one["gemms"]),
        "left_to_library": _events(one, "left to the library"),
        "not_covered": _events(one, "not covered"),
    }


def _events(one: Row, kind: str) -> int:
    return sum(count for event, count in one["hook"].items() if event.startswith(f"{kind}: "))


def beside_rival(variants: Mapping[str, Row], what: str) -> dict[str, float]:
    """ATen's and Triton's milliseconds or seconds of a case over those of each other variant."""
    rival = variants[RIVAL][what]
    return {n: rival / one[what] for n, one in variants.items() if n != RIVAL and what in one}


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
