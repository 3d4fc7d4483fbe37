"""The feed-forward layer of a Llama, compiled with tilecast's kernels among the choices.

``python examples/llama_layer.py`` on a Hopper GPU. Elsewhere PyTorch's kernels run alone.
"""

import torch
from torch._dynamo.utils import counters
from torch.nn import functional as F

from tilecast.inductor_hook import install


def layer(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """(rows, width) by weights (hidden, width) twice and (width, hidden): (rows, width)."""
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


device = "cuda" if torch.cuda.is_available() else "cpu"
rows, width, hidden = (512, 4096, 14336) if device == "cuda" else (16, 64, 128)
x = torch.randn(rows, width, device=device, dtype=torch.bfloat16)
shapes = (hidden, width), (hidden, width), (width, hidden)
weights = [torch.randn(shape, device=device, dtype=x.dtype) / 50 for shape in shapes]

install()  # or TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS=ATEN,TRITON,TILECAST, and no import
# Without Inductor's cache, because a graph that is found there counts nothing.
compiled = torch.compile(layer, options={"max_autotune_gemm": True, "fx_graph_cache": False})
with torch.no_grad():
    torch.testing.assert_close(compiled(x, *weights), layer(x, *weights), rtol=0.05, atol=0.1)
print("tilecast:", dict(counters["tilecast"]))
