"""How well do labels repeat? The race against the later verification of the same kernels.

``python benchmarks/label_noise.py``. Two figures per power regime: ``absolute`` is
|ln(verify / race)|; ``relative`` takes out the median over the problem's kernels first, where there
are enough of them: what all share is the card's state and orders nobody.
"""

from typing import Any

import pandas as pd
import runner
from runner import Row

from tilecast.data_collection.dataset import read_dataset
from tilecast.data_collection.measurement import REGIMES
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


def main() -> None:
    """Compare, and keep the result, with the pace of the runs and all that they wait for."""
    options = runner.parser(__file__, __doc__).parse_args()
    dataset = read_dataset(runner.DATA)
    rows: Any = dataset.rows
    gpus = rows["device"].nunique()
    seconds = sum(run["end"]["seconds"] for run in dataset.provenance["runs"] if "end" in run)
    collector = {"measurements": len(rows), "gpus": gpus, "seconds": seconds}
    collector["measurements_per_second_per_gpu"] = len(rows) / seconds / gpus
    collector["replays_per_second_per_gpu"] = int(rows["rounds"].sum()) / seconds / gpus
    figures = {"noise": noise(repeats(rows)), "collector": collector}
    runner.write(options, {"dataset": runner.facts(dataset)}, figures)


if __name__ == "__main__":
    main()
