"""One self-contained HTML file of sections: text, tables, and plots that zoom.

It loads nothing from outside itself, which its own content security policy forbids as well.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from string import Template

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically
from tilecast.reporting.plots import Figure
from tilecast.reporting.table import Table

_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Section:
    """One heading and what stands below it."""

    title: str
    """The heading."""
    parts: Sequence[str | Table | Figure]
    """Paragraphs of plain text, tables and figures, in their order."""


def can_draw() -> bool:
    """Whether plotly is installed."""
    return find_spec("plotly") is not None


def library() -> str:
    """plotly.js, which draws the figures: gzip in base64, as it takes 5 MB otherwise.

    Raises:
        TilecastError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise TilecastError(
            "plotly is not installed; allowed: an installation with it, which draws the page; run "
            "`pip install 'plotly>=6,<8'`"
        ) from error
    return _packed(get_plotlyjs())


@cache
def _packed(script: str) -> str:
    # No date inside: the same page gives the same bytes.
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


def page(title: str, sections: Sequence[Section]) -> str:
    """The whole file.

    Raises:
        TilecastError: plotly is not installed.
    """
    numbers = count()
    shown = [_section(place, section, numbers) for place, section in enumerate(sections)]
    links = [
        f'<a href="#s{place}">{html.escape(section.title)}</a>'
        for place, section in enumerate(sections)
    ]
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        links="\n".join(links),
        sections="\n".join(shown),
        library=library(),
    )


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write `page`, whole or not at all.

    Raises:
        TilecastError: plotly is not installed, or the file cannot be written.
    """
    text = page(title, sections)
    write_atomically(path, lambda at: at.write_text(text, encoding="utf-8"))


def _section(place: int, section: Section, numbers: count) -> str:
    parts = "\n".join(_part(part, numbers) for part in section.parts)
    return f'<section id="s{place}">\n<h2>{html.escape(section.title)}</h2>\n{parts}\n</section>'


def _part(part: str | Table | Figure, numbers: count) -> str:
    if isinstance(part, str):
        return f"<p>{html.escape(part)}</p>"
    if isinstance(part, Table):
        return _table(part)
    # No text inside may end the script element around it.
    data = json.dumps(part, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    height = part["layout"]["height"]
    return (
        f'<div class="plot" id="f{next(numbers)}" style="height:{height}px">'
        f'<script type="application/json">{data}</script></div>'
    )


def _table(table: Table) -> str:
    """A table with its numbers aligned to the right."""
    kinds = [' class="number"' if spec else "" for spec in table.columns.values()]
    heads = (
        f"<th{kind}>{html.escape(heading)}</th>"
        for heading, kind in zip(table.columns, kinds, strict=True)
    )
    rows = "\n".join(
        f"<tr>{''.join(map(_cell, row, table.columns.values(), kinds))}</tr>" for row in table.rows
    )
    title = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
    return (
        f'<div class="table"><table>{title}<thead><tr>{"".join(heads)}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(value: object, spec: str, kind: str) -> str:
    return f"<td{kind}>{'' if value is None else html.escape(format(value, spec))}</td>"
