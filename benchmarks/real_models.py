"""What do models of Hugging Face gain? Time per step and to compile, and who does their products.

``python benchmarks/real_models.py --gpus 4``, or ``real_models.py Llama`` for some, where
transformers 5 is installed, which nothing else here needs. Models are built from a configuration,
with random weights in bf16, and compiled as they come: two layers at their real widths, and all
that stands before and behind them. A decoding step is one token for each of some sequences; there
are none before it, so that it has all products of such a step but reads no earlier keys and values,
which all variants would do alike. Prefill computes the logits of each sequence's last token, as
generation does; training has no dropout and computes the gradients of all weights.

Each variant compiles with fresh Inductor caches, ours with the kernels that earlier runs left; then
all take turns, round by round. A forward step is a CUDA graph, a training step the calls
themselves; the card is kept busy. ``error`` is relative to the same model in float32 without
`torch.compile`, over the result or all gradients.
"""

import copy
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from compile_time import warm_up
from runner import Measure, Row, Sweep
from steps import ROUNDS, Step, captured, first_call, timed
from variants import (
    BASELINE,
    IN_MODELS,
    Variant,
    competing,
    compiled,
    gemm_calls,
    tilecast_share,
    without_choice,
)

LAYERS = 2
TEXT_TOKENS = 4  # with which a transcription begins: language, task, no timestamps


class Model(NamedTuple):
    """A class of transformers, and the fields of its configuration that are not its defaults."""

    kind: str
    fields: dict[str, Any]


class Case(NamedTuple):
    """One of `MODELS`; prefill, decode, encode or train; sequences, and tokens of each."""

    model: str
    kind: str
    batch: int
    tokens: int


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
    "GPT-2 XL": Model("GPT2LMHeadModel", {"n_embd": 1600, "n_head": 25, "n_layer": LAYERS}),
    "Mixtral 8x7B": Model("MixtralForCausalLM", _MIXTRAL),
    "BERT large": Model(
        "BertModel",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": LAYERS}
        | {"num_attention_heads": 16},
    ),
    "ViT-H": Model(
        "ViTModel",
        {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": LAYERS}
        | {"num_attention_heads": 16, "patch_size": 14},
    ),
    "Whisper large": Model(
        "WhisperForConditionalGeneration",
        _WHISPER | {"d_model": 1280, "num_mel_bins": 128, "vocab_size": 51866},
    ),
}
# In this order four GPUs have equal shares. One row is multiplied without a GEMM: once will do.
_ALL = (
    *(Case("Llama 3.1 8B", "decode", rows, 1) for rows in (1, 16, 64, 200)),
    Case("Llama 3.1 8B", "prefill", 1, 2048),
    Case("Llama 3.1 8B", "train", 1, 2048),
    Case("Mixtral 8x7B", "prefill", 1, 2048),
    *(Case("BERT large", "encode", batch, 512) for batch in (1, 16)),
    *(Case("ViT-H", "encode", batch, 257) for batch in (1, 16)),
    *(Case("Qwen2.5 7B", "decode", rows, 1) for rows in (16, 64, 200)),
    Case("Qwen2.5 7B", "prefill", 1, 2048),
    Case("Mixtral 8x7B", "decode", 64, 1),
    Case("Whisper large", "encode", 1, 1500),
    *(Case("GPT-2 XL", "decode", rows, 1) for rows in (16, 64, 200)),
    Case("GPT-2 XL", "prefill", 2, 1024),
    Case("GPT-2 XL", "train", 2, 1024),
)
CASES = {f"{case.model} {case.kind} {case.batch}x{case.tokens}": case for case in _ALL}


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
    facts = {"eager_error": relative_error(step_of(run_model, case, model, given)(), expected)}
    steps, found = {}, {}
    for variant in map(Variant, IN_MODELS):
        step = step_of(compiled(run_model, variant), case, model, given)
        # What a backend cannot compile is a result; the others go on.
        try:
            found[variant.name] = compile_step(step, variant, expected)
            steps[variant.name] = step if case.kind == "train" else captured(step)
        except Exception as failure:
            found[variant.name] = {"failed": f"{type(failure).__name__}: {failure}"[:300]}
        print(f"{case.model} {case.kind}: {variant.name}: {found[variant.name]}", flush=True)
    for name, times in timed(steps).items():
        speed = 1e3 * case.batch * case.tokens / times["milliseconds"]
        found[name] |= times | {"tokens_per_second": speed}
    return [{**facts, "variants": found}]


def built(model: Model) -> Any:
    """A model with random weights, in bf16, without dropout."""
    kind = getattr(importlib.import_module("transformers"), model.kind)
    config = kind.config_class(**model.fields, use_cache=False)
    built = kind._from_config(config, dtype=torch.bfloat16).eval()
    built.loss_type = "ForCausalLM"  # GPT-2 has none and warns of it, which would break its graph
    return built


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


def compile_step(step: Step, variant: Variant, expected: Sequence[torch.Tensor]) -> Row:
    """Run a step that compiles; what came of its products, and why not ours."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    counters.clear()
    with fresh_cache(), without_choice() as reasons, competing(variant) as sources:
        seconds, out = first_call(step)
    return {
        "compile_seconds": seconds,
        "gemms": gemm_calls("\n".join(sources)),
        "graph_breaks": sum(counters["graph_break"].values()),
        "hook": dict(counters["tilecast"]),
        "reasons": dict(reasons),
        "error": relative_error(out, expected),
    }


def figures(rows: Sequence[Row]) -> Row:
    """Speed over the default mode of every case, and what became of its products."""
    return {
        row["case"]: {
            name: one if "failed" in one else _figures(one, row["variants"].get(BASELINE, {}))
            for name, one in row["variants"].items()
        }
        for row in rows
    }


def _figures(one: Row, baseline: Row) -> Row:
    shown = ("milliseconds", "compile_seconds", "error")
    time = baseline.get("milliseconds")
    return {name: one[name] for name in shown} | {
        "speedup": time and time / one["milliseconds"],
        "products": sum(one["gemms"].values()),
        "tilecast_share": tilecast_share(one["gemms"]),
        "left_to_library": _events(one, "left to the library"),
        "not_covered": _events(one, "not covered"),
    }


def _events(one: Row, kind: str) -> int:
    return sum(count for event, count in one["hook"].items() if event.startswith(f"{kind}: "))


SETTINGS = {
    "layers": LAYERS,
    "rounds": ROUNDS,
    "models": {n: m._asdict() for n, m in MODELS.items()},
}
SWEEP = Sweep("case", CASES, measuring, figures, 60.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
