"""How fast the pool compiles, and how fast a warm object cache loads.

Compiles configs spread over the space into a fresh cache with one process per core. On a host with
a GPU it then compiles up to ``--load`` of them and loads these in a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import result

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import LINEAR_BF16
from tilecast.kernels.builder import compile_all
from tilecast.kernels.cutlass_sm90.space import valid_configs
from tilecast.kernels.launch import load_kernel
from tilecast.kernels.object_cache import ObjectCache
from tilecast.kernels.spec import KernelSpec


def specs(count: int) -> list[KernelSpec]:
    """Kernels spread evenly over the space.

    Raises:
        TilecastError: the space does not hold so many.
    """
    space = valid_configs(LINEAR_BF16, hardware("H200"))
    if not 1 <= count <= len(space):
        raise TilecastError(f"{count} configs are not to be had; allowed: 1 to {len(space)}")
    return [KernelSpec(space[i * len(space) // count], LINEAR_BF16) for i in range(count)]


def compile_into(cache: ObjectCache, wanted: list[KernelSpec], workers: int) -> dict[str, object]:
    """Compile what the cache lacks and report the pace."""
    start = time.perf_counter()
    results = [done for done in compile_all(wanted, cache, workers) if done.seconds]
    spent = time.perf_counter() - start
    return {
        "configs": len(results),
        "failed": sum(done.error is not None for done in results),
        "workers": workers,
        "seconds": spent,
        "configs_per_second": len(results) / spent,
        "median_seconds_per_config": result.quantile([done.seconds for done in results], 0.5),
    }


def load(cache: ObjectCache, wanted: list[KernelSpec]) -> dict[str, object]:
    """Load kernels into this process, which has loaded none yet."""
    import cutlass.cute  # noqa: F401
    import torch

    torch.zeros(1, device="cuda")  # the context is not what is timed
    start = time.perf_counter()
    for spec in wanted:
        load_kernel(spec, cache)
    return {"objects": len(wanted), "seconds": time.perf_counter() - start}


def _load_in_fresh_process(root: str, count: int) -> dict[str, object]:
    command = [sys.executable, __file__, "--load", str(count), "--load-from", root]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--configs", type=int, default=320, help="how many are compiled for the pace"
    )
    parser.add_argument("--load", type=int, default=500, help="how many objects are loaded")
    parser.add_argument("--load-from", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    result.add_out(parser)
    options = parser.parse_args()
    if options.load_from:
        print(json.dumps(load(ObjectCache(Path(options.load_from)), specs(options.load))))
        return

    with tempfile.TemporaryDirectory() as root:
        cache = ObjectCache(Path(root))
        figures: dict[str, object] = {
            "compile": compile_into(cache, specs(options.configs), options.workers)
        }
        print(figures["compile"], flush=True)
        import torch

        if torch.cuda.is_available():
            for _ in compile_all(specs(options.load), cache, options.workers):
                pass
            figures["load"] = _load_in_fresh_process(root, options.load)
        else:
            print("no CUDA GPU: loading is not measured")
            figures["load"] = None
    result.finish(figures, options.out)


if __name__ == "__main__":
    main()
