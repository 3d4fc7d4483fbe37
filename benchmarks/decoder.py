"""A decoder layer as Llama has it, in plain PyTorch."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """Extents of a layer: widths of the residual stream and of the MLP; heads and their width."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int = 128


SIZES = {"8B": Size(4096, 14336, 32, 8), "70B": Size(8192, 28672, 64, 8)}  # of Llama 3.1


@dataclass(frozen=True)
class Cache:
    """Keys and values of earlier tokens, and the place that the next token takes."""

    keys: torch.Tensor  # (batch, kv_heads, tokens, head_dim)
    values: torch.Tensor  # the same
    position: torch.Tensor  # (1,), int64


class DecoderLayer(nn.Module):
    """RMSNorm, grouped-query attention with rotary embedding, RMSNorm, SwiGLU."""

    def __init__(self, size: Size):
        """Make weights."""
        super().__init__()
        self.size = size
        width = size.heads * size.head_dim
        kv_width = size.kv_heads * size.head_dim
        self.widths = (width, kv_width, kv_width)
        self.attention_norm = nn.RMSNorm(size.hidden, eps=1e-5)
        self.qkv = nn.Linear(size.hidden, sum(self.widths), bias=False)
        self.output = nn.Linear(width, size.hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(size.hidden, eps=1e-5)
        self.gate_up = nn.Linear(size.hidden, 2 * size.intermediate, bias=False)
        self.down = nn.Linear(size.intermediate, size.hidden, bias=False)

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, cache: Cache | None = None
    ) -> torch.Tensor:
        """Pass tokens x (batch, tokens, hidden) through; the result has the same shape.

        ``cosine`` and ``sine`` are (tokens, head_dim), of the tokens' positions. A cache is written
        to and attended to; without one, attention is causal among the tokens.
        """
        x = x + self._attention(self.attention_norm(x), cosine, sine, cache)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)

    def _attention(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, cache: Cache | None
    ) -> torch.Tensor:
        batch, tokens, _ = x.shape
        query, key, value = (
            part.view(batch, tokens, -1, self.size.head_dim).transpose(1, 2)
            for part in self.qkv(x).split(self.widths, dim=-1)
        )
        query, key = (_rotated(part, cosine, sine) for part in (query, key))
        if cache is not None:
            cache.keys[:, :, cache.position] = key
            cache.values[:, :, cache.position] = value
            key, value = cache.keys, cache.values
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=cache is None, enable_gqa=True
        )
        return self.output(attended.transpose(1, 2).reshape(batch, tokens, -1))


def rotary(tokens: range, head_dim: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine (tokens, head_dim) of Llama 3's rotary embedding, in bf16."""
    exponents = torch.arange(0, head_dim, 2, device=device) / head_dim
    positions = torch.arange(tokens.start, tokens.stop, device=device)
    angles = torch.outer(positions.float(), 500_000.0**-exponents).repeat(1, 2)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def _rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine
