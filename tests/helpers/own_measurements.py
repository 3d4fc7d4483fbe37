"""What the synthetic card says of one's own problems."""

from __future__ import annotations

from fixtures import make_dataset, synthetic_configs

from tilecast.data_collection.dataset.measurement import REFERENCE, Measurement
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.families import parse_config

OWN = (GemmProblem(96, 3072, 2048), GemmProblem(700, 640, 8192))


def own_measurements() -> list[Measurement]:
    """What the synthetic card would have said of one's own problems."""
    rows = make_dataset(list(OWN), synthetic_configs()).rows.astype(object)
    rows = rows.where(rows.notna(), None)
    return [
        Measurement(
            GemmProblem(row["m"], row["n"], row["k"]),
            None if row["config"] == REFERENCE else parse_config(row["config"]),
            *(row["regime"], row["stage"], row["microseconds"], row["spread"]),
            *(row["rounds"], row["failure"]),
        )
        for row in rows.to_dict("records")
    ]
