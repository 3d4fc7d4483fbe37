"""Options that several commands share, how their values are read, and what is made from them."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import unwritable
from tilecast.heuristics.hardware import GPUS, Hardware, hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import MAX_EXTENT, GemmProblem

if TYPE_CHECKING:
    from tilecast.inductor_hook.settings import Settings

DEFAULT_POWER = "robust"
_EXTENTS = {"m": "rows of A and out", "n": "columns of B and out", "k": "columns of A, rows of B"}
_AUTO = "auto"
_MOST = 2**31 - 1
"""The largest number that any option takes."""
_MOST_PARALLEL = 1024
_SIZE = re.compile("([0-9]{1,15})([KMGT]?)")
_LAST_DEVICE = 63
_TP = (1,)
_ROWS = (1, 16, 256, 4096)


# ---- how values are read


def reads(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """What an option's ``type`` may be: argparse shows the words of no other exception."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except TilecastError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def integer(least: int, most: int = _MOST, *, also: str = "") -> Callable[[str], int]:
    """Reads an integer from ``least`` to ``most``; ``also`` says what else is allowed."""

    def read(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = None
        if found is None or not least <= found <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is out of range; allowed: {also}an integer from {least} to {most}"
            )
        return found

    return read


def extents(text: str) -> tuple[int, ...]:
    """Read a list such as ``1,16``; each number once."""
    read = integer(1, MAX_EXTENT, also="numbers such as 1 or 1,16, each ")
    return tuple(dict.fromkeys(map(read, text.split(","))))


def devices(text: str) -> tuple[int, ...]:
    """Read a list such as ``0,1``; each device once."""
    read = integer(0, _LAST_DEVICE, also="numbers such as 0 or 0,1, each ")
    return tuple(dict.fromkeys(map(read, text.split(","))))


def top(text: str) -> int | str:
    """Read how many candidates are wanted; ``auto`` leaves it to the model."""
    return text if text == _AUTO else integer(1, also="auto, or ")(text)


def size(text: str) -> int:
    """Read how many bytes; K, M, G and T are 1024 times one another."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; allowed: bytes, or K, M, G or T of them, such as 500M or 2G"
        )
    return int(found[1]) << 10 * " KMGT".index(found[2] or " ")


def parallel(text: str) -> int:
    """Read how much shall run side by side; ``auto`` is one per core that this process may use."""
    if text != _AUTO:
        return integer(1, _MOST_PARALLEL, also="auto, or ")(text)
    from joblib.externals.loky import cpu_count

    return cpu_count()


def power(text: str) -> str:
    """Read the power regime to aim at."""
    from tilecast.models.labels import check_power

    return reads(check_power)(text)


def path(text: str) -> Path:
    """Read the name of a file or folder; none would mean the folder that one is in."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no path; allowed: the name of a file or folder")
    return Path(text)


# ---- options


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the GPU, which `gpu` reads."""
    about = f"GPU (default: that of --model, or else {GPUS[0].name})"
    parser.add_argument("--gpu", type=reads(_known_or_here), help=about)


def _known_or_here(name: str) -> Hardware:
    """A GPU by its name: one that tilecast describes, or one of this machine."""
    try:
        return hardware(name)
    except TilecastError:
        from tilecast.cli.checks import visible_gpus
        from tilecast.data_collection.gpu_model import gpu_here, short_name

        for device, reported in enumerate(visible_gpus()):
            if name in (reported, short_name(reported)):
                return gpu_here(device)
        raise


def add_operands(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how operands are stored, and the GPU."""
    parser.add_argument(
        "--operands",
        type=reads(GemmOperands.parse),
        default=LINEAR_BF16.text,
        metavar="TEXT",
        help="dtype of A and B, majors of A, B and out, each r or c, and > with the dtype of out "
        f"where it is another one, as fp16:rcr>fp32 (default: {LINEAR_BF16}, torch.nn.Linear)",
    )
    add_gpu(parser)


def add_problem(parser: argparse.ArgumentParser) -> None:
    """Add the options of one problem: extents, and everything of `add_operands`."""
    extent, more = integer(1, MAX_EXTENT), "products of the same extents (default: 1)"
    for name, about in _EXTENTS.items():
        parser.add_argument(f"--{name}", type=extent, help=about)
    parser.add_argument("--batch", type=extent, default=1, help=more)
    add_operands(parser)


def add_suites(parser: argparse.ArgumentParser) -> None:
    """Add the options that name suites of problems, and everything of `add_own_problems`."""
    about = "suite of problems; repeatable (default: training, without problems of one's own)"
    parser.add_argument("--suite", action="append", metavar="NAME", help=about)
    add_own_problems(parser)


def add_own_problems(parser: argparse.ArgumentParser) -> None:
    """Add the options that name problems of one's own, in files or as layers of a model."""
    files = {"action": "append", "type": path, "metavar": "FILE", "default": []}
    about = "problems of one's own: CSV, JSON or Parquet with m, n, k, batch, operands; repeatable"
    parser.add_argument("--problems", help=about, **files)
    about = "a Hugging Face config.json, whose linear layers are meant; repeatable"
    parser.add_argument("--hf-config", help=about, **files)
    about = "tensor-parallel degrees of these (default: 1)"
    parser.add_argument("--tp", type=extents, metavar="LIST", help=about)
    about = "rows of their inputs (default: 1,16,256,4096)"
    parser.add_argument("--rows", type=extents, metavar="LIST", help=about)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose what ranks."""
    parser.add_argument("--model", type=path, help="folder of a model (default: the shipped one)")
    about = "burst, sustained, or robust for the smallest worst case of both (default: robust)"
    parser.add_argument("--power", type=power, default=DEFAULT_POWER, help=about)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the data set."""
    parser.add_argument("--data", type=path, help="data set (default: the shipped one)")


def add_further_data(parser: argparse.ArgumentParser, about: str) -> None:
    """Add the option that names files beside the data set, and says what they are for."""
    parser.add_argument(
        "--add", action="append", type=path, metavar="FILE", default=[], help=f"{about}; repeatable"
    )


def add_collection(parser: argparse.ArgumentParser, cards: str = "0") -> None:
    """Add the options that say where measurements go, and on which cards for how long.

    Args:
        parser: of the command.
        cards: what the help says of the devices where none are named.
    """
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
    about = "seconds after which nothing further is compiled or measured"
    parser.add_argument("--budget", type=integer(1), help=about)


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the object cache."""
    parser.add_argument("--cache", type=path, help="object cache (default: that of this user)")


def add_compiling(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where kernels are compiled to, and by how many processes."""
    add_cache(parser)
    about = "processes that compile on this host (default: one per core)"
    parser.add_argument("--workers", type=parallel, metavar="N", help=about)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option that every command has; where it is not given, nothing is set."""
    about = "print one JSON document instead of tables"
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=about)


def add_parallel(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    """Add an option that says how much runs side by side."""
    about = f"{what} (default: one per core)"
    parser.add_argument(name, type=parallel, default=_AUTO, metavar="N", help=about)


# ---- what is made from them


def gpu(options: argparse.Namespace) -> Hardware:
    """The GPU that the options name, or that the model is for which they name.

    Raises:
        TilecastError: the model is refused.
    """
    if options.gpu is not None:
        return options.gpu
    folder = getattr(options, "model", None)
    if folder is None:
        return GPUS[0]
    from tilecast.models.manifest import model_hardware

    return model_hardware(folder)


def problem_if_any(options: argparse.Namespace) -> GemmProblem | None:
    """The problem that the options describe; None when no extent is given.

    Raises:
        TilecastError: some extents are given and others not, or it breaks the 16-byte rule.
    """
    missing = [name for name in _EXTENTS if getattr(options, name) is None]
    if len(missing) == len(_EXTENTS) and options.batch == 1:
        return None
    if missing:
        raise TilecastError(
            f"--{missing[0]} is missing; allowed: all of --m, --n and --k, or none of them"
        )
    return GemmProblem(options.m, options.n, options.k, options.batch, options.operands)


def own_problems(options: argparse.Namespace) -> tuple[GemmProblem, ...]:
    """The distinct problems of one's own that the options name, in their order; none without any.

    Raises:
        TilecastError: a file cannot be read, or a row of it or a model's configuration is none.
    """
    if not names_own_problems(options):
        return ()
    from tilecast.data_collection.model_files import model_problems
    from tilecast.data_collection.problem_files import read_problems

    found = [problem for file in options.problems for problem in read_problems(file)]
    for file in options.hf_config:
        found += model_problems(file, options.tp or _TP, options.rows or _ROWS)
    return tuple(dict.fromkeys(found))


def asked_problems(options: argparse.Namespace) -> tuple[GemmProblem, ...]:
    """The distinct problems of the suites that the options name and of one's own.

    Raises:
        TilecastError: a suite is not known, or as `own_problems`.
    """
    from tilecast.data_collection.suites import problems

    check_own_problems(options)
    own = own_problems(options)
    suites = options.suite or ([] if own else ["training"])
    return tuple(dict.fromkeys([*problems(suites), *own]))


def names_own_problems(options: argparse.Namespace) -> bool:
    """Whether the options name problems of one's own."""
    return bool(options.problems or options.hf_config)


def check_own_problems(options: argparse.Namespace) -> None:
    """See that what is said of a model is not said without one.

    Raises:
        TilecastError: it is.
    """
    if not options.hf_config and (options.tp or options.rows):
        raise TilecastError("--tp and --rows shape a model's layers; allowed: with --hf-config")


def cluster(options: argparse.Namespace) -> str | None:
    """The address of the Ray cluster that the options name; None for this host.

    Raises:
        TilecastError: there is an address and another engine, or what is of this host and a
            cluster.
    """
    if options.engine != "ray":
        if options.address is not None:
            raise TilecastError("--address names a Ray cluster; allowed: with --engine ray")
        return None
    for name in ("devices", "workers"):
        if getattr(options, name) is not None:
            raise TilecastError(
                f"--{name} is of this host; allowed: without --engine ray, which takes all GPUs "
                "and cores of its cluster"
            )
    return _AUTO if options.address is None else options.address


def workers(options: argparse.Namespace) -> int:
    """How many processes compile on this host."""
    return options.workers or parallel(_AUTO)


def data(options: argparse.Namespace) -> Path:
    """The data set that the options name.

    Raises:
        TilecastError: none is named and none is shipped.
    """
    from tilecast.data_collection.dataset import shipped_data

    found = options.data or shipped_data(GPUS[0])
    if found is None:
        raise TilecastError(
            "no data set is shipped; allowed: --data with what `tilecast collect` exported"
        )
    return found


def settings(options: argparse.Namespace) -> Settings:
    """What `install` would be given, so that the hook finds what it asks for.

    Raises:
        TilecastError: ``-k`` is more than the hook allows, or the model cannot be read.
    """
    from tilecast.inductor_hook.settings import Settings

    return Settings(options.top, str(options.model) if options.model else None, options.power)


def check_writable(folder: Path) -> None:
    """See, before the work and not after it, that a folder can be made and written to.

    Raises:
        TilecastError: it cannot. Nothing was made.
    """
    try:
        with tempfile.TemporaryFile(dir=_lowest(folder)) as file:
            # Full disks still make empty files.
            file.write(bytes(4096))
    except OSError as error:
        raise unwritable(folder, error) from error


def check_file(file: Path) -> None:
    """See, before the work and not after it, that a file can be written.

    Raises:
        TilecastError: it cannot, or is a folder. Nothing was made.
    """
    if file.is_dir():
        raise TilecastError(f"cannot write {file} (a folder); allowed: a file")
    check_writable(file.parent)


def check_choices(file: Path) -> None:
    """See, before the work, that choices can be written to a file.

    Raises:
        TilecastError: they cannot, or its name does not say how.
    """
    from tilecast.reporting.choices import check_kind

    check_kind(file)
    check_file(file)


def _lowest(folder: Path) -> Path:
    """The lowest part of a path that is there, whatever it is."""
    try:
        folder.lstat()
    except FileNotFoundError:
        return _lowest(folder.parent)
    return folder
