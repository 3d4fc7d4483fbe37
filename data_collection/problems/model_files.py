"""The linear layers of a model that its Hugging Face ``config.json`` describes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilecast.data_collection.problems.language_models import MULTIPLE, Decoder
from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.problem import GemmProblem

Config = Mapping[str, object]

NAMES = {
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "dim"),
    "heads": (
        *("num_attention_heads", "n_head", "n_heads", "num_heads"),
        "encoder_attention_heads",
    ),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "d_kv"),
    "expert": ("moe_intermediate_size",),
    "intermediate": (
        *("intermediate_size", "n_inner", "ffn_dim", "encoder_ffn_dim", "d_ff"),
        *("ffn_hidden_size", "hidden_dim"),
    ),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "shared": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "embedding": ("embedding_size", "word_embed_proj_dim"),
    "vocab": ("vocab_size",),
}
"""The names of each extent, in the order in which they are looked for."""
MAY_BE_NONE = {"experts", "shared", "shared_experts"}
"""Extents that a configuration may give as 0."""
UNGATED = {
    *("bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "distilbert", "electra"),
    *("albert", "deberta", "deberta-v2", "mpnet", "vit", "deit", "beit", "whisper", "bart"),
    *("mbart", "pegasus", "marian", "m2m_100", "blenderbot", "t5", "gpt2", "gpt_neo", "gpt_neox"),
    *("gptj", "gpt_bigcode", "codegen", "opt", "bloom", "mpt", "falcon", "starcoder2", "phi"),
    "nemotron",
}
"""Model types whose MLP has one projection up, unless `feed_forward_proj` names a gate."""
GATED = {
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2"),
    *("gemma3_text", "phi3", "granite", "olmo", "olmo2", "cohere", "cohere2", "stablelm"),
    *("gpt_oss", "modernbert"),
}
"""Model types whose MLP has a gate too; for other types a gated activation says so."""
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
"""The names of the activation."""
FOUR_TIMES = {
    *("gpt2", "gpt_neo", "gptj", "gpt_bigcode", "codegen", "bloom", "mpt", "falcon"),
}
"""Model types whose intermediate size is four times the hidden one where none is given."""
MULTI_QUERY = {"falcon", "gpt_bigcode"}
"""Model types whose heads share one key and value unless ``multi_query`` is false."""


def model_problems(
    path: Path, shards: Sequence[int], rows: Sequence[int]
) -> tuple[list[GemmProblem], list[str]]:
    """The distinct products of a model's linear layers at some numbers of rows, widest first.

    QKV and gate and up are there fused, as servers run them, and one by one, as models are written.
    Outputs of no multiple of 8 are filled up to the next, as kernels write them.

    Args:
        path: a ``config.json``; of a model with several parts, the text model counts.
        shards: tensor-parallel degrees.
        rows: values of m.

    Returns:
        The products, and what of the model is left out, in words.

    Raises:
        TilecastError: as `read_model`; no layer has inputs in multiples of 8; or a number of rows
            is not allowed.
    """
    config = _whole(path)
    model = _decoder(path, _text_model(path, config), shards)
    layers = {*model.layers(), *model.unfused()}
    families = {(-(-n // MULTIPLE) * MULTIPLE, k) for n, k in layers if k % MULTIPLE == 0}
    if not families:
        raise _refused(path, f"no layer of it has inputs in multiples of {MULTIPLE}")
    ordered = sorted(families, key=lambda family: (-family[0] * family[1], family))
    odd = sorted((n, k) for n, k in layers if k % MULTIPLE)
    return [GemmProblem(m, n, k) for n, k in ordered for m in rows], [
        *(f"{name}, which is not the text model" for name in _other_networks(config)),
        *(f"n={n} k={k}, whose k is no multiple of {MULTIPLE}" for n, k in odd),
    ]


def read_model(path: Path, shards: Sequence[int]) -> Decoder:
    """The layers that a model's configuration describes.

    Raises:
        TilecastError: the file cannot be read, or lacks an extent; its attention is latent; whether
            its MLP has a gate is not known; or a degree does not divide its heads and intermediate
            sizes, or neither divides its key-value heads nor is a multiple of them.
    """
    return _decoder(path, _text_model(path, _whole(path)), shards)


def _decoder(path: Path, config: Config, shards: Sequence[int]) -> Decoder:
    found = {name: _extent(path, config, name) for name in NAMES}
    hidden, heads, kind = found["hidden"], found["heads"], _kind(config)
    _check_layers(path, config)
    if not found["intermediate"] and kind in FOUR_TIMES:
        found["intermediate"] = 4 * hidden
    intermediate = found["expert"] if found["experts"] else 0
    intermediate = intermediate or found["intermediate"]
    for name, extent in (("hidden", hidden), ("heads", heads), ("intermediate", intermediate)):
        if not extent:
            raise _refused(path, f"it has no {' or '.join(NAMES[name])}")
    one_kv_head = (
        kind in MULTI_QUERY
        and config.get("multi_query", True)
        and not config.get("new_decoder_architecture")
    )
    model = Decoder(
        name=path.parent.name,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=1 if one_kv_head else found["kv_heads"] or heads,
        head_dim=found["head_dim"] or hidden // heads,
        vocab=found["vocab"],
        shards=tuple(shards),
        gated=_is_gated(path, config),
        experts=found["experts"],
        further=_beside_experts(config, found),
        embedding=found["embedding"] if found["embedding"] != hidden else 0,
    )
    _check_degrees(path, model)
    return model


def _whole(path: Path) -> Config:
    """All of a configuration."""
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(path, one_line(error)) from error
    if not isinstance(config, dict):
        raise _refused(path, "it is no object")
    return config


def _text_model(path: Path, config: Config) -> Config:
    """The text model's part of a configuration, where it has several."""
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise _refused(path, "text_config is no object")
    return text


def _check_layers(path: Path, config: Config) -> None:
    """Refuse a model with layers that do not follow from its heads and MLP."""
    if config.get("kv_lora_rank") is not None:
        raise _refused(
            path,
            "it has kv_lora_rank, so latent attention, whose layers do not follow from its heads; "
            "name its products with --problems (those of DeepSeek-V3 are in --suite llm)",
        )
    further = ("linear_num_key_heads", "intermediate_size_mlp")
    named = [name for name in config if name in further or name.startswith("mamba_")]
    kinds = config.get("layer_types")
    named += [
        f"layer_types with {str(kind)[:50]!r}"
        for kind in (kinds if isinstance(kinds, list) else [])
        if kind == "linear_attention" or not str(kind).endswith("attention")
    ]
    if named:
        raise _refused(
            path,
            f"it has {named[0]}, so layers that do not follow from its heads and MLP; name its "
            "products with --problems",
        )


def _other_networks(config: Config) -> list[str]:
    """Names of the parts of a configuration that are other networks than the text model."""
    return [
        name
        for name, part in config.items()
        if name.endswith("_config") and name != "text_config" and isinstance(part, dict)
        if not part.keys().isdisjoint(NAMES["hidden"])
    ]


def _kind(config: Config) -> str:
    return str(config.get("model_type", "none"))


def _is_gated(path: Path, config: Config) -> bool:
    """Whether a gate stands beside the projection up."""
    kind = _kind(config)
    if str(config.get("feed_forward_proj")).startswith("gated"):
        return True
    if kind in UNGATED:
        return False
    named = {str(config.get(name)) for name in ACTIVATIONS}
    if kind in GATED or any(name == "silu" or name.endswith("glu") for name in named):
        return True
    raise _refused(
        path,
        f"whether the MLP of model_type {kind[:50]!r} has a gate is not known; name its "
        "products with --problems",
    )


def _beside_experts(config: Config, found: Mapping[str, int]) -> tuple[int, ...]:
    """Intermediate sizes of the expert that every token goes to, and of layers without experts."""
    if not found["experts"]:
        return ()
    shared = found["shared"] or found["shared_experts"] * found["expert"]
    some_dense = (
        config.get("first_k_dense_replace")
        or config.get("num_dense_layers")
        or config.get("moe_layer_start_index")
        or config.get("mlp_only_layers")
        or config.get("decoder_sparse_step") not in (None, 1)
    )
    dense = found["intermediate"] if found["expert"] and some_dense else 0
    return tuple(filter(None, (shared, dense)))


def _check_degrees(path: Path, model: Decoder) -> None:
    """See that every tensor-parallel degree splits the model evenly."""
    sizes = (model.intermediate, *model.further)
    for degree in model.shards:
        for name, extent in (("heads", model.heads), *(("intermediate size", n) for n in sizes)):
            if extent % degree:
                raise TilecastError(
                    f"tensor-parallel degree {degree} does not divide the {name} {extent} of "
                    f"{path}; allowed: divisors of {math.gcd(model.heads, *sizes)}"
                )
        if model.kv_heads % degree and degree % model.kv_heads:
            raise TilecastError(
                f"tensor-parallel degree {degree} neither divides the {model.kv_heads} key-value "
                f"heads of {path} nor is a multiple of them; allowed: such divisors of "
                f"{math.gcd(model.heads, *sizes)}"
            )


def _extent(path: Path, config: Config, name: str) -> int:
    """A positive number of a configuration under any of its names; 0 where it has none."""
    for key in NAMES[name]:
        value = config.get(key)
        if value is None or (value == 0 and name in MAY_BE_NONE):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _refused(path, f"{key} is {str(value)[:50]!r}, not a positive integer")
        return value
    return 0


def _refused(path: Path, reason: str) -> TilecastError:
    return TilecastError(
        f"model configuration {path} is not understood: {reason}; allowed: a config.json of the "
        "Hugging Face hub with hidden_size and num_attention_heads"
    )
