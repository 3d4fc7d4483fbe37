"""What a model is made of: data sets, sorted by their GPUs, and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tilecast.data_collection.dataset.dataset import Dataset, joined
from tilecast.data_collection.problems.suites import suite
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, described, hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.models.learning.labels import ProblemLabels, label_table

MOST_LOCKED = 8
"""Problems of the suite by which models are scored that somebody may have measured by chance."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """Data sets to learn from, with labels that are made once.

    What is fitted to labels is kept by the labels themselves: whoever trains and scores with the
    same measurements fits the networks and trees of each fold once.
    """

    gpu: Hardware
    """The GPU that a model is for."""
    parts: tuple[Dataset, ...]
    """The data sets that were measured on it, of which there is at least one."""
    others: tuple[Dataset, ...] = ()
    """What else is learned from and not scored by, each of one GPU."""

    @cached_property
    def dataset(self) -> Dataset:
        """What was measured on the GPU: the parts, `joined`."""
        return joined(self.parts)

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Those of all data sets as they were read, the GPU's own first, each once."""
        return tuple(dict.fromkeys(one.digest for one in (*self.parts, *self.others)))

    @cached_property
    def failing(self) -> dict[GemmOperands, frozenset[KernelConfig]]:
        """The configs that failed on the GPU, by operands; those, too, of times that are replaced.

        A kernel that failed once is not trusted again, whatever a later measurement says.
        """
        found = [part.failing() for part in self.parts]
        return {
            operands: frozenset().union(*(one.get(operands, ()) for one in found))
            for operands in sorted({key for one in found for key in one}, key=str)
        }

    @cached_property
    def own(self) -> list[ProblemLabels]:
        """The labels of the GPU's own data set.

        Raises:
            TilecastError: it has no time to learn from.
        """
        return label_table(self.dataset)

    @cached_property
    def elsewhere(self) -> list[ProblemLabels]:
        """The labels of the others.

        Raises:
            TilecastError: one of them holds more than one GPU, or has no time to learn from.
        """
        found = (label_table(other, dataset_hardware(other)) for other in self.others)
        return [labels for table in found for labels in table]

    @property
    def table(self) -> list[ProblemLabels]:
        """All labels, the GPU's own first."""
        return [*self.own, *self.elsewhere]


def by_gpu(datasets: Sequence[Dataset]) -> Measurements:
    """Sort data sets, of which there is at least one; the model is for the GPU of the first.

    Where others describe that GPU with other rates, the first description counts.

    Raises:
        TilecastError: one is of several GPUs, or measured the locked suite.
    """
    locked = {*suite("locked")}
    for one in datasets:
        if (count := len(locked.intersection(one.problems()))) > MOST_LOCKED:
            raise TilecastError(
                f"a data set has {count} problems of the locked suite, from which nothing may "
                f"learn; allowed: {MOST_LOCKED}, which may be another model's; "
                "benchmarks/learner/locked_set.py scores a model by it"
            )
    first, *more = datasets
    gpu = dataset_hardware(first)
    own = (first, *(one for one in more if dataset_hardware(one).same_gpu(gpu)))
    others = tuple(one for one in more if not dataset_hardware(one).same_gpu(gpu))
    return Measurements(gpu, own, others)


def dataset_hardware(dataset: Dataset) -> Hardware:
    """The GPU that a data set was measured on.

    A run says which one it measured; a run that does not had one model in its host. Where runs
    describe one of the same name, whose rates were measured, the first description counts.

    Raises:
        TilecastError: it names none, several, or one that is neither known nor described.
    """
    found: dict[str, Hardware] = {}
    try:
        for run in dataset.provenance["runs"]:
            for name in [run["gpu"]] if "gpu" in run else [gpu["name"] for gpu in run["gpus"]]:
                if name not in found:
                    facts = run.get("hardware")
                    found[name] = hardware(name) if facts is None else described(facts)
    except (LookupError, TypeError, AttributeError) as error:
        raise TilecastError(
            f"the data set does not say which GPU it was measured on ({error!r}); allowed: runs "
            "that name theirs; export it again with `tilecast collect`"
        ) from error
    models = set(found.values())
    if len(models) != 1:
        raise TilecastError(
            f"the data set names {len(models)} GPU models ({', '.join(sorted(found))}); allowed: "
            "one; train on each GPU's measurements apart"
        )
    return models.pop()
