"""Train the models on a data set and say how they do on families that they have not seen."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilecast.cli.commands.evaluate import SHOWN_K
from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.options.load_measurements import files_line, read_measurements
from tilecast.cli.output.output import Answer
from tilecast.reporting.figure_columns import REGRET, REGRET_COLUMNS
from tilecast.reporting.table import Table

if TYPE_CHECKING:
    from tilecast.data_collection.dataset.autotuned import Usable

NAME = "train"
HELP = "train a model and write its artifact"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    shared.add_data(parser)
    about = (
        "a further data set, of the same GPU or of another one, from which so much is learned that "
        "few problems of a new GPU are enough; or what Inductor's autotuner measured "
        "(TILECAST_LEARN, .jsonl)"
    )
    shared.add_further_data(parser, about)
    about = "folder that the artifact goes to"
    parser.add_argument("--out", type=argtypes.path, required=True, help=about)
    about = "of the models' sampling (default: 0)"
    parser.add_argument("--seed", type=argtypes.integer(0), default=0, help=about)
    shared.add_parallel(parser, "--jobs", "fits that run side by side")


def run(options: argparse.Namespace) -> Answer:
    """Cross-validate, fit on everything, write the artifact."""
    resolve.check_writable(options.out)

    from tilecast.data_collection.dataset.autotuned import read_autotuned
    from tilecast.models.learning.training import train
    from tilecast.models.runtime.artifact import save

    start = time.perf_counter()
    files, autotuned = _kinds(options.add)
    measured, files = read_measurements(options, files)
    usable = read_autotuned(autotuned, measured.gpu)
    artifact = train(measured, usable.found, seed=options.seed, jobs=options.jobs)
    save(artifact, options.out)
    seconds = time.perf_counter() - start
    facts: Mapping[str, Any] = artifact.facts
    used = facts["dataset"]
    document = {
        "model": str(options.out),
        "data": [*map(str, files)],
        "name": artifact.name,
        "seconds": seconds,
        "left_out": usable.left_out,
        **facts,
    }
    summary = (
        f"{artifact.name} trained in {seconds:.0f} s on {used['problems']} problems of "
        f"{used['families']} families, written to {options.out}"
    )
    learned = [files_line(files), *_elsewhere(facts), *_autotuned(facts, usable)]
    return Answer(document, [_table(facts), *learned, summary])


def _kinds(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The data sets among some files, and what the hook wrote down, by their names."""
    from tilecast.data_collection.dataset.autotuned import SUFFIX

    found: tuple[list[Path], list[Path]] = [], []
    for path in files:
        found[path.suffix.lower() == SUFFIX].append(path)
    return found


def _elsewhere(facts: Mapping[str, Any]) -> list[str]:
    """What was learned from other GPUs, in a line."""
    if "elsewhere" not in facts:
        return []
    problems, gpus = facts["elsewhere"]["problems"], ", ".join(facts["elsewhere"]["gpus"])
    return [f"Learned from {problems} problems of {gpus}, too"]


def _autotuned(facts: Mapping[str, Any], usable: Usable) -> list[str]:
    """What was learned from autotuning, in a line, and one of what could not be."""
    lines = []
    if usable.found:
        told = facts.get("autotuned", {"problems": 0, "times": 0})
        shown = "{times} times of {problems} problems that no collector measured".format(**told)
        lines.append(f"Learned from autotuning: {shown}")
    if usable.left_out:
        reasons = ", ".join(f"{why} ({count})" for why, count in usable.left_out.items())
        lines.append(f"Left out: lines {reasons}")
    return lines


def _table(facts: Mapping[str, Any]) -> Table:
    """Regret of each model by power, with the noise floor below."""
    rows = [
        (model, power, k, *(metrics[f"regret@{k}"][name] for name in REGRET))
        for model, powers in facts["held_out"].items()
        for power, metrics in powers.items()
        for k in SHOWN_K
    ]
    rows += [
        ("noise floor", power, None, floor["geomean"], floor["p95"], floor["max"], None)
        for power, floor in facts["noise_floor"].items()
    ]
    columns = {"model": "", "power": "", "k": "d"} | REGRET_COLUMNS
    return Table("Regret at k kernels on one fold of families, held out", columns, rows)
