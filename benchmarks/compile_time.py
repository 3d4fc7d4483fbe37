"""What max-autotune costs: wall time of ``torch.compile`` and the first call, by GEMM backend.

Every variant has a process of its own, and all take turns on one GPU: problem by problem, in a
rotating order, with fresh Inductor caches each time. Before the first turn each process compiles
another shape with ATen's kernels, which takes what all have in common out of the figures: imports,
the CUDA context and the start of Inductor's own workers. What only tilecast needs is in: its first
GEMM loads the model, and without objects starts the pool that compiles.

``cold`` starts from an empty object cache and fills it as a user's process does; the warm variants
come after it in each turn and find what it compiled.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from pieces import Deadline, Record, ResultFile, span
from variants import (
    NVGEMM,
    Variant,
    competing,
    compiled,
    gemm_calls,
    linear,
    named,
    selection,
    torch_version,
)

OUT = Path(__file__).with_name("results") / "compile_time.json"

COLD = "TILECAST cold k=5"
VARIANTS = (
    Variant("ATEN", "ATEN"),
    Variant("TRITON", "TRITON"),
    Variant(NVGEMM, NVGEMM),
    Variant("ATEN,TRITON", "ATEN,TRITON"),
    Variant(COLD, "TILECAST", 5),
    Variant("TILECAST k=1", "TILECAST", 1),
    Variant("TILECAST k=3", "TILECAST", 3),
    Variant("TILECAST k=5", "TILECAST", 5),
    Variant("ATEN,TRITON,TILECAST k=5", "ATEN,TRITON,TILECAST", 5),
)
PROBLEMS = (
    (16, 6144, 4096),
    (256, 28672, 4096),
    (64, 4096, 14336),
    (4, 10240, 8192),
    (1024, 5120, 5120),
    (4096, 4096, 4096),
    (2, 4096, 4096),
    (2048, 8192, 28672),
)
"""m, n, k. None with one row, which Inductor's max-autotune modes multiply without a GEMM, whatever
the backends."""
NVGEMM_PROBLEMS = PROBLEMS[:3]
"""It takes some ten seconds each."""
MODEL_VARIANTS = ("ATEN,TRITON", COLD, "TILECAST k=5", "ATEN,TRITON,TILECAST k=5")
MODEL_LAYERS = 2
MODEL_TOKENS = 512
WARM_UP = (128, 512, 384)
MODEL = f"{MODEL_LAYERS} layers of Llama 3.1 8B, {MODEL_TOKENS} tokens"
LONGEST_SECONDS = 40.0
"""What a turn may take."""
STOP_SECONDS = 10.0
"""After which a process that does not end is ended."""


@dataclass(frozen=True)
class Job:
    """One thing to compile in every process."""

    name: str
    """What the result calls it."""
    extents: tuple[int, int, int] | None
    """m, n, k of a GEMM; None for the whole model."""
    variants: tuple[str, ...]
    """Names of those that compile it."""


def jobs(variants: Sequence[Variant]) -> list[Job]:
    """Every GEMM, then the model."""
    names = tuple(variant.name for variant in variants)
    found = []
    for extents in PROBLEMS:
        skips = () if extents in NVGEMM_PROBLEMS else (NVGEMM,)
        wanted = tuple(name for name in names if name not in skips)
        found.append(Job("x".join(map(str, extents)), extents, wanted))
    found.append(Job(MODEL, None, tuple(name for name in names if name in MODEL_VARIANTS)))
    return found


def turn(names: Sequence[str], number: int) -> list[str]:
    """The order of one turn: rotated, but cold before all that find its kernels."""
    shift = number % len(names) if names else 0
    return sorted([*names[shift:], *names[:shift]], key=lambda name: name != COLD)


def serve(variant: Variant, pipe: Connection) -> None:
    """Compile what comes through a pipe until it is closed; send seconds and what was selected."""
    import torch
    from torch._inductor.async_compile import AsyncCompile

    torch.cuda.set_device(0)
    _compile_gemm(WARM_UP, Variant("warm-up", "ATEN"))
    AsyncCompile.wait_pool_ready()
    pipe.send("ready")
    with suppress(EOFError):
        while True:
            job = pipe.recv()
            # A backend that cannot is a result, too.
            try:
                answer = _compile_gemm(job.extents, variant) if job.extents else _model(variant)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"[:300]}
            pipe.send(answer)


def _compile_gemm(extents: tuple[int, int, int], variant: Variant) -> dict[str, Any]:
    import torch

    m, n, k = extents
    x, w = (torch.randn(rows, k, dtype=torch.bfloat16, device="cuda") for rows in (m, n))
    seconds, code = _timed(linear, (x, w), variant)
    return {"seconds": seconds, "selected": selection(code)}


def _model(variant: Variant) -> dict[str, Any]:
    import torch
    from decoder import SIZES, DecoderLayer, rotary

    size = SIZES["8B"]
    with torch.device("cuda"):
        layers = [DecoderLayer(size).bfloat16() for _ in range(MODEL_LAYERS)]
        x = torch.randn(1, MODEL_TOKENS, size.hidden, dtype=torch.bfloat16)
    positions = rotary(range(MODEL_TOKENS), size.head_dim, "cuda")
    seconds, code = _timed(_stack, (layers, x, *positions), variant)
    return {"seconds": seconds, "selected": str(gemm_calls(code))}


def _stack(layers: Any, x: Any, cosine: Any, sine: Any) -> Any:
    for layer in layers:
        x = layer(x, cosine, sine)
    return x


def _timed(function: Any, arguments: tuple[Any, ...], variant: Variant) -> tuple[float, str]:
    """Seconds until the first result of a function, with fresh caches; and the code."""
    import torch
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    with fresh_cache(), torch.no_grad(), competing(variant) as sources:
        torch.cuda.synchronize()
        start = time.perf_counter()
        compiled(function, variant)(*arguments)
        torch.cuda.synchronize()
        return time.perf_counter() - start, "\n".join(sources)


def figures(records: Sequence[Record]) -> dict[str, Any]:
    """Sums, medians, ratios and bars for every version of PyTorch."""
    found: dict[str, Any] = {}
    for version in sorted({record["torch"] for record in records}):
        all_ = [record for record in records if record["torch"] == version]
        mine = [record for record in all_ if "seconds" in record]
        gemms = _by_variant([r for r in mine if r["job"] != MODEL])
        first = {r["variant"]: r["seconds"] for r in mine if r["first"]}
        compared = {
            name: {
                "problems": len(seconds),
                "first": first.get(name),
                "sum": sum(seconds.values()),
                "median": statistics.median(seconds.values()),
                "to": {
                    rival: ratio
                    for rival in ("TRITON", NVGEMM, "ATEN,TRITON")
                    if (ratio := ratio_of_sums(seconds, gemms.get(rival, {}))) is not None
                },
            }
            for name, seconds in gemms.items()
        }
        model = {r["variant"]: r["seconds"] for r in mine if r["job"] == MODEL}
        failed = [f"{r['variant']} {r['job']}: {r['error']}" for r in all_ if "error" in r]
        found[version] = {"gemm": compared, "model": model, "failed": failed}
        found[version]["bars"] = bars(compared)
    return found


def ratio_of_sums(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float | None:
    """Seconds of one over seconds of another, each summed over the problems that both compiled.

    The sum is what a user waits for; the first GEMM of the process is in it. Returns None where
    they have no problem in common.
    """
    common = ours.keys() & theirs.keys()
    if not common:
        return None
    return sum(ours[name] for name in common) / sum(theirs[name] for name in common)


def bars(compared: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """What was promised of ratios of sums, and whether it holds; without those not measured."""
    promises = {
        "k=5 warm at most 0.35 of TRITON": ("TILECAST k=5", "TRITON", 0.35),
        "k=5 cold at most TRITON": (COLD, "TRITON", 1.0),
        "k=1 warm at most 0.1 of TRITON": ("TILECAST k=1", "TRITON", 0.1),
        "k=5 warm at most 0.1 of NVGEMM": ("TILECAST k=5", NVGEMM, 0.1),
    }
    return {
        promise: compared[ours]["to"][rival] <= limit
        for promise, (ours, rival, limit) in promises.items()
        if rival in compared.get(ours, {}).get("to", {})
    }


def _by_variant(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for variant in VARIANTS:
        seconds = {r["job"]: r["seconds"] for r in records if r["variant"] == variant.name}
        if seconds:
            found[variant.name] = seconds
    return found


@dataclass(frozen=True)
class Server:
    """A process that compiles as one variant says."""

    process: SpawnProcess
    """The process."""
    pipe: Connection
    """Takes jobs and returns answers."""

    @classmethod
    def start(cls, variant: Variant) -> Server:
        """Start one; it says ``ready`` when it is."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(variant, there))
        process.start()
        there.close()
        return cls(process, here)

    def answer(self, seconds: float) -> Any:
        """What it says next.

        Raises:
            TimeoutError: it says nothing for so long.
            EOFError: it died.
        """
        if not self.pipe.poll(max(seconds, 0)):
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return self.pipe.recv()

    def stop(self) -> None:
        """End it, if it does not end by itself once its pipe is closed."""
        self.process.join(STOP_SECONDS)
        self.process.kill()


def main() -> None:
    """Measure; print progress and, last, one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="added to where it exists")
    parser.add_argument(
        "--jobs",
        type=span,
        default=slice(0, None),
        metavar="START:STOP",
        help="GEMMs, then a model",
    )
    parser.add_argument("--deadline", type=float, default=600, metavar="SECONDS")
    options = parser.parse_args()
    kept = ResultFile(options.out, ("torch", "job", "variant"), figures)
    variants = named(VARIANTS, None, torch_version())
    run = kept.start()
    with tempfile.TemporaryDirectory() as objects:
        os.environ["TILECAST_CACHE"] = objects
        servers = {variant.name: Server.start(variant) for variant in variants}
        try:
            _measure(kept, run, servers, jobs(variants)[options.jobs], options.deadline)
        except TimeoutError as error:
            print(f"stopped: {error}", flush=True)
        finally:
            for server in servers.values():
                server.pipe.close()
            for server in servers.values():
                server.stop()
    kept.end(run)
    print(json.dumps({"out": str(options.out), "figures": kept.read()["figures"]}))


def _measure(
    kept: ResultFile,
    run: int,
    servers: Mapping[str, Server],
    wanted: Sequence[Job],
    seconds: float,
) -> None:
    import torch

    deadline = Deadline(seconds, LONGEST_SECONDS)
    for name, server in servers.items():
        server.answer(deadline.left())
        print(f"{name} ready, {deadline.left():.0f} s left", flush=True)
    alive, fresh = set(servers), set(servers)
    for number, job in enumerate(wanted):
        if not deadline.allows():
            print(f"stopped before {job.name}: {deadline.left():.0f} s left", flush=True)
            return
        start = time.perf_counter()
        for name in turn([name for name in job.variants if name in alive], number):
            try:
                servers[name].pipe.send(job)
                answer = servers[name].answer(deadline.left())
            except (EOFError, BrokenPipeError):
                answer = {"error": "its process died"}
                alive.discard(name)
            record = {"torch": torch.__version__, "job": job.name, "variant": name, "run": run}
            kept.add({**record, "first": name in fresh, **answer})
            fresh.discard(name)
            print(f"{job.name} {name}: {answer}", flush=True)
        deadline.spent(time.perf_counter() - start)


if __name__ == "__main__":
    main()
