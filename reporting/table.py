"""A table as data, which a terminal and a page show alike."""

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
