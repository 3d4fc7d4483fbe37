"""What a command learns from: a data set, and what was added to it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilecast.cli import given

if TYPE_CHECKING:
    from tilecast.data_collection.dataset import Dataset
    from tilecast.heuristics.hardware import Hardware
    from tilecast.models.measurements import Measurements


def read_measurements(options: argparse.Namespace, added: Sequence[Path]) -> Measurements:
    """Read the data set that the options name, or the shipped one, and some more.

    Raises:
        TilecastError: one cannot be read, or is of several GPUs.
    """
    from tilecast.data_collection.dataset import read_dataset
    from tilecast.models.measurements import by_gpu

    return by_gpu([read_dataset(path) for path in (given.data(options), *added)])


def shipped_datasets(gpu: Hardware) -> list[Dataset]:
    """The data sets that come for GPUs like one, from which there is much to learn of it."""
    from tilecast.data_collection.dataset import read_dataset, shipped_data
    from tilecast.models.lending import known_gpus

    return [read_dataset(path) for like in known_gpus(gpu) if (path := shipped_data(like))]
