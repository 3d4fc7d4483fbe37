"""The linear layers of one's own model, out of its Hugging Face ``config.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilecast.data_collection.language_models import Decoder
from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.problem import GemmProblem

NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "expert": ("moe_intermediate_size",),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim", "encoder_ffn_dim", "d_ff"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "vocab": ("vocab_size",),
}
"""What each extent is called, in the order in which it is looked for."""
UNGATED = {
    "bert", "roberta", "gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "mpt",
    "falcon", "starcoder2", "phi", "vit", "whisper", "t5", "distilbert", "electra", "deit", "clip",
}  # fmt: skip
"""Model types whose MLP has one projection up; all others' has a gate beside it."""


def read_model(path: Path, shards: Sequence[int]) -> Decoder:
    """The layers that a model's configuration describes.

    Args:
        path: a ``config.json``; of one with several parts, the text model counts.
        shards: tensor-parallel degrees.

    Raises:
        TilecastError: the file cannot be read, or lacks an extent; its attention is latent; or a
            degree does not divide its heads and intermediate size.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(path, one_line(error)) from error
    if not isinstance(config, dict):
        raise _refused(path, "it is no object")
    config = config.get("text_config", config)
    if not isinstance(config, dict):
        raise _refused(path, "text_config is no object")
    found = {name: _extent(path, config, name) for name in NAMES}
    hidden, heads = found["hidden"], found["heads"]
    if config.get("kv_lora_rank") is not None:
        raise _refused(
            path,
            "it has kv_lora_rank, so latent attention, whose layers do not follow from its heads; "
            "name its products with --problems (those of DeepSeek-V3 are in --suite llm)",
        )
    if not hidden or not heads:
        names = " or ".join(NAMES["hidden" if not hidden else "heads"])
        raise _refused(path, f"it has no {names}")
    expert = found["expert"] if found["experts"] else 0
    intermediate = expert or found["intermediate"] or 4 * hidden
    for degree in shards:
        for name, extent in (("heads", heads), ("intermediate size", intermediate)):
            if extent % degree:
                raise TilecastError(
                    f"tensor-parallel degree {degree} does not divide the {name} {extent} of "
                    f"{path}; allowed: divisors of {math.gcd(heads, intermediate)}"
                )
    return Decoder(
        name=path.parent.name,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=found["kv_heads"] or heads,
        head_dim=found["head_dim"] or hidden // heads,
        vocab=found["vocab"],
        shards=tuple(shards),
        gated=config.get("model_type") not in UNGATED,
        experts=found["experts"],
    )


def model_problems(path: Path, shards: Sequence[int], rows: Sequence[int]) -> list[GemmProblem]:
    """The distinct products of a model's linear layers at some numbers of rows, widest first.

    QKV and gate and up are there in one, as servers fuse them, and one by one, as models are
    written.

    Raises:
        TilecastError: as `read_model`; no layer is one for us; or a number of rows is not allowed.
    """
    model = read_model(path, shards)
    families = set(model.families())
    for degree in shards:
        width = model.intermediate // degree
        apart = (
            model.heads // degree * model.head_dim,
            max(1, model.kv_heads // degree) * model.head_dim,
            width,
        )
        families |= {(n, model.hidden) for n in apart if n and n % 8 == model.hidden % 8 == 0}
    if not families:
        raise _refused(path, "no layer of it has inputs and outputs in multiples of 8")
    ordered = sorted(families, key=lambda family: (-family[0] * family[1], family))
    return [GemmProblem(m, n, k) for n, k in ordered for m in rows]


def _extent(path: Path, config: Mapping[str, object], name: str) -> int:
    """A positive number of a configuration under any of its names; 0 where it has none."""
    for key in NAMES[name]:
        value = config.get(key)
        if value is None:
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
