"""The linear layers of a model, out of its configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilecast.data_collection.problems.language_models import MODELS
from tilecast.data_collection.problems.model_files import (
    decoder,
    model_problems,
    read_config,
)
from tilecast.heuristics.errors import TilecastError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
GPT2 = {"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "vocab_size": 50257}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "vocab_size": 32000}
QWEN_MOE = LLAMA | {
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "moe_intermediate_size": 768,
    "head_dim": 64,
}


def _config(tmp_path: Path, config: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_a_model_that_is_known_has_the_layers_that_are_known(tmp_path: Path) -> None:
    (known,) = [model for model in MODELS if model.name == "Llama-3.1-8B"]
    read = decoder(read_config(_config(tmp_path, LLAMA)), (1, 2, 4, 8))
    assert list(read.families()) == list(known.families())
    whole = decoder(read_config(_config(tmp_path, {"text_config": LLAMA, "hidden_size": 1})), (1,))
    assert whole.hidden == 4096


def test_extents_that_a_configuration_leaves_out_follow_from_the_others(tmp_path: Path) -> None:
    model = decoder(read_config(_config(tmp_path, GPT2)), (1,))
    assert (model.intermediate, model.kv_heads, model.head_dim) == (6400, 25, 64)
    assert not model.gated
    assert (3 * 1600, 1600) in model.families()
    assert decoder(read_config(_config(tmp_path, MIXTRAL)), (1,)).experts == 8
    assert decoder(read_config(_config(tmp_path, MIXTRAL)), (1,)).intermediate == 14336
    moe = decoder(read_config(_config(tmp_path, QWEN_MOE)), (1,))
    assert (moe.intermediate, moe.head_dim, moe.experts) == (768, 64, 128)


ENCODER = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
T5 = {"model_type": "t5", "d_model": 1024, "num_heads": 32, "d_kv": 64, "d_ff": 2816}
FALCON = {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71}
FALCON |= {"num_kv_heads": 71, "multi_query": True, "new_decoder_architecture": False}


def _mlp(hidden: int, width: int, gated: bool = False) -> set[tuple[int, int]]:
    """Up and down; gate and up where there is a gate."""
    return {(width * (1 + gated), hidden), (hidden, width)}


def _layers(
    hidden: int, qkv: int, width: int, gated: bool = False, inner: int = 0, vocab: int = 0
) -> set[tuple[int, int]]:
    """Of a model whose attention has ``inner`` columns, as many as are hidden when left out."""
    head = {(vocab, hidden)} if vocab else set()
    return {(qkv, hidden), (hidden, inner or hidden)} | _mlp(hidden, width, gated) | head


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (FALCON | {"vocab_size": 65024}, _layers(4544, 4672, 18176, vocab=65024)),
        (FALCON | {"multi_query": False}, _layers(4544, 3 * 4544, 18176)),
        (
            FALCON
            | {"hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8}
            | {"new_decoder_architecture": True},
            _layers(8192, 9216, 32768),
        ),
        (
            {"model_type": "opt", "hidden_size": 4096, "num_attention_heads": 32, "ffn_dim": 16384}
            | {"word_embed_proj_dim": 4096, "activation_function": "relu", "vocab_size": 50272},
            _layers(4096, 12288, 16384, vocab=50272),
        ),
        (T5 | {"feed_forward_proj": "relu"}, _layers(1024, 6144, 2816, inner=2048)),
        (T5 | {"feed_forward_proj": "gated-gelu"}, _layers(1024, 6144, 2816, True, 2048)),
        (
            ENCODER | {"model_type": "gemma2", "head_dim": 256, "hidden_act": "gelu_pytorch_tanh"},
            _layers(768, 9216, 3072, True, 3072),
        ),
        (
            ENCODER | {"model_type": "exaone", "activation_function": "silu"},
            _layers(768, 2304, 3072, True),
        ),
    ],
)
def test_layers_of_a_type_of_model(
    tmp_path: Path, config: dict, expected: set[tuple[int, int]]
) -> None:
    assert set(decoder(read_config(_config(tmp_path, config)), (1,)).layers()) == expected


def test_mlps_beside_the_experts(tmp_path: Path) -> None:
    moe = QWEN_MOE | {"shared_expert_intermediate_size": 2816, "n_shared_experts": 0}
    layers = set(decoder(read_config(_config(tmp_path, moe)), (1,)).layers())
    assert _mlp(4096, 2816, True) | _mlp(4096, 768, True) <= layers
    assert not _mlp(4096, 14336, True) & layers
    some = QWEN_MOE | {"n_shared_experts": 2, "first_k_dense_replace": 1}
    layers = set(decoder(read_config(_config(tmp_path, some)), (1,)).layers())
    assert _mlp(4096, 1536, True) | _mlp(4096, 768, True) | _mlp(4096, 14336, True) <= layers
    with pytest.raises(TilecastError, match="degree 11 does not split the model"):
        decoder(read_config(_config(tmp_path, some)), (11,))
    granite = LLAMA | {"num_local_experts": 32, "shared_intermediate_size": 1024}
    layers = set(decoder(read_config(_config(tmp_path, granite)), (1,)).layers())
    assert _mlp(4096, 1024, True) | _mlp(4096, 14336, True) | {(32, 4096)} <= layers


@pytest.mark.parametrize(("kv_heads", "degree", "held"), [(6, 3, 2), (6, 6, 1), (6, 12, 1)])
def test_a_degree_divides_key_value_heads_or_repeats_them(
    tmp_path: Path, kv_heads: int, degree: int, held: int
) -> None:
    model = LLAMA | {"num_attention_heads": 120, "intermediate_size": 14400, "head_dim": 64}
    read = decoder(
        read_config(_config(tmp_path, model | {"num_key_value_heads": kv_heads})), (degree,)
    )
    assert ((120 // degree + 2 * held) * 64, 4096) in set(read.layers())


def _families(path: Path, shards: tuple[int, ...] = (1,)) -> set[tuple[int, int]]:
    return {problem.family for problem in model_problems(path, shards, (1,))[0]}


def test_problems_have_layers_fused_and_apart_at_every_number_of_rows(tmp_path: Path) -> None:
    path = _config(tmp_path, LLAMA)
    problems, left_out = model_problems(path, (1,), (3, 64))
    assert len(problems) == len(set(problems)) == 2 * 7
    assert {p.m for p in problems} == {3, 64}
    assert {p.family for p in problems} == {
        (6144, 4096), (4096, 4096), (1024, 4096), (28672, 4096), (14336, 4096), (4096, 14336),
        (128256, 4096),
    }  # fmt: skip
    assert {(3072, 4096), (4096, 2048), (4096, 7168), (512, 4096)} <= _families(path, (2,))
    assert left_out == []


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    vision = {"text_config": LLAMA, "vision_config": {"hidden_size": 1152}}
    path = _config(tmp_path, vision | {"quantization_config": {"bits": 4}})
    assert model_problems(path, (1,), (1,))[1] == ["vision_config, which is not the text model"]
    odd = _config(tmp_path, LLAMA | {"intermediate_size": 4100})
    problems, left_out = model_problems(odd, (1,), (1,))
    assert left_out == ["n=4096 k=4100, whose k is no multiple of 8"]
    assert (4096, 4100) not in {p.family for p in problems}


@pytest.mark.parametrize(
    ("config", "shards", "reason"),
    [
        ([], (1,), "it is no object"),
        ({"hidden_size": 64}, (1,), "it has no num_attention_heads or n_head"),
        (LLAMA | {"hidden_size": "64"}, (1,), "hidden_size is '64', not a positive integer"),
        (LLAMA | {"head_dim": True}, (1,), "head_dim is 'True', not a positive integer"),
        ({"text_config": 1}, (1,), "text_config is no object"),
        (ENCODER | {"model_type": "xlnet", "hidden_act": "gelu"}, (1,), "'xlnet' has a gate"),
        (LLAMA | {"kv_lora_rank": 512}, (1,), "kv_lora_rank.*--suite llm"),
        (LLAMA | {"mamba_d_state": 128}, (1,), "it has mamba_d_state"),
        (LLAMA | {"layer_types": ["full_attention", "conv"]}, (1,), "layer_types with 'conv'"),
        ({"model_type": "gpt2", "hidden_size": 7, "n_head": 1}, (1,), "no layer.*multiples of 8"),
        (LLAMA, (1, 5), "degree 5 does not split .*allowed: divisors of 32 that divide its 8"),
        (LLAMA | {"num_key_value_heads": 6}, (1, 4), "degree 4 does not split .* its 6 key-value"),
        (LLAMA | {"intermediate_size": 12}, (8,), "degree 8 does not split .* divisors of 4"),
    ],
)
def test_a_model_that_is_not_understood_is_refused(
    tmp_path: Path, config: object, shards: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(TilecastError, match=reason) as refused:
        model_problems(_config(tmp_path, config), shards, (1,))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for path in (*(tmp_path / f"{name}.json" for name in ("config", "deep", "none")), tmp_path):
        with pytest.raises(TilecastError, match="is not understood: "):
            decoder(read_config(path), (1,))
