"""What a command learns from: a data set, and what was added to it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS

if TYPE_CHECKING:
    from tilecast.data_collection.dataset.dataset import Dataset
    from tilecast.heuristics.hardware import Hardware
    from tilecast.models.learning.training_sets import Measurements

DATA = "measurements.parquet"
"""What a campaign measured, beside its model."""


def read_measurements(
    options: argparse.Namespace, added: Sequence[Path]
) -> tuple[Measurements, list[Path]]:
    """Read the data set that the options name, or a shipped one, and some more.

    Returns:
        What was measured; and the files that it is from.

    Raises:
        TilecastError: one cannot be read, or is of several GPUs; none is shipped; or the first is
            not of the GPU that is named.
    """
    from tilecast.data_collection.dataset.dataset import read_dataset
    from tilecast.models.learning.training_sets import by_gpu

    more = [read_dataset(path) for path in added]
    data = options.data or _shipped(options.gpu, more)
    measured = by_gpu([read_dataset(data), *more])
    if options.gpu is not None and not measured.gpu.same_gpu(options.gpu):
        raise TilecastError(
            f"data set {data} was measured on {measured.gpu.name}; allowed: one of "
            f"{options.gpu.name}, which --gpu names, or no --gpu"
        )
    return measured, [data, *added]


def _shipped(gpu: Hardware | None, added: Sequence[Dataset]) -> Path:
    """The shipped data set of a GPU, of this machine's, or of the one of what is added.

    Raises:
        TilecastError: there is none for it.
    """
    from tilecast.data_collection.dataset.dataset import shipped_data
    from tilecast.data_collection.gpu.gpu_model import first_hardware
    from tilecast.models.learning.training_sets import dataset_hardware

    gpu = gpu or first_hardware() or next(map(dataset_hardware, added), GPUS[0])
    found = shipped_data(gpu)
    if found is None:
        raise TilecastError(
            f"no data set is shipped for {gpu.name}; allowed: --data with what `tilecast collect` "
            "exported, or --gpu with a GPU that one is shipped for"
        )
    return found


def files_line(files: Sequence[Path]) -> str:
    """From which data sets an answer is."""
    return f"Data: {', '.join(map(str, files))}"


def shipped_datasets(gpu: Hardware) -> list[Dataset]:
    """The data sets that come for GPUs like one, from which there is much to learn of it."""
    from tilecast.data_collection.dataset.dataset import read_dataset, shipped_data
    from tilecast.models.runtime.nearest_gpu import known_gpus

    return [read_dataset(path) for like in known_gpus(gpu) if (path := shipped_data(like))]
