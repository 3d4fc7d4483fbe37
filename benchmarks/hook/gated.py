"""What does a gate in a tilecast kernel gain over one in a Triton kernel behind the product?

``python benchmarks/hook/gated.py`` on one GPU. Of MLP layers with merged weights, the product with
both halves and ``silu(gate) * up`` are measured as `fused_activations` measures activations: with
ATEN,TRITON, and with tilecast beside both, fused or not. Prefill comes first.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from fused_activations import COLD_BYTES, Layer, figures, measuring
from runner import Sweep
from steps import ROUNDS

LAYERS = {
    "Phi-3 mini": Layer(2 * 8192, 3072, "silu-mul", bias=False),
    "GLM-4 9B": Layer(2 * 13696, 4096, "silu-mul", bias=False),
}
ROWS = (4096, 1024, 256, 16)
CASES = {f"{name} {rows}": (LAYERS[name], rows) for rows in ROWS for name in LAYERS}
SETTINGS = {
    "rounds": ROUNDS,
    "cold_bytes": COLD_BYTES,
    "layers": {name: one._asdict() for name, one in LAYERS.items()},
}
SWEEP = Sweep("case", CASES, measuring, figures, 30.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
