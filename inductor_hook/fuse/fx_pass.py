"""The pass over each graph: kernels start to compile, and fused nodes take the place of others."""

from __future__ import annotations

from torch._inductor import config
from torch.fx import Graph

from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.fuse import engine
from tilecast.inductor_hook.offer import precompile
from tilecast.inductor_hook.settings import asked


class GraphPass:
    """What Inductor applies to each graph behind its own patterns."""

    def apply(self, graph: Graph) -> None:
        """Look ahead, and where fusing is asked for, put fused nodes into the graph.

        Each of these is lowered as what it replaces if that is faster. Whatever goes wrong is one
        warning, and the rest of the graph stays as it is.
        """
        settings = asked()
        if not settings:
            return
        try:
            precompile.start_compiling(graph, settings)
        except Exception as error:
            telemetry.warn_once("starting to compile kernels", error, "kernels compile when they are asked for")
        # Tensor parallelism in the background looks for bare products, after this pass.
        if not settings.fuse or config._micro_pipeline_tp:
            return
        # A fused kernel rounds once, behind all that it does.
        if config.emulate_precision_casts:
            return
        for form in engine.FORMS:
            try:
                engine.rewrite(graph, form)
            except Exception as error:
                telemetry.warn_once(f"looking for {form.name}", error, "none is fused")


PASS = GraphPass()
"""The one pass."""
