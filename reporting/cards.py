"""The cards of a campaign: how they differ on shared problems, and what went wrong with them."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from tilecast.data_collection.dataset.measurement import REFERENCE
from tilecast.data_collection.run.cards import CardTimes
from tilecast.reporting.table import Table

OTHER_TIMES = 0.03
"""Times further than this from the other cards' are flagged: sound cards of a host lie within."""
OTHER_RANKS = 0.01
"""A larger loss of a card's choices by the other cards' times is flagged; noise loses less."""


@dataclass(frozen=True)
class CardDifference:
    """One card beside the others."""

    card: str
    """Hash of its UUID."""
    problems: int
    """Problems that another card also timed."""
    kernels: int
    """Compared timings."""
    times: float | None
    """Its times over the median of the other cards', geometric mean, less 1; None where no other
    card timed any of them."""
    ranks: float | None
    """What its fastest kernels lose by the other cards' times, mean over problems and regimes."""
    differs: bool
    """Whether times or ranks differ by more than those of sound cards."""


def card_differences(found: Sequence[CardTimes]) -> list[CardDifference]:
    """Set every card beside the others, sorted by name."""
    return [_difference(card, found) for card in sorted({one.card for one in found})]


def _difference(card: str, found: Sequence[CardTimes]) -> CardDifference:
    races = list(_beside_others(card, found))
    ratios = [math.log(own / other) for race in races for own, other in race.values()]
    losses = []
    for race in races:
        kernels = [pair for config, pair in race.items() if config != REFERENCE]
        if kernels:
            losses.append(min(kernels)[1] / min(other for _, other in kernels) - 1)
    times = math.expm1(statistics.fmean(ratios)) if ratios else None
    ranks = statistics.fmean(losses) if losses else None
    differs = abs(times or 0) > OTHER_TIMES or (ranks or 0) > OTHER_RANKS
    shared = {one.problem for one in found if one.card != card}
    problems = {one.problem for one in found if one.card == card} & shared
    return CardDifference(card, len(problems), len(ratios), times, ranks, differs)


def _beside_others(
    card: str, found: Sequence[CardTimes]
) -> Iterator[dict[str, tuple[float, float]]]:
    """For each problem and regime that others also timed: its time and theirs of each config."""
    times: dict[tuple, dict[str, dict[str, float]]] = {}
    for one in found:
        for (regime, config), time in one.microseconds.items():
            times.setdefault((one.problem, regime), {}).setdefault(config, {})[one.card] = time
    for race in times.values():
        yield {
            config: (by_card[card], statistics.median(others))
            for config, by_card in race.items()
            if card in by_card
            and (others := [time for other, time in by_card.items() if other != card])
        }


def card_table(found: Sequence[CardDifference]) -> Table | None:
    """The differences for people; None where no two cards timed the same problem."""
    if not any(one.problems for one in found):
        return None
    columns = {"card": "", "problems": "d", "timings": "d", "times": "+.2%", "ranks lose": ".2%"}
    rows = [(*astuple(one)[:-1], "yes" if one.differs else "") for one in found]
    return Table("Cards beside each other", columns | {"differs": ""}, rows)


def trouble_table(runs: Iterable[Mapping[str, Any]]) -> Table | None:
    """Failures of cards and processes that no kernel caused; None where there were none."""
    counts = Counter(
        (one["card"], one["reason"]) for run in runs for one in run.get("troubles", ())
    )
    rows = [(*trouble, count) for trouble, count in sorted(counts.items())]
    columns = {"card": "", "what happened": "", "times": "d"}
    return Table("What was measured again for it", columns, rows) if rows else None
