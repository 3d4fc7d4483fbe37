"""Our pass over each graph: kernels start to compile, and our nodes take the place of others."""

from __future__ import annotations

from torch._inductor import config
from torch.fx import Graph

from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.fuse import int8_fusion, node
from tilecast.inductor_hook.offer import precompile
from tilecast.inductor_hook.settings import asked

REWRITES = {
    "products of int8": int8_fusion.rewrite,
    "activations": node.rewrite,
}
"""What is looked for, in order; the activation behind a product that reads int8 stays."""


class GraphPass:
    """What Inductor applies to each graph behind its own patterns."""

    def apply(self, graph: Graph) -> None:
        """Look ahead, and where fusing is asked for, put nodes of ours into the graph.

        Each of these is lowered as what it replaces if that is faster. Whatever goes wrong is one
        warning, and the rest of the graph stays as it is.
        """
        settings = asked()
        if not settings:
            return
        try:
            precompile.start_compiling(graph, settings)
        except Exception as error:
            telemetry.warn_once("looking ahead", error, "kernels compile when they are asked for")
        # Tensor parallelism in the background looks for bare products, after us.
        if not settings.fuse or config._micro_pipeline_tp:
            return
        # Ours round once, behind all that is fused.
        if config.emulate_precision_casts:
            return
        for what, rewrite in REWRITES.items():
            try:
                rewrite(graph)
            except Exception as error:
                telemetry.warn_once(f"looking for {what}", error, "none is fused")


PASS = GraphPass()
"""The one pass."""
