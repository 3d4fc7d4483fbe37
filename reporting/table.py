"""Tables as data, which a terminal and a page show alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """One table."""

    title: str
    """Stands above it."""
    columns: Mapping[str, str]
    """Heading to format specification; text, to the left, where it is empty."""
    rows: Sequence[Sequence[object]]
    """Cells in the order of the columns; None is left blank."""

    @property
    def records(self) -> list[dict[str, object]]:
        """Each row's cells by their headings."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


REGRET = {"geomean": "geomean", "p95": "p95", "max": "max", "within_2_percent": "within 2%"}
"""Fields of a regret in a document, and their headings."""
REGRET_COLUMNS = dict.fromkeys(REGRET.values(), ".2%")

LIBRARY = {"left": "left to it", "geomean": "speed", "slower": "below 0.97x", "worst": "worst"}
"""Fields of a speed beside cuBLAS in a document, and their headings."""
LIBRARY_COLUMNS = dict(zip(LIBRARY.values(), (".0%", ".3f", ".1%", ".2f"), strict=True))
