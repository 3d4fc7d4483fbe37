"""The linear layers of a model that its Hugging Face ``config.json`` describes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilecast.data_collection.problems.language_models import MULTIPLE, Decoder
from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.files import read_whole
from tilecast.heuristics.problem import GemmProblem

MOST_BYTES = 16 << 20
"""Of a configuration, which takes some 2 KB."""
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


@dataclass(frozen=True)
class _Config:
    """What a file says of a model."""

    path: Path
    values: Mapping[str, Any]
    """Those of the text model, where the file describes several networks."""
    others: tuple[str, ...]
    """Names of the other networks."""

    @property
    def kind(self) -> str:
        return str(self.values.get("model_type", "none"))

    def extent(self, name: str) -> int:
        """A positive number under any of its names; 0 where it has none."""
        for key in NAMES[name]:
            value = self.values.get(key)
            if value is None or (value == 0 and name in MAY_BE_NONE):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self.refused(f"{key} is {str(value)[:50]!r}, not a positive integer")
            return value
        return 0

    def refused(self, reason: str) -> TilecastError:
        return TilecastError(
            f"model configuration {self.path} is not understood: {reason}; allowed: a config.json "
            "of the Hugging Face hub with hidden_size and num_attention_heads, or products named "
            "with --problems"
        )


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
        TilecastError: the file cannot be read; as `decoder`; no layer has inputs in multiples of 8;
            or a number of rows is not allowed.
    """
    config = read_config(path)
    model = decoder(config, shards)
    layers = {*model.layers(), *model.unfused()}
    families = {(-(-n // MULTIPLE) * MULTIPLE, k) for n, k in layers if k % MULTIPLE == 0}
    if not families:
        raise config.refused(f"no layer of it has inputs in multiples of {MULTIPLE}")
    ordered = sorted(families, key=lambda family: (-family[0] * family[1], family))
    odd = sorted((n, k) for n, k in layers if k % MULTIPLE)
    return [GemmProblem(m, n, k) for n, k in ordered for m in rows], [
        *(f"{name}, which is not the text model" for name in config.others),
        *(f"n={n} k={k}, whose k is no multiple of {MULTIPLE}" for n, k in odd),
    ]


def read_config(path: Path) -> _Config:
    """What a ``config.json`` says; TilecastError where it cannot be read."""
    nothing = _Config(path, {}, ())
    try:
        whole = json.loads(read_whole(path, MOST_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise nothing.refused(one_line(error)) from error
    if not isinstance(whole, dict):
        raise nothing.refused("it is no object")
    text = whole.get("text_config", whole)
    if not isinstance(text, dict):
        raise nothing.refused("text_config is no object")
    others = (
        name
        for name, part in whole.items()
        if name.endswith("_config") and part is not text and isinstance(part, dict)
        if not part.keys().isdisjoint(NAMES["hidden"])
    )
    return _Config(path, text, tuple(others))


def decoder(config: _Config, shards: Sequence[int]) -> Decoder:
    """The layers that a model's configuration describes.

    Raises:
        TilecastError: it lacks an extent; its attention is latent; whether its MLP has a gate is
            not known; or a degree does not divide its heads and intermediate sizes, or neither
            divides its key-value heads nor is a multiple of them.
    """
    found = {name: config.extent(name) for name in NAMES}
    hidden, heads = found["hidden"], found["heads"]
    _check_layers(config)
    if not found["intermediate"] and config.kind in FOUR_TIMES:
        found["intermediate"] = 4 * hidden
    intermediate = found["expert"] if found["experts"] else 0
    intermediate = intermediate or found["intermediate"]
    for name, extent in (("hidden", hidden), ("heads", heads), ("intermediate", intermediate)):
        if not extent:
            raise config.refused(f"it has no {' or '.join(NAMES[name])}")
    one_kv_head = (
        config.kind in MULTI_QUERY
        and config.values.get("multi_query", True)
        and not config.values.get("new_decoder_architecture")
    )
    model = Decoder(
        name=config.path.parent.name,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=1 if one_kv_head else found["kv_heads"] or heads,
        head_dim=found["head_dim"] or hidden // heads,
        vocab=found["vocab"],
        shards=tuple(shards),
        gated=_is_gated(config),
        experts=found["experts"],
        further=_beside_experts(config, found),
        embedding=found["embedding"] if found["embedding"] != hidden else 0,
    )
    sizes = (heads, intermediate, *model.further)
    for degree in shards:
        held = model.kv_heads % degree == 0 or degree % model.kv_heads == 0
        if not held or any(size % degree for size in sizes):
            raise TilecastError(
                f"tensor-parallel degree {degree} does not split the model of {config.path} "
                f"evenly; allowed: divisors of {math.gcd(*sizes)} that divide its "
                f"{model.kv_heads} key-value heads or are a multiple of them"
            )
    return model


def _check_layers(config: _Config) -> None:
    """Refuse a model with layers that do not follow from its heads and MLP."""
    further = ("kv_lora_rank", "linear_num_key_heads", "intermediate_size_mlp")
    named = [
        name
        for name, value in config.values.items()
        if value is not None and (name in further or name.startswith("mamba_"))
    ]
    kinds = config.values.get("layer_types")
    named += [
        f"layer_types with {str(kind)[:50]!r}"
        for kind in (kinds if isinstance(kinds, list) else [])
        if kind == "linear_attention" or not str(kind).endswith("attention")
    ]
    if named:
        raise config.refused(
            f"it has {named[0]}, so layers that do not follow from its heads and MLP (those of "
            "DeepSeek-V3 are in --suite llm)"
        )


def _is_gated(config: _Config) -> bool:
    """Whether a gate stands beside the projection up."""
    if str(config.values.get("feed_forward_proj")).startswith("gated"):
        return True
    if config.kind in UNGATED:
        return False
    named = {str(config.values.get(name)) for name in ACTIVATIONS}
    if config.kind in GATED or any(name == "silu" or name.endswith("glu") for name in named):
        return True
    raise config.refused(
        f"whether the MLP of model_type {config.kind[:50]!r} has a gate is not known"
    )


def _beside_experts(config: _Config, found: Mapping[str, int]) -> tuple[int, ...]:
    """Intermediate sizes of the expert that every token goes to, and of layers without experts."""
    if not found["experts"]:
        return ()
    shared = found["shared"] or found["shared_experts"] * found["expert"]
    some = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "mlp_only_layers")
    some_dense = any(config.values.get(name) for name in some) or (
        config.values.get("decoder_sparse_step") not in (None, 1)
    )
    dense = found["intermediate"] if found["expert"] and some_dense else 0
    return tuple(filter(None, (shared, dense)))
