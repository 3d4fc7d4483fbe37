"""How choices are mistimed, by results/inductor_timing.json, and errors drawn like those."""

import numpy as np
from inductor_timing import BANDS as TIES
from inductor_timing import OURS, K, regret
from runner import Row
from simulation import BANDS, band_of, errors, timed

NOISES = ("repeats", "errors")
"""Log-normal, as one kernel's times repeat; or drawn for each kernel alone from all errors against
careful times. What was measured loses more than the first and less than the second: `misled`."""
DRAWS = 20  # of the errors of each problem


def by_band() -> list[list[np.ndarray]]:
    """Log times [repeats, K] that choices of ours were given, by the problems of each band."""
    bands: list[list[np.ndarray]] = [[] for _ in BANDS[1:]]
    for row in timed():
        bands[band_of(min(row["careful"]))].append(np.log(row[OURS]))
    return bands


def deviations() -> np.ndarray:
    """Standard deviation of the log of one kernel's times, for each band."""
    variances = [np.mean([x.var(0, ddof=1) for x in band]) for band in by_band()]
    return np.sqrt(variances)


def misled() -> Row:
    """Regret by tie band as it was measured, and where errors are drawn for the same kernels."""
    random, pools, repeats = np.random.default_rng(0), errors(), deviations()

    def drawn(row: Row, noise: str) -> Row:
        band, shape = band_of(min(row["careful"])), (DRAWS, K)
        if noise == "repeats":
            error = random.normal(size=shape) * repeats[band]
        else:
            error = random.choice(pools[band], shape)
        return {**row, OURS: (row["careful"] * np.exp(error)).tolist()}

    runs = {noise: [drawn(row, noise) for row in timed()] for noise in NOISES}
    return {
        name: {f"{tie:g}": round(100 * regret(some, tie, OURS)["geomean"], 3) for tie in TIES}
        for name, some in {"measured": timed(), **runs}.items()
    }
