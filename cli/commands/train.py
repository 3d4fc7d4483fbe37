"""Train the models on a data set and say how they do on (n, k) families they have not seen."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tilecast.cli.options import argtypes, arguments
from tilecast.cli.options.load_measurements import files_line, labelled, read_measurements
from tilecast.cli.options.output_paths import check_writable
from tilecast.cli.output.output import Output
from tilecast.cli.output.progress import show_steps
from tilecast.data_collection.dataset.autotuned import SUFFIX, Autotuned, Usable, read_autotuned
from tilecast.models.learning.folds import FOLDS
from tilecast.models.learning.training import train
from tilecast.models.learning.training_sets import Measurements
from tilecast.models.runtime.artifact import Artifact, save
from tilecast.reporting.sections import trained_table

SECONDS_TO_FIT = 0.03
"""Of a core for one problem in one of the fits, on average."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    arguments.add_data(parser)
    about = (
        "a further data set, of the same GPU or of another one, from which so much is learned that "
        "few problems of a new GPU are enough; or what Inductor's autotuner measured "
        "(TILECAST_LEARN, .jsonl)"
    )
    arguments.add_further_data(parser, about)
    about = "folder that the artifact goes to"
    parser.add_argument("--out", type=argtypes.path, required=True, help=about)
    arguments.add_jobs(parser)


def run(options: argparse.Namespace) -> Output:
    """Cross-validate, fit on everything, write the artifact."""
    check_writable(options.out)
    start = time.perf_counter()
    autotuned = [path for path in options.add if path.suffix.lower() == SUFFIX]
    datasets = [path for path in options.add if path.suffix.lower() != SUFFIX]
    measured, files = read_measurements(options, datasets)
    usable = read_autotuned(autotuned, measured.gpu)
    labelled(measured)
    artifact = train_shown(measured, options.jobs, usable.found)
    save(artifact, options.out)
    seconds = time.perf_counter() - start
    facts: Mapping[str, Any] = artifact.facts
    document = {
        "model": str(options.out),
        "data": [*map(str, files)],
        "name": artifact.name,
        "seconds": seconds,
        "left_out": usable.left_out,
        **facts,
    }
    summary = (
        f"{artifact.name} trained in {seconds:.0f} s on {facts['dataset']['problems']} problems of "
        f"{facts['dataset']['families']} families, written to {options.out}"
    )
    lines = [files_line(files), *_learned_lines(facts, usable), summary]
    return Output(document, [trained_table(facts), *lines])


def train_shown(measured: Measurements, jobs: int, autotuned: Sequence[Autotuned] = ()) -> Artifact:
    """Train and show how far it is."""
    fits = FOLDS + 1
    expected = SECONDS_TO_FIT * len(measured.table) * fits / min(jobs, fits)
    with show_steps("train", fits, expected) as step:
        return train(measured, autotuned, jobs=jobs, fitted=step)


def _learned_lines(facts: Mapping[str, Any], usable: Usable) -> list[str]:
    """What was learned beside the data set of the GPU, and which autotuned times were not."""
    lines = []
    if "elsewhere" in facts:
        problems, gpus = facts["elsewhere"]["problems"], ", ".join(facts["elsewhere"]["gpus"])
        lines.append(f"Also learned from {problems} problems of {gpus}")
    if usable.found:
        used = facts.get("autotuned", {"problems": 0, "times": 0})
        shown = "{times} times of {problems} problems that no collection measured".format(**used)
        lines.append(f"Learned from autotuning: {shown}")
    if usable.left_out:
        reasons = ", ".join(f"{why} ({count})" for why, count in usable.left_out.items())
        lines.append(f"Left out: lines {reasons}")
    return lines
