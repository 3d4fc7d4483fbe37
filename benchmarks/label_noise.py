"""How well do labels repeat? The race against the later verification of the same kernels.

``python benchmarks/label_noise.py``. Two figures per power regime: ``absolute`` is
|ln(verify / race)|; ``relative`` takes out the median over the problem's kernels first, where there
are enough of them: what all share is the card's state and orders nobody. Told of each version of
the measurement protocol by itself, as each is to repeat better or cost less than the one before.
"""

from collections import Counter, defaultdict
from typing import Any

import pandas as pd
import runner
from runner import Row

from tilecast.data_collection.dataset.dataset import Dataset, read_dataset
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.reporting.noise import GROUP, repeats

SHORT = 10.0  # microseconds below which an event's resolution and the launch itself matter


def noise(found: Any) -> Row:
    """Quantiles of the changes that `repeats` found, per regime and size."""

    def spread(changes: pd.Series) -> Row:
        sizes = changes.dropna().abs().tolist()
        shares = runner.quantiles(sizes, p50=0.5, p90=0.9, p99=0.99) if sizes else {}
        return {"pairs": len(sizes), **shares}

    regimes, long = found.index.get_level_values("regime"), found["race"] >= SHORT
    return {
        regime: {
            size: {
                "problems": part.groupby(level=GROUP, observed=True).ngroups,
                "absolute": spread(part["change"]),
                "relative": spread(part["relative"]),
            }
            for size, chosen in (("from_10_us", long), ("below_10_us", ~long))
            for part in [found[(regimes == regime) & chosen]]
        }
        for regime in REGIMES
    }


def by_protocol(dataset: Dataset) -> dict[int, Dataset]:
    """The rows of each protocol, with its runs: of cards that have measured by no other."""
    runs = dataset.provenance["runs"]
    versions: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        for gpu in run["gpus"]:
            versions[gpu["uuid_hash"]].add(run["protocol_version"])
    parts = {}
    for version in sorted(set().union(*versions.values())):
        cards = [card for card, theirs in versions.items() if theirs == {version}]
        rows: Any = dataset.rows[dataset.rows["device"].isin(cards)]
        ours = [
            run | {"gpus": [gpu for gpu in run["gpus"] if gpu["uuid_hash"] in cards]}
            for run in runs
            if run["protocol_version"] == version
        ]
        parts[version] = Dataset(rows, dataset.provenance | {"runs": ours})
    return parts


def pace(dataset: Dataset) -> Row:
    """How fast a GPU was measured: rows of the cards over the time that their runs took of them.

    A run takes its time of each of its cards and of no other. Cards of a run that does not say how
    long it took are left out with their rows, which do not say which run they are of.
    """
    seconds: Counter[str] = Counter()
    untimed: set[str] = set()
    for run in dataset.provenance["runs"]:
        cards = [gpu["uuid_hash"] for gpu in run["gpus"]]
        if "end" in run:
            seconds.update(dict.fromkeys(cards, run["end"]["seconds"]))
        else:
            untimed.update(cards)
    timed = seconds.keys() - untimed
    rows: Any = dataset.rows[dataset.rows["device"].isin(list(timed))]
    gpu_seconds = sum(seconds[card] for card in timed)
    return {
        "measurements": len(rows),
        "gpus": len(timed),
        "gpu_seconds": round(gpu_seconds, 1),
        "measurements_per_second_per_gpu": len(rows) / gpu_seconds,
        "replays_per_second_per_gpu": int(rows["rounds"].sum()) / gpu_seconds,
    }


def main() -> None:
    """Compare, and keep the result, with the pace of the runs and all that they wait for."""
    options = runner.parser(__file__, __doc__).parse_args()
    dataset = read_dataset(runner.DATA)
    figures = {
        f"protocol {version}": {"noise": noise(repeats(part.rows)), "collector": pace(part)}
        for version, part in by_protocol(dataset).items()
    }
    runner.write(options, {"dataset": runner.facts(dataset)}, figures)


if __name__ == "__main__":
    main()
