"""What does max-autotune cost where one graph has several products, as a model's has?

``python benchmarks/compile_graph.py`` on one GPU: the GEMMs of ``compile_time.py`` in one graph,
compiled once by each of some variants, in a process of its own that has compiled none of them.
Where neither the cache nor the wheel has kernels of ours, those of all products start to compile
before the first is lowered.
"""

from compile_time import ALL, COLD, PROBLEMS, SETTINGS, Job, figures, measuring
from runner import Sweep

NAME = f"{len(PROBLEMS)} GEMMs"
VARIANTS = ["ATEN,TRITON", COLD, f"{ALL} cold k=5", "TILECAST k=5", f"{ALL} k=5"]
GRAPH = Job(NAME, PROBLEMS, VARIANTS)
SWEEP = Sweep("job", {NAME: GRAPH}, measuring, figures, 120.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
