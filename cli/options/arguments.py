"""Options that several commands share; `tilecast.cli.options.resolve` interprets them."""

from __future__ import annotations

import argparse

from tilecast.cli.options.argtypes import (
    AUTO,
    devices,
    extents,
    parallel,
    path,
    power,
    reads,
    seconds,
)
from tilecast.data_collection.gpu.gpu_model import hardware_of, short_name, visible_gpu_names
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS, Hardware, known_gpu
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands

DEFAULT_POWER = "robust"


def add_gpu(parser: argparse.ArgumentParser, *, model: bool = False) -> None:
    """Add --gpu; ``model`` says whether the command also has --model."""
    first = "that of --model, or this machine's" if model else "this machine's"
    about = f"GPU (default: {first}, or else {GPUS[0].name})"
    parser.add_argument("--gpu", type=reads(known_or_here), help=about)


def known_or_here(name: str) -> Hardware:
    """The GPU of a name: one that tilecast describes, or one of this machine."""
    if found := known_gpu(name):
        return found
    here = visible_gpu_names()
    for device, reported in enumerate(here):
        if name in (reported, short_name(reported)):
            return hardware_of(device)
    allowed = dict.fromkeys([*(gpu.name for gpu in GPUS), *map(short_name, here)])
    raise TilecastError(
        f"gpu {name!r} is not known; allowed: {', '.join(allowed)}, or on the machine that has it "
        "what its driver calls it"
    )


def add_operands(parser: argparse.ArgumentParser, *, model: bool = False) -> None:
    """Add --operands and --gpu."""
    parser.add_argument(
        "--operands",
        type=reads(GemmOperands.parse),
        default=LINEAR_BF16.text,
        metavar="TEXT",
        help="dtype of A and B, majors of A, B and out, each r or c, and > with the dtype of out "
        f"where it is another one, as fp16:rcr>fp32 (default: {LINEAR_BF16}, torch.nn.Linear)",
    )
    add_gpu(parser, model=model)


def add_problem(parser: argparse.ArgumentParser, *, model: bool = False) -> None:
    """Add one problem, which may be left out, and everything of `add_operands`."""
    about = "a problem, such as 16x6144x4096, or BATCHxMxNxK"
    parser.add_argument("problem", nargs="?", metavar="MxNxK", help=about)
    add_operands(parser, model=model)


def add_problems(parser: argparse.ArgumentParser) -> None:
    """Add any number of problems, and everything of `add_own_problems` and `add_operands`."""
    about = "problems, such as 16x6144x4096, or BATCHxMxNxK"
    parser.add_argument("typed", nargs="*", metavar="MxNxK", help=about)
    about = "only kernels that give a row the same bits in every batch, as TILECAST_INVARIANT=1"
    parser.add_argument("--invariant", action="store_true", help=about)
    add_own_problems(parser)
    add_operands(parser, model=True)


def add_suites(parser: argparse.ArgumentParser) -> None:
    """Add the options that name suites of problems, and everything of `add_own_problems`."""
    about = "suite of problems; repeatable (default: training, if no file of problems is named)"
    parser.add_argument("--suite", action="append", metavar="NAME", help=about)
    add_own_problems(parser)


def add_own_problems(parser: argparse.ArgumentParser) -> None:
    """Add the options that name files of problems, or models whose layers are problems."""
    files = {"action": "append", "type": path, "metavar": "FILE", "default": []}
    about = "your own problems: CSV, JSON or Parquet with m, n, k, batch, operands; repeatable"
    parser.add_argument("--problems", help=about, **files)
    about = "a Hugging Face config.json, whose linear layers are the problems; repeatable"
    parser.add_argument("--hf-config", help=about, **files)
    about = "tensor-parallel degrees of these (default: 1)"
    parser.add_argument("--tp", type=extents, metavar="LIST", help=about)
    about = "rows of their inputs (default: 1,16,256,4096)"
    parser.add_argument("--rows", type=extents, metavar="LIST", help=about)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --model and --power, which choose what ranks."""
    parser.add_argument("--model", type=path, help="folder of a model (default: the shipped one)")
    about = "burst, sustained, or robust for the smallest worst case of both (default: robust)"
    parser.add_argument("--power", type=power, default=DEFAULT_POWER, help=about)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add --data."""
    parser.add_argument("--data", type=path, help="data set (default: the shipped one)")


def add_further_data(parser: argparse.ArgumentParser, about: str) -> None:
    """Add --add, described by ``about``, and --gpu, for `load_measurements.read_measurements`."""
    parser.add_argument(
        "--add", action="append", type=path, metavar="FILE", default=[], help=f"{about}; repeatable"
    )
    about = "GPU whose shipped data set it is without --data (default: this machine's, or that of "
    about += f"--add, or else {GPUS[0].name})"
    parser.add_argument("--gpu", type=reads(known_or_here), help=about)


def add_collection(parser: argparse.ArgumentParser, cards: str = "0") -> None:
    """Add the store, the GPUs and the time of a collection; ``cards`` are the default GPUs."""
    parser.add_argument("--store", type=path, required=True, help="SQLite file; made when absent")
    about = f"CUDA devices of this host, as 0,1 (default: {cards})"
    parser.add_argument("--devices", type=devices, help=about)
    about = "measure on this host, or on all GPUs of a Ray cluster, whose cores compile"
    engines = ("local", "ray")
    parser.add_argument(
        "--engine", choices=engines, default="local", help=f"{about} (default: local)"
    )
    about = "Ray cluster, as HOST:PORT (default: auto, the one that this host is in)"
    parser.add_argument("--address", help=about)
    about = "time, such as 90, 20m or 2h, after which nothing further is compiled or measured"
    parser.add_argument("--budget", type=seconds, help=about)


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add --cache."""
    parser.add_argument("--cache", type=path, help="object cache (default: that of this user)")


def add_compiling(parser: argparse.ArgumentParser) -> None:
    """Add --cache and --workers."""
    add_cache(parser)
    about = "processes that compile on this host (default: one per core that measures no GPU)"
    parser.add_argument("--workers", type=parallel, metavar="N", help=about)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json; where it is not given, nothing is set, so that a subcommand may have it too."""
    about = "print one JSON document instead of tables"
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=about)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add --jobs."""
    about = "fits that run side by side (default: one per core)"
    parser.add_argument("--jobs", type=parallel, default=AUTO, metavar="N", help=about)
