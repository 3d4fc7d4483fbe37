"""The data sets that commands learn from or show.

Every function raises a TilecastError where a file cannot be read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tilecast.cli.output.progress import show_steps
from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, shipped_data
from tilecast.data_collection.gpu.gpu_model import first_hardware
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS, Hardware
from tilecast.heuristics.operands import GROUPS
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.training_sets import Measurements, by_gpu, dataset_hardware
from tilecast.models.runtime.nearest_gpu import known_gpus

_SECONDS = 8e-6
"""Of a core to label one measurement."""


def read_measurements(
    options: argparse.Namespace, added: Sequence[Path]
) -> tuple[Measurements, list[Path]]:
    """Read the named data set, or a shipped one, and further ones.

    Returns:
        The measurements, and the files that they are from.

    Raises:
        TilecastError: a file cannot be read, or holds several GPUs; no data set is shipped; or the
            first one is not of the named GPU.
    """
    more = [read_dataset(path) for path in added]
    data = options.data or _shipped_file(options.gpu, more)
    measured = by_gpu([read_dataset(data), *more])
    if options.gpu is not None:
        check_measured_on(data, measured.gpu, options.gpu)
    return measured, [data, *added]


def labelled(measured: Measurements) -> list[ProblemLabels]:
    """The labels of all that was measured, which are remembered."""
    rows = sum(len(one.rows) for one in (*measured.parts, *measured.others))
    with show_steps("prepare the measurements", 1, _SECONDS * rows):
        return measured.table


def check_measured_on(data: Path, measured: Hardware, gpu: Hardware) -> None:
    """See that a data set was measured on a GPU of the wanted model."""
    if not measured.same_gpu(gpu):
        raise TilecastError(
            f"data set {data} was measured on {measured.name}; allowed: one of {gpu.name}, or "
            f"--gpu {measured.name}"
        )


def _shipped_file(gpu: Hardware | None, added: Sequence[Dataset]) -> Path:
    """The shipped data set of the named GPU, of this machine's, or of that of what is added."""
    gpu = gpu or first_hardware() or next(map(dataset_hardware, added), GPUS[0])
    found = shipped_data(gpu)
    if found is None:
        raise TilecastError(
            f"no data set is shipped for {gpu.name}; allowed: --data with what `tilecast collect` "
            "exported, or --gpu with a GPU that one is shipped for"
        )
    return found


def files_line(files: Sequence[Path]) -> str:
    """A line that names the data sets."""
    return f"Data: {', '.join(map(str, files))}"


def shipped_datasets(gpu: Hardware) -> list[Dataset]:
    """The shipped data sets of GPUs that are like this one, so that a model learns from them."""
    kinds = [(like, groups) for like in known_gpus(gpu) for groups in ("", *GROUPS)]
    paths = (shipped_data(like, groups=groups) for like, groups in kinds)
    return [read_dataset(path) for path in paths if path]
