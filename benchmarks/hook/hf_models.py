"""Models of Hugging Face, and what is computed with them.

Built from a configuration, with random weights in bf16: two layers at their real widths, one of
DeepSeek-V3, and all that stands before and behind them. Needs transformers 5 and, to quantize,
torchao, which nothing else here needs.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from steps import Step

LAYERS = 2
WEIGHTS = ("gpt-fast int8", "int8 weights")  # quantized alone, of a case
TEXT_TOKENS = 4  # with which a transcription begins: language, task, no timestamps


class Model(NamedTuple):
    """A class of transformers, and the fields of its configuration that are not its defaults."""

    kind: str
    fields: dict[str, Any]

    @property
    def mixture(self) -> bool:
        """Whether its layers have experts."""
        return "experts_implementation" in self.fields


class Case(NamedTuple):
    """One of `MODELS`; prefill, decode, encode or train; sequences, and tokens of each."""

    model: str
    kind: str
    batch: int
    tokens: int
    quantized: str = ""
    """What its linear layers become: ``int8``, ``fp8`` or ``int8 weights`` by torchao, ``gpt-fast
    int8``, or nothing."""

    @property
    def name(self) -> str:
        """Such as ``Llama 3.1 8B int8 decode 16x1``."""
        model = " ".join(filter(None, (self.model, self.quantized)))
        return f"{model} {self.kind} {self.batch}x{self.tokens}"


_LLAMA = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": LAYERS}
_LLAMA |= {"num_attention_heads": 32, "num_key_value_heads": 8}
_EXPERTS = {"experts_implementation": "grouped_mm"}
"""Rows are sorted by expert, and all experts multiply theirs in one product of groups."""
_WHISPER = {
    f"{part}_{field}": value
    for part in ("encoder", "decoder")
    for field, value in {"layers": LAYERS, "attention_heads": 20, "ffn_dim": 5120}.items()
}
MODELS = {
    "Llama 3.1 8B": Model("LlamaForCausalLM", _LLAMA | {"vocab_size": 128256}),
    "Qwen2.5 7B": Model(
        "Qwen2ForCausalLM",
        {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": LAYERS}
        | {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064},
    ),
    "Phi-3 mini": Model("Phi3ForCausalLM", {"num_hidden_layers": LAYERS, "pad_token_id": 0}),
    "Qwen3 8B": Model(
        "Qwen3ForCausalLM",
        {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": LAYERS}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    ),
    "Gemma 3 4B": Model(
        "Gemma3ForCausalLM",
        {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": LAYERS}
        | {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    ),
    "GPT-2 XL": Model("GPT2LMHeadModel", {"n_embd": 1600, "n_head": 25, "n_layer": LAYERS}),
    "Mixtral 8x7B": Model("MixtralForCausalLM", _LLAMA | _EXPERTS),
    "Qwen3 30B A3B": Model(
        "Qwen3MoeForCausalLM",
        {"num_hidden_layers": LAYERS, "head_dim": 128, "norm_topk_prob": True} | _EXPERTS,
    ),
    "gpt-oss 20B": Model(
        "GptOssForCausalLM", {"num_hidden_layers": LAYERS, "num_local_experts": 32} | _EXPERTS
    ),
    # A layer's experts take 23 GB, in float32 twice that.
    "DeepSeek-V3": Model(
        "DeepseekV3ForCausalLM", {"num_hidden_layers": 1, "first_k_dense_replace": 0} | _EXPERTS
    ),
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
# In this order two or four GPUs have equal shares. One row is multiplied without a GEMM: once will
# do.
_ALL = (
    *(Case("GPT-2 XL", "decode", rows, 1) for rows in (16, 64, 200)),
    Case("Llama 3.1 8B", "prefill", 1, 2048),
    *(Case("Llama 3.1 8B", "decode", rows, 1, "gpt-fast int8") for rows in (1, 16, 64)),
    Case("Mixtral 8x7B", "decode", 64, 1),
    *(Case("Llama 3.1 8B", "decode", rows, 1, "int8 weights") for rows in (1, 16, 64)),
    *(Case("Llama 3.1 8B", "decode", rows, 1) for rows in (16, 64, 200)),
    Case("Whisper large", "encode", 1, 1500),
    Case("Llama 3.1 8B", "decode", 1, 1),
    Case("Qwen2.5 7B", "prefill", 1, 2048),
    *(Case("BERT large", "encode", batch, 512) for batch in (1, 16)),
    Case("Llama 3.1 8B", "train", 1, 2048),
    Case("Llama 3.1 8B", "prefill", 1, 2048, "int8"),
    *(Case("Qwen2.5 7B", "decode", rows, 1) for rows in (16, 64, 200)),
    Case("Llama 3.1 8B", "prefill", 1, 2048, "fp8"),
    *(Case("ViT-H", "encode", batch, 257) for batch in (1, 16)),
    Case("GPT-2 XL", "prefill", 2, 1024),
    Case("Mixtral 8x7B", "prefill", 1, 2048),
    Case("GPT-2 XL", "train", 2, 1024),
    *(Case("Llama 3.1 8B", "decode", rows, 1, "int8") for rows in (16, 64, 200)),
    *(Case(model, "decode", 16, 1) for model in ("Phi-3 mini", "Qwen3 8B", "Gemma 3 4B")),
    *(Case("Llama 3.1 8B", "decode", rows, 1, "fp8") for rows in (16, 64, 200)),
    *(Case("Mixtral 8x7B", "decode", rows, 1) for rows in (1, 16, 256)),
    *(
        Case(model, *steps)
        for model in ("Qwen3 30B A3B", "gpt-oss 20B", "DeepSeek-V3")
        for steps in (*(("decode", rows, 1) for rows in (1, 16, 64, 256)), ("prefill", 1, 2048))
    ),
    *(Case(model, "train", 1, 2048) for model in ("Mixtral 8x7B", "Qwen3 30B A3B", "gpt-oss 20B")),
)
CASES = {case.name: case for case in _ALL}


def built(model: Model) -> Any:
    """A model with random weights, in bf16, without dropout."""
    kind = getattr(importlib.import_module("transformers"), model.kind)
    config = kind.config_class(**model.fields, use_cache=False)
    built = kind._from_config(config, dtype=torch.bfloat16).eval()
    built.loss_type = "ForCausalLM"  # GPT-2 has none and warns of it, which would break its graph
    if model.mixture:
        # Smaller, they would be lost in a prompt's mean, and all tokens go to the same experts.
        torch.nn.init.normal_(built.get_input_embeddings().weight)
    return built


class Int8Linear(torch.nn.Module):
    """A linear layer whose weight is int8 with a scale in bf16 for each row, as in gpt-fast."""

    weight: torch.Tensor
    scales: torch.Tensor

    def __init__(self, layer: torch.nn.Linear):
        """Quantize a layer without bias."""
        super().__init__()
        weight = layer.weight.detach()
        scales = weight.abs().amax(1).float() / 127
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales.to(weight.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convert the weight, multiply, and scale."""
        return torch.nn.functional.linear(x, self.weight.to(x.dtype)) * self.scales


def quantize(model: Any, name: str) -> None:
    """Quantize the linear layers of a model: weights now, rows of x, if at all, at each call."""
    if name == "gpt-fast int8":
        for parent in [*model.modules()]:
            for field, layer in [*parent.named_children()]:
                if isinstance(layer, torch.nn.Linear):
                    setattr(parent, field, Int8Linear(layer))
        return
    found = importlib.import_module("torchao.quantization")
    kinds = {
        "int8 weights": found.Int8WeightOnlyConfig,
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
    """What a step of a model returns in float32, without `torch.compile`.

    The model's own weights become wide and narrow again, which changes no bit of them: DeepSeek-V3
    would not fit beside a copy.
    """
    wide = {
        name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in given.items()
    }
    types = {weight: weight.dtype for weight in model.parameters()}
    experts = model.config._experts_implementation
    for weight in types:
        weight.data = weight.data.float()
    model.config._experts_implementation = "eager"  # expert by expert, in any type
    result = step_of(run_model, case, model, wide)()
    model.config._experts_implementation = experts
    for weight, dtype in types.items():
        weight.data = weight.data.to(dtype)
    return result
