"""What a command learns from: a data set, and what was added to it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilecast.cli import options as shared

if TYPE_CHECKING:
    from tilecast.data_collection.dataset import Dataset
    from tilecast.heuristics.hardware import Hardware


@dataclass(frozen=True)
class Measurements:
    """The data sets that were named, sorted by whose they are."""

    gpu: Hardware
    """The GPU of the first."""
    dataset: Dataset
    """All of that GPU, joined."""
    others: tuple[Dataset, ...]
    """Those of other GPUs, which are learned from and not scored by."""


def read_measurements(options: argparse.Namespace, added: Sequence[Path]) -> Measurements:
    """Read the data set that the options name, or the shipped one, and some more.

    Raises:
        TilecastError: one cannot be read, or is of several GPUs.
    """
    from tilecast.data_collection.dataset import read_dataset

    return by_gpu([read_dataset(path) for path in (shared.data(options), *added)])


def shipped_datasets(gpu: Hardware) -> list[Dataset]:
    """The data sets that come for GPUs like one, from which there is much to learn of it."""
    from tilecast.data_collection.dataset import read_dataset, shipped_data
    from tilecast.models.guidance import known_gpus

    return [read_dataset(path) for like in known_gpus(gpu) if (path := shipped_data(like))]


def by_gpu(datasets: Sequence[Dataset]) -> Measurements:
    """Sort data sets, of which there is at least one.

    Raises:
        TilecastError: one is of several GPUs.
    """
    from tilecast.data_collection.dataset import joined
    from tilecast.models.training import dataset_hardware

    first, *more = datasets
    gpu = dataset_hardware(first)
    own = [first, *(one for one in more if dataset_hardware(one) == gpu)]
    others = tuple(one for one in more if dataset_hardware(one) != gpu)
    return Measurements(gpu, joined(own), others)
