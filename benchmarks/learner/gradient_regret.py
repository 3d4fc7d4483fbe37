"""How well are kernels chosen for gradients of experts' weights, which no model has learned from?

``python benchmarks/learner/gradient_regret.py``. Such gradients are products of groups along k. The
shipped model ranks them as a batch of dense products with the mean k (`GemmProblem.evenly`). `DATA`
is what ``tilecast collect --suite gradients --candidates guided --export`` measured on H200s, with
groups as long as chance made them.
"""

import sys
from pathlib import Path

from tilecast.data_collection.dataset.dataset import Dataset, read_dataset
from tilecast.models.learning.labels import label_table, noise_floor
from tilecast.models.learning.training_sets import dataset_hardware
from tilecast.models.runtime.learned import LearnedHeuristic, model_for
from tilecast.models.runtime.objectives import OBJECTIVES

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from grouped_regret import beside_library
from locked_set import ask
from selection_regret import losses

DATA = runner.RESULTS / "gradients.parquet"


def figures(dataset: Dataset) -> runner.Row:
    """Regret, and PyTorch's time over that of the first choices, by objective."""
    gpu, table = dataset_hardware(dataset), label_table(dataset)
    found: runner.Row = {"problems": len(table), "noise_floor": {}, "regret": {}}
    found |= {"missing": {}, "library_over": {}}
    for power in OBJECTIVES:
        asked = ask(LearnedHeuristic(model_for(gpu, None), power), table, gpu)
        found["noise_floor"][power] = noise_floor(table, power)
        found["regret"][power] = losses(asked.picks, table)
        found["missing"][power] = asked.missing
        found["library_over"][power] = beside_library(table, asked.picks)
    return found


def main() -> None:
    """Score, and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    dataset = read_dataset(DATA)
    runner.write(options, {"dataset": runner.facts(dataset)}, figures(dataset))


if __name__ == "__main__":
    main()
