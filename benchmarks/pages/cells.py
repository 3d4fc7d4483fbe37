"""How tables show figures: text of cells, and Markdown."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from runner import SHOWN_K

POWERS = ("burst", "sustained", "robust")
AT = "regret@" + "/".join(map(str, SHOWN_K))

Figures = Mapping[str, Any]


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float) -> str:
    """A share as text: two decimals below 1%, one below 100%, none beyond."""
    digits = 2 if share < 0.00995 else 1 if share < 0.9995 else 0
    return f"{share:.{digits}%}"


def cells(figures: Figures, shapes: Mapping[str, str]) -> list[str]:
    """Some of the figures as text; nothing for one that is missing."""
    values = {name: figures.get(name) for name in shapes}
    return ["" if found is None else shapes[name].format(found) for name, found in values.items()]


def bold(name: str) -> str:
    """A name, in bold if it is tilecast's."""
    return f"**{name}**" if "tilecast" in name.lower() else name


def with_error(found: Figures) -> str:
    """A mean, and how far it is known where a result says so."""
    mean = percent(found["geomean"])
    return f"{mean[:-1]} ± {percent(found['error'])}" if "error" in found else mean


def by_k(series: Figures, figure: str = "geomean") -> str:
    """A figure of regret at each k of `SHOWN_K`, of lists with a number for every k."""
    if figure != "geomean":
        return " / ".join(percent(series[figure][k - 1]) for k in SHOWN_K)
    known = {name: series[name] for name in ("geomean", "error") if name in series}
    return mean_by_k({str(k): {n: by[k - 1] for n, by in known.items()} for k in SHOWN_K})


def mean_by_k(found: Figures) -> str:
    """Mean regret at each k of `SHOWN_K`, of figures by k."""
    return " / ".join(with_error(found[str(k)]) for k in SHOWN_K)


def mean_and_p95(figures: Figures) -> str:
    """The geometric mean and the 95th percentile."""
    return f"{with_error(figures)}, {percent(figures['p95'])}"


def by_numbers(name: str) -> list[str | int]:
    """A key that sorts names by their text and then by the numbers in it."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def of_torch(version: str, figures: Figures) -> Figures:
    """The figures of a PyTorch such as ``2.11``."""
    (found,) = [one for name, one in figures.items() if name.startswith(f"{version}.")]
    return found


def newest(figures: Figures) -> Figures:
    """The figures of the newest PyTorch that was measured."""
    return figures[max(figures, key=lambda v: [*map(int, v.split("+")[0].split(".")[:2])])]
