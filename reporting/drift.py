"""What cards did over time: their state when runs began and ended, and how their times moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from tilecast.reporting.noise import GROUP
from tilecast.reporting.plots import COLOURS, QUIET, Figure, axis, figure, level, stretch, suffix

STATES = {
    "clocks.sm": "SM clock, MHz",
    "power.draw": "power, W",
    "temperature.gpu": "temperature, C",
}
"""What a run's provenance says of a card, as `environment.gpu_states` has it, and how it is
called."""


@dataclass(frozen=True)
class State:
    """One card when a run began or ended."""

    card: str
    """Hash of its UUID."""
    date: datetime
    """When."""
    values: Mapping[str, float]
    """The numbers of `STATES` that it told."""


def states(runs: Sequence[Mapping[str, Any]]) -> list[State]:
    """The cards of every run that has a date, when it began and, if it says so, when it ended."""
    return [state for run in runs for state in _states(run)]


def _states(run: Mapping[str, Any]) -> Iterator[State]:
    try:
        date = datetime.fromisoformat(run["date"])
    except (KeyError, ValueError, TypeError):
        return
    end = run.get("end", {})
    looks = [(date, run.get("gpus", ()))]
    if "seconds" in end:
        looks.append((date + timedelta(seconds=end["seconds"]), end.get("gpus", ())))
    for at, gpus in looks:
        for gpu in gpus:
            if "uuid_hash" in gpu:
                yield State(gpu["uuid_hash"], at, dict(_numbers(gpu)))


def _numbers(gpu: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for name in STATES:
        # nvidia-smi says [N/A] where a card does not tell.
        try:
            yield name, float(gpu[name])
        except (KeyError, ValueError):
            continue


def over_time(found: Sequence[State]) -> Figure:
    """A panel for each of `STATES`, a line for each card, at the dates of the looks."""
    cards = list(dict.fromkeys(state.card for state in found))
    data = []
    for place, card in enumerate(cards):
        here = sorted((s for s in found if s.card == card), key=lambda state: state.date)
        for panel, name in enumerate(STATES):
            told = [state for state in here if name in state.values]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": card,
                    "legendgroup": card,
                    "showlegend": not panel,
                    "x": [state.date.isoformat() for state in told],
                    "y": [state.values[name] for state in told],
                    "yaxis": f"y{suffix(panel)}",
                    "line": {"color": COLOURS[place % len(COLOURS)], "width": 1},
                    "marker": {"symbol": place % 8, "size": 7},
                }
            )
    axes: dict[str, dict[str, Any]] = {"xaxis": axis("", anchor="y3")}
    for panel, title in enumerate(STATES.values()):
        place = stretch(len(STATES) - 1 - panel, len(STATES))
        axes[f"yaxis{suffix(panel)}"] = axis(title, domain=place)
    return figure(data, axes, 620)


def by_card(found: pd.DataFrame, rows: pd.DataFrame) -> Figure:
    """How much later each card was slower: the median change of every problem that it verified.

    Args:
        found: `tilecast.reporting.noise.repeats` of the rows.
        rows: of the data set, which say which card.
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
