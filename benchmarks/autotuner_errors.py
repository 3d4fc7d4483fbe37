"""How Inductor's benchmark errs, by results/inductor_timing.json, and errors drawn like its own."""

import numpy as np
from inductor_timing import BANDS as TIES
from inductor_timing import K, regret
from learn_from_autotuning import BANDS, band_of, errors, timed
from runner import Row

SHARES = {"half errors": 0.5, "errors": 1.0}
NOISES = ("repeats", *SHARES)
"""Log-normal, as one kernel's times repeat; or drawn for each kernel alone from all errors against
careful times, whole or halved. What Inductor measured lies between the first two: `misled`."""
SETTLED = 2
"""Repeats after which a card has arrived at its power limit: drift is no noise."""
DRAWS = 20  # of the errors of each problem


def by_band() -> list[list[np.ndarray]]:
    """Log times [repeats, K] that Inductor measured of the problems of each band."""
    bands: list[list[np.ndarray]] = [[] for _ in BANDS[1:]]
    for row in timed():
        bands[band_of(min(row["careful"]))].append(np.log(row["inductor"]))
    return bands


def deviations() -> np.ndarray:
    """Standard deviation of the log of one kernel's settled times, for each band."""
    variances = [np.mean([x[SETTLED:].var(0, ddof=1) for x in band]) for band in by_band()]
    return np.sqrt(variances)


def heat() -> np.ndarray:
    """How far a cool card has come to its power limit at each of a list's times, [K + 1]; 0 to 1.

    By the first times of the longest kernels, on a card that was cool, against the settled ones.
    """
    settled = [(x[:SETTLED] - x[SETTLED:].mean(0)).ravel() for x in by_band()[-1]]
    drift = np.mean(settled, axis=0)[: K + 1]
    return np.clip(1 - drift / drift[0], 0, 1)


def misled() -> Row:
    """Regret by tie band where Inductor measured, and where errors are drawn for the same kernels.

    Says which errors to believe. Repeats alone lose too little without a band; with errors drawn
    for each kernel alone wide bands cost nothing or gain, where they lost.
    """
    random, pools, repeats = np.random.default_rng(0), errors(), deviations()

    def drawn(row: Row, noise: str) -> Row:
        band, shape = band_of(min(row["careful"])), (DRAWS, K)
        if noise == "repeats":
            error = random.normal(size=shape) * repeats[band]
        else:
            error = random.choice(pools[band], shape) * SHARES[noise]
        return {**row, "inductor": (row["careful"] * np.exp(error)).tolist()}

    runs = {noise: [drawn(row, noise) for row in timed()] for noise in NOISES}
    return {
        name: {f"{tie:g}": round(100 * regret(some, tie, "inductor")["geomean"], 3) for tie in TIES}
        for name, some in {"measured": timed(), **runs}.items()
    }
