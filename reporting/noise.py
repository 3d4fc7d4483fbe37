"""How well labels repeat: the race against the later verification of the same kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilecast.data_collection.dataset.dataset import is_reference
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.problem import PROBLEM_FIELDS
from tilecast.reporting.plots import COLOURS, QUIET, Figure, axis, figure, level
from tilecast.reporting.table import Table

if TYPE_CHECKING:
    import pandas as pd

GROUP = ["regime", *PROBLEM_FIELDS]
"""What the kernels that are compared with each other share."""
ENOUGH = 3
"""Fewest kernels of a problem whose median is subtracted; a single one would become zero."""
_SHARES = np.linspace(0, 1, 101)


def repeats(rows: pd.DataFrame) -> pd.DataFrame:
    """Every tilecast kernel that was raced and verified, by `GROUP` and config.

    Repeated measurements of one pass count by their median, as in labels and scores.

    Returns:
        ``race``, in microseconds; ``change``, ln(verify / race); ``relative``, the change less the
        median of its group, NaN where the group is small.
    """
    kernels: Any = rows[~is_reference(rows)].set_index([*GROUP, "config", "stage"])
    times = kernels["microseconds"].dropna().astype(float)
    passes = times.groupby(level=list(range(times.index.nlevels)), observed=True).median()
    times = passes.unstack("stage").reindex(columns=["race", "verify"]).dropna()
    change: Any = np.log(times["verify"] / times["race"])
    groups = change.groupby(level=GROUP, observed=True)
    relative = (change - groups.transform("median")).where(groups.transform("size") >= ENOUGH)
    return times[["race"]].assign(change=change, relative=relative)


def _sizes(found: Any, regime: str, kind: str) -> np.ndarray:
    """The sizes of the changes of one regime, float64."""
    return found.loc[found.index.get_level_values("regime") == regime, kind].dropna().abs().values


_KINDS = {"change": "as timed", "relative": "less what a problem's kernels share"}


def noise_figure(found: pd.DataFrame) -> Figure:
    """The share of the kernels of `repeats` whose time changed by less than x, against x."""
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"{regime}, {shown}",
            "x": np.quantile(sizes, _SHARES).tolist(),
            "y": _SHARES.tolist(),
            "line": {"color": colour, "dash": dash},
            "hovertemplate": "%{y:.0%} below %{x:.2%}",
        }
        for regime, colour in zip(REGIMES, COLOURS, strict=False)
        for (kind, shown), dash in zip(_KINDS.items(), ("dot", "solid"), strict=True)
        if (sizes := _sizes(found, regime, kind)).size
    ]
    axes = {
        "xaxis": axis("|ln(verify / race)|", type="log", tickformat=".1~p", dtick=1),
        "yaxis": axis("share of the kernels", tickformat=".0%"),
    }
    return figure(data, axes)


def noise_table(found: pd.DataFrame) -> Table:
    """Quantiles of the changes."""
    rows = [
        (regime, shown, sizes.size, *np.quantile(sizes, (0.5, 0.9, 0.99)).tolist())
        for regime in REGIMES
        for kind, shown in _KINDS.items()
        if (sizes := _sizes(found, regime, kind)).size
    ]
    columns = {"regime": "", "change": "", "kernels": "d"}
    return Table("", columns | dict.fromkeys(("median", "90%", "99%"), ".2%"), rows)


def change_by_card(found: pd.DataFrame, rows: pd.DataFrame) -> Figure:
    """The median change of every problem from race to verification, by the verifying card.

    Args:
        found: `repeats` of the rows.
        rows: of the data set, which name the cards.
    """
    verified: Any = rows[(rows["stage"] == "verify") & rows["microseconds"].notna()]
    verified = verified.join(found["race"], on=[*GROUP, "config"], how="inner")
    change = np.log(verified["microseconds"].astype(float) / verified["race"])
    moved = verified.assign(change=change, card=verified["device"].astype(str))
    moved = moved.groupby([*GROUP, "card"], observed=True)["change"].median().reset_index("card")
    data = [
        {
            "type": "box",
            "name": str(card),
            "y": part.tolist(),
            "boxpoints": "outliers",
            "marker": {"color": COLOURS[1], "size": 4},
            "fillcolor": QUIET,
            "showlegend": False,
        }
        for card, part in moved.groupby("card")["change"]
    ]
    axes = {"xaxis": axis("card", type="category"), "yaxis": axis("ln(verify / race)")}
    axes["yaxis"]["tickformat"] = ".1~%"
    return figure(data, axes, shapes=[level(0)])
