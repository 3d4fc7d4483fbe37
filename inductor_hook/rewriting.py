"""The pass of ours over each graph: one node in place of what a kernel of ours may do at once."""

from __future__ import annotations

from typing import Any

from torch._inductor import config
from torch.fx import Graph

from tilecast.inductor_hook import fusion, quantized_fusion, report, residual_fusion
from tilecast.inductor_hook.settings import asked

REWRITES = {
    "products of int8": quantized_fusion.rewrite,
    "activations": fusion.rewrite,
    "residuals": residual_fusion.rewrite,
}
"""What is looked for, in order; the activation behind a product that reads int8 stays."""


class FusionPass:
    """What Inductor applies to each graph behind its own patterns."""

    def apply(self, graph: Graph) -> None:
        """Put nodes of ours into a graph; each is lowered as what it replaces if that is faster.

        Whatever goes wrong is one warning, and the rest of the graph stays as it is.
        """
        # Tensor parallelism in the background looks for bare products, after us.
        if not asked() or config._micro_pipeline_tp:
            return
        for what, rewrite in REWRITES.items():
            try:
                rewrite(graph)
            except Exception as error:
                report.warn_once(f"looking for {what}", error, "none is fused")


PASS = FusionPass()
"""The one pass."""


def follow(passes: list[Any], wanted: bool) -> None:
    """Have Inductor apply our pass behind ``passes``, or no longer.

    Not through its ``post_grad_custom_post_pass``: that place is the user's.
    """
    if wanted != (PASS in passes):
        (passes.append if wanted else passes.remove)(PASS)
