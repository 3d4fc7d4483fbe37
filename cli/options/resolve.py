"""What is made from the options that several commands share, and what is refused at once."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilecast.cli.options.argtypes import AUTO, parallel
from tilecast.cli.options.options import DEFAULT_POWER, EXTENTS
from tilecast.cli.output.output import say
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import destination, unwritable
from tilecast.heuristics.hardware import GPUS, Hardware
from tilecast.heuristics.problem import GemmProblem

if TYPE_CHECKING:
    from tilecast.inductor_hook.settings import Settings
    from tilecast.models.runtime.learned import LearnedHeuristic

_TP = (1,)
_ROWS = (1, 16, 256, 4096)
_KEPT = ("source", "store", "data", "model", "problems", "hf_config")
"""Options that name what must stay as it is, or grows."""


def gpu(options: argparse.Namespace) -> Hardware:
    """The GPU that the options name, that the model is for which they name, or that is here.

    Raises:
        TilecastError: the model is refused.
    """
    return options.gpu or gpu_of(getattr(options, "model", None))


def gpu_of(folder: Path | None) -> Hardware:
    """The GPU that a model is for; without one that which is here, or the first that is known.

    Raises:
        TilecastError: the model is refused.
    """
    if folder is None:
        from tilecast.data_collection.gpu.gpu_model import first_here

        return first_here() or GPUS[0]
    from tilecast.models.runtime.manifest import model_hardware

    return model_hardware(folder)


def problem_if_any(options: argparse.Namespace) -> GemmProblem | None:
    """The problem that the options describe; None when no extent is given.

    Raises:
        TilecastError: some extents are given and others not, or it breaks the 16-byte rule.
    """
    missing = [name for name in EXTENTS if getattr(options, name) is None]
    if len(missing) == len(EXTENTS) and options.batch == 1:
        return None
    if missing:
        raise TilecastError(
            f"--{missing[0]} is missing; allowed: all of --m, --n and --k, or none of them"
        )
    return GemmProblem(options.m, options.n, options.k, options.batch, options.operands)


def own_problems(options: argparse.Namespace) -> tuple[GemmProblem, ...]:
    """The distinct problems of one's own that the options name, in their order; none without any.

    What of a model is left out is told on standard error.

    Raises:
        TilecastError: a file cannot be read, or a row of it or a model's configuration is none.
    """
    if not names_own_problems(options):
        return ()
    from tilecast.data_collection.problems.model_files import left_out, model_problems
    from tilecast.data_collection.problems.problem_files import read_problems

    found = [problem for file in options.problems for problem in read_problems(file)]
    for file in options.hf_config:
        found += model_problems(file, options.tp or _TP, options.rows or _ROWS)
        if missing := left_out(file, options.tp or _TP):
            say(f"left out of {file}: {'; '.join(missing)}")
    return tuple(dict.fromkeys(found))


def asked_problems(options: argparse.Namespace) -> tuple[GemmProblem, ...]:
    """The distinct problems of the suites that the options name and of one's own.

    Raises:
        TilecastError: a suite is not known, or as `own_problems`.
    """
    from tilecast.data_collection.problems.suites import problems

    check_own_problems(options)
    own = own_problems(options)
    suites = options.suite or ([] if own else ["training"])
    return tuple(dict.fromkeys([*problems(suites), *own]))


def ranked(
    heuristic: LearnedHeuristic, problems: Iterable[GemmProblem], *, alone: bool = False
) -> tuple[GemmProblem, ...]:
    """Those of some problems that a model ranks; the others are told on standard error.

    What `TILECAST_RECORD` wrote may hold operands that no model knows.

    Args:
        heuristic: the model.
        problems: of any operands.
        alone: whether it has to decide without a benchmark, which it does for fewer operands.
    """
    from tilecast.models.runtime.known_operands import decides_for

    def takes(problem: GemmProblem) -> bool:
        known = not alone or decides_for(heuristic.artifact.measured, problem.operands)
        return known and heuristic.ranks(problem)

    problems = tuple(problems)
    others = Counter(p.operands.text for p in problems if not takes(p))
    if others:
        count = others.total()
        say(
            f"left out: {count} problem{'s' * (count > 1)} of {', '.join(others)}, which the model "
            "has not seen"
        )
    return tuple(filter(takes, problems))


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


def check_ranks(options: argparse.Namespace, ranks: bool, allowed: str) -> None:
    """See that nothing chooses what ranks where nothing does.

    Args:
        options: with those of `tilecast.cli.options.options.add_model`.
        ranks: whether a model is asked.
        allowed: beside which options they are.

    Raises:
        TilecastError: a model or a power is named in vain.
    """
    if not ranks and (options.model or options.power != DEFAULT_POWER):
        raise TilecastError(f"--model and --power choose what ranks; allowed: with {allowed}")


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
    return AUTO if options.address is None else options.address


def workers(options: argparse.Namespace) -> int:
    """How many processes work on this host, where nothing is measured meanwhile."""
    return options.workers or parallel(AUTO)


def compilers(options: argparse.Namespace, devices: Sequence[int]) -> int:
    """How many processes compile beside what measures: that spins on a core for each device."""
    return options.workers or max(1, parallel(AUTO) - len(devices))


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
        TilecastError: it cannot, or is no file, such as a folder or a device. Nothing was made.
    """
    check_writable(destination(file).parent)


def check_apart(options: argparse.Namespace, *written: Path | None) -> None:
    """See, before the work, that nothing written replaces what is read or kept, or another output.

    Args:
        options: which name the files that are read, and the store.
        written: files and folders; None is not asked for.

    Raises:
        TilecastError: something would.
    """
    taken = _kept(options)
    for path in filter(None, written):
        if other := next((one for one in taken if _same_file(one, path)), None):
            raise TilecastError(
                f"cannot write {path}: this command reads, keeps or writes {other} there; allowed: "
                "a file of its own; name another one"
            )
        taken.append(path)


def check_choices(file: Path) -> None:
    """See, before the work, that choices can be written to a file.

    Raises:
        TilecastError: they cannot, or its name does not say how.
    """
    from tilecast.reporting.choices import check_kind

    check_kind(file)
    check_file(file)


def _kept(options: argparse.Namespace) -> list[Path]:
    """What the options name that is read, or grows; of folders also what a model's may hold."""
    from tilecast.cli.options.load_measurements import DATA
    from tilecast.models.runtime.manifest import MANIFEST

    found: list[Path] = []
    for name in _KEPT:
        named = getattr(options, name, None) or []
        found += [named] if isinstance(named, Path) else named
    return [*found, *(folder / name for folder in found for name in (MANIFEST, DATA))]


def _same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, which need not be there."""
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _lowest(folder: Path) -> Path:
    """The lowest part of a path that is there, whatever it is."""
    try:
        folder.lstat()
    except FileNotFoundError:
        return _lowest(folder.parent)
    return folder
