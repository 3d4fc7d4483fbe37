"""The linear layers of a model, out of its configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilecast.data_collection.language_models import MODELS
from tilecast.data_collection.model_files import model_problems, read_model
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
QWEN_MOE = LLAMA | {"num_experts": 128, "moe_intermediate_size": 768, "head_dim": 64}


def _config(tmp_path: Path, config: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_a_model_that_is_known_has_the_layers_that_are_known(tmp_path: Path) -> None:
    (known,) = [model for model in MODELS if model.name == "Llama-3.1-8B"]
    read = read_model(_config(tmp_path, LLAMA), (1, 2, 4, 8))
    assert list(read.families()) == list(known.families())
    whole = read_model(_config(tmp_path, {"text_config": LLAMA, "hidden_size": 1}), (1,))
    assert whole.hidden == 4096


def test_layers_are_there_fused_and_apart(tmp_path: Path) -> None:
    found = {p.family for p in model_problems(_config(tmp_path, LLAMA), (1,), (1, 16))}
    assert found == {
        (6144, 4096), (4096, 4096), (1024, 4096), (28672, 4096), (14336, 4096), (4096, 14336),
        (128256, 4096),
    }  # fmt: skip
    by_two = {p.family for p in model_problems(_config(tmp_path, LLAMA), (2,), (1,))}
    assert {(3072, 4096), (4096, 2048), (4096, 7168), (512, 4096)} <= by_two


def test_extents_that_a_configuration_leaves_out_follow_from_the_others(tmp_path: Path) -> None:
    model = read_model(_config(tmp_path, GPT2), (1,))
    assert (model.intermediate, model.kv_heads, model.head_dim) == (6400, 25, 64)
    assert not model.gated
    assert (3 * 1600, 1600) in model.families()
    assert read_model(_config(tmp_path, MIXTRAL), (1,)).experts == 8
    assert read_model(_config(tmp_path, MIXTRAL), (1,)).intermediate == 14336
    moe = read_model(_config(tmp_path, QWEN_MOE), (1,))
    assert (moe.intermediate, moe.head_dim, moe.experts) == (768, 64, 128)


def test_a_model_without_a_vocabulary_has_its_other_layers(tmp_path: Path) -> None:
    vision = {name: value for name, value in LLAMA.items() if name != "vocab_size"}
    found = {p.family for p in model_problems(_config(tmp_path, vision), (1,), (1,))}
    whole = {p.family for p in model_problems(_config(tmp_path, LLAMA), (1,), (1,))}
    assert found == whole - {(128256, 4096)}


def test_each_layer_has_every_number_of_rows_once(tmp_path: Path) -> None:
    problems = model_problems(_config(tmp_path, LLAMA), (1, 2), (3, 64))
    assert len(problems) == len(set(problems)) == 2 * len({p.family for p in problems})
    assert {p.m for p in problems} == {3, 64}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ([], "it is no object"),
        ({}, "it has no hidden_size or n_embd or d_model"),
        ({"hidden_size": 64}, "it has no num_attention_heads or n_head"),
        (LLAMA | {"hidden_size": "64"}, "hidden_size is '64', not a positive integer"),
        (LLAMA | {"num_key_value_heads": 0}, "num_key_value_heads is '0', not a positive"),
        (LLAMA | {"head_dim": True}, "head_dim is 'True', not a positive integer"),
        ({"text_config": 1}, "text_config is no object"),
        (LLAMA | {"num_experts": 8, "moe_intermediate_size": "x"}, "moe_intermediate_size is 'x'"),
    ],
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, config: object, told: str) -> None:
    with pytest.raises(TilecastError) as refused:
        read_model(_config(tmp_path, config), (1,))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_latent_attention_is_refused(tmp_path: Path) -> None:
    deepseek = LLAMA | {"model_type": "deepseek_v3", "kv_lora_rank": 512, "q_lora_rank": 1536}
    with pytest.raises(TilecastError, match="it has kv_lora_rank, so latent attention.*suite llm"):
        read_model(_config(tmp_path, deepseek), (1,))


@pytest.mark.parametrize(
    ("heads", "degree", "told"),
    [
        (12, 5, "tensor-parallel degree 5 does not divide the heads 12 of "),
        (12, 16, "tensor-parallel degree 16 does not divide the heads 12 of "),
        (15, 3, "tensor-parallel degree 3 does not divide the intermediate size 14336 of "),
    ],
)
def test_a_degree_that_does_not_divide_is_refused(
    tmp_path: Path, heads: int, degree: int, told: str
) -> None:
    model = LLAMA | {"num_attention_heads": heads, "head_dim": 64}
    with pytest.raises(TilecastError, match=f"{told}.*; allowed: divisors of ") as refused:
        model_problems(_config(tmp_path, model), (1, degree), (16,))
    assert "\n" not in str(refused.value)


def test_a_model_without_a_layer_for_us_is_refused(tmp_path: Path) -> None:
    odd = {"hidden_size": 7, "num_attention_heads": 1}
    with pytest.raises(TilecastError, match="no layer of it has inputs and outputs in multiples"):
        model_problems(_config(tmp_path, odd), (1,), (16,))


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for path in (*(tmp_path / f"{name}.json" for name in ("config", "deep", "none")), tmp_path):
        with pytest.raises(TilecastError, match="model configuration .* is not understood: "):
            read_model(path, (1,))
