"""Linear layers of public language models, derived from the extents that each model publishes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Family = tuple[int, int]
"""(n, k): columns and rows of the weight."""

MAX_LM_HEAD = 152_064
"""Widest lm_head, or shard of one, in the ``llm`` suite (Qwen2.5's vocabulary)."""
MULTIPLE = 8
"""Elements of 16 bits in 16 bytes: TMA needs a multiple of them in contiguous extents."""


@dataclass(frozen=True)
class Decoder:
    """The published extents that give a language model's linear layers."""

    name: str
    """Name of the model's configuration on the Hugging Face hub."""
    hidden: int
    """``hidden_size``."""
    intermediate: int
    """``intermediate_size`` of the dense layers, or of one expert."""
    heads: int
    """``num_attention_heads``."""
    kv_heads: int
    """``num_key_value_heads``."""
    head_dim: int
    """``head_dim``."""
    vocab: int
    """``vocab_size`` as stored, padding included; 0 for a model without lm_head."""
    shards: tuple[int, ...] = (1,)
    """Tensor-parallel degrees that it is served with."""
    gated: bool = True
    """Whether gate and up projections are fused into one of twice the width."""
    experts: int = 0
    """Experts that a router chooses from; 0 for a dense model."""
    further: tuple[int, ...] = ()
    """Intermediate sizes of MLPs beside the experts: a shared one's, those of dense layers."""
    embedding: int = 0
    """Columns of the lm_head where these are not ``hidden``, and one layer leads there and back."""

    def families(self) -> Iterator[Family]:
        """Those of `layers` that keep the 16-byte rule and do not exceed `MAX_LM_HEAD`."""
        for n, k in self.layers():
            if n % MULTIPLE == 0 and k % MULTIPLE == 0 and n <= MAX_LM_HEAD:
                yield n, k

    def layers(self) -> Iterator[Family]:
        """(n, k) of QKV, attention out, up, down, router and lm_head, for every degree.

        Column-parallel layers divide n, row-parallel ones k. A degree divides the number of
        key-value heads, or is a multiple of it: then each shard holds one of them. A vocabulary
        that a degree does not divide is filled up.
        """
        for shards in self.shards:
            query, key_value = self._attention(shards)
            yield query + 2 * key_value, self.hidden
            yield self.hidden, query
            for width in self._widths(shards):
                yield width * (2 if self.gated else 1), self.hidden
                yield self.hidden, width
            if self.experts:
                yield self.experts, self.hidden
            if self.embedding:
                yield self.embedding, self.hidden
                yield self.hidden, self.embedding
            if self.vocab:
                yield -(-self.vocab // shards), self.embedding or self.hidden

    def unfused(self) -> Iterator[Family]:
        """(n, k) of the parts of fused `layers`: query, key or value, and gate or up."""
        for shards in self.shards:
            for n in (*self._attention(shards), *self._widths(shards)):
                yield n, self.hidden

    def _attention(self, shards: int) -> tuple[int, int]:
        """Columns of the query and of the key, or value, on one of some shards."""
        heads, kv_heads = self.heads // shards, max(1, self.kv_heads // shards)
        return heads * self.head_dim, kv_heads * self.head_dim

    def _widths(self, shards: int) -> list[int]:
        """Intermediate sizes on one of some shards."""
        return [width // shards for width in (self.intermediate, *self.further)]


_TP = (1, 2, 4, 8)

# Source of every row: config.json of that model on the Hugging Face hub, most of them compared with
# litgpt's own table of the same files (litgpt/config.py).
# fmt: off
MODELS = (
    #       name                      hidden  inter heads kv  dim  vocab
    Decoder("Llama-2-7b-hf",            4096, 11008,  32, 32, 128,  32000, (1, 2)),
    Decoder("Llama-2-13b-hf",           5120, 13824,  40, 40, 128,  32000, (1, 2)),
    Decoder("Llama-2-70b-hf",           8192, 28672,  64,  8, 128,  32000, _TP),
    Decoder("Llama-3.2-1B",             2048,  8192,  32,  8,  64, 128256),
    Decoder("Llama-3.2-3B",             3072,  8192,  24,  8, 128, 128256),
    Decoder("Llama-3.1-8B",             4096, 14336,  32,  8, 128, 128256, _TP),
    Decoder("Llama-3.1-70B",            8192, 28672,  64,  8, 128, 128256, _TP),
    Decoder("Llama-3.1-405B",          16384, 53248, 128,  8, 128, 128256, (4, 8)),
    Decoder("Mistral-7B-v0.3",          4096, 14336,  32,  8, 128,  32768),
    Decoder("Mistral-Small-24B-2501",   5120, 32768,  32,  8, 128, 131072, (1, 2)),
    Decoder("Mistral-Large-2407",      12288, 28672,  96,  8, 128,  32768, (4, 8)),
    Decoder("Mixtral-8x7B-v0.1",        4096, 14336,  32,  8, 128,  32000, (1, 2), experts=8),
    Decoder("Mixtral-8x22B-v0.1",       6144, 16384,  48,  8, 128,  32768, (2, 4), experts=8),
    Decoder("Qwen2.5-0.5B",              896,  4864,  14,  2,  64, 151936),
    Decoder("Qwen2.5-1.5B",             1536,  8960,  12,  2, 128, 151936),
    Decoder("Qwen2.5-3B",               2048, 11008,  16,  2, 128, 151936),
    Decoder("Qwen2.5-7B",               3584, 18944,  28,  4, 128, 152064, (1, 2)),
    Decoder("Qwen2.5-14B",              5120, 13824,  40,  8, 128, 152064, (1, 2)),
    Decoder("Qwen2.5-32B",              5120, 27648,  40,  8, 128, 152064, (1, 2, 4)),
    Decoder("Qwen2.5-72B",              8192, 29568,  64,  8, 128, 152064, (2, 4, 8)),
    Decoder("Qwen3-0.6B",               1024,  3072,  16,  8, 128, 151936),
    Decoder("Qwen3-1.7B",               2048,  6144,  16,  8, 128, 151936),
    Decoder("Qwen3-4B",                 2560,  9728,  32,  8, 128, 151936),
    Decoder("Qwen3-8B",                 4096, 12288,  32,  8, 128, 151936, (1, 2)),
    Decoder("Qwen3-14B",                5120, 17408,  40,  8, 128, 151936, (1, 2)),
    Decoder("Qwen3-32B",                5120, 25600,  64,  8, 128, 151936, (1, 2, 4)),
    Decoder("Qwen3-30B-A3B",            2048,   768,  32,  4, 128, 151936, experts=128),
    Decoder("Qwen3-235B-A22B",          4096,  1536,  64,  4, 128, 151936, (4, 8), experts=128),
    Decoder("gemma-2-2b",               2304,  9216,   8,  4, 256, 256000),
    Decoder("gemma-2-9b",               3584, 14336,  16,  8, 256, 256000, (1, 2)),
    Decoder("gemma-2-27b",              4608, 36864,  32, 16, 128, 256000, (1, 2)),
    Decoder("gemma-3-1b-it",            1152,  6912,   4,  1, 256, 262144),
    Decoder("gemma-3-4b-it",            2560, 10240,   8,  4, 256, 262208),
    Decoder("gemma-3-12b-it",           3840, 15360,  16,  8, 256, 262208, (1, 2)),
    Decoder("gemma-3-27b-it",           5376, 21504,  32, 16, 128, 262208, (1, 2)),
    Decoder("Phi-3-mini-4k-instruct",   3072,  8192,  32, 32,  96,  32064),
    Decoder("phi-4",                    5120, 17920,  40, 10, 128, 100352, (1, 2)),
    Decoder("gpt-oss-20b",              2880,  2880,  64,  8,  64, 201088, (1, 2), experts=32),
    Decoder("gpt-oss-120b",             2880,  2880,  64,  8,  64, 201088, (2, 4), experts=128),
    Decoder("falcon-7b",                4544, 18176,  71,  1,  64,  65024, gated=False),
    Decoder("falcon-40b",               8192, 32768, 128,  8,  64,  65024, (2, 4), gated=False),
    Decoder("falcon-180B",             14848, 59392, 232,  8,  64,  65024, (8,), gated=False),
    Decoder("Falcon3-7B-Base",          3072, 23040,  12,  4, 256, 131072),
    Decoder("starcoder2-3b",            3072, 12288,  24,  2, 128,  49152, gated=False),
    Decoder("starcoder2-7b",            4608, 18432,  36,  4, 128,  49152, gated=False),
    Decoder("starcoder2-15b",           6144, 24576,  48,  4, 128,  49152, (1, 2), gated=False),
    Decoder("OLMo-2-1124-7B",           4096, 11008,  32, 32, 128, 100352),
    Decoder("OLMo-2-1124-13B",          5120, 13824,  40, 40, 128, 100352),
    Decoder("granite-3.1-8b-base",      4096, 12800,  32,  8, 128,  49155),
)
# fmt: on
"""Decoders with ordinary attention."""

# DeepSeek-V3 has latent attention (MLA). config.json: hidden 7168, q_lora_rank 1536,
# kv_lora_rank 512, qk_rope_head_dim 64, qk_nope_head_dim 128, v_head_dim 128, 128 heads,
# intermediate 18432, moe_intermediate 2048, 256 experts, vocabulary 129280. "/ 8" is the shard at
# tensor-parallel degree 8.
DEEPSEEK_V3: tuple[Family, ...] = (
    (1536 + 512 + 64, 7168),  # q_a and kv_a, fused
    (128 * (128 + 64), 1536),  # q_b
    (128 * (128 + 64) // 8, 1536),
    (128 * (128 + 128), 512),  # kv_b
    (7168, 128 * 128),  # attention out
    (7168, 128 * 128 // 8),
    (2 * 2048, 7168),  # expert gate and up
    (7168, 2048),  # expert down
    (2 * 18432 // 8, 7168),  # dense gate and up
    (7168, 18432 // 8),  # dense down
    (256, 7168),  # router
    (129280 // 8, 7168),  # lm_head
)
"""The linear layers of DeepSeek-V3, which no `Decoder` describes."""
