"""Pages in a browser: every plot is drawn, and nothing is loaded from outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, DRIVER, Browser, browser

from tilecast.cli.main import main
from tilecast.models.runtime.artifact import SHIPPED
from tilecast.reporting.page import Section, write_page

MOST_BYTES = 5_000_000
SHIPPED_MODEL = str(SHIPPED / "H200")


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs headless Chromium (Debian's packages chromium and chromium-driver)")
    with browser() as opened:
        yield opened


EMPTY = (
    "return [...document.querySelectorAll('.plot')].filter(plot => "
    "!plot.querySelector('.scatterlayer path, .barlayer path, .boxlayer path')).length"
)
"""How many plots have nothing in them."""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_browser_draws_every_plot_offline(window: Browser, tmp_path: Path, dark: bool) -> None:
    out = tmp_path / "page.html"
    assert main(["report", SHIPPED_MODEL, "--out", str(out)]) == 0
    assert out.stat().st_size <= MOST_BYTES
    window.requests()
    window.complaints()
    window.open(out, dark=dark)
    assert window.complaints() == []
    assert set(window.requests()) == {out.as_uri()}
    plots = window.run("return document.querySelectorAll('.plot').length")
    assert plots == out.read_text().count('<script type="application/json">') >= 4
    assert window.run(EMPTY) == 0
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert window.run(wide) == 0
    assert window.run("return document.querySelectorAll('[data-title^=Share]').length") == 0


def test_browser_would_see_a_fault(window: Browser, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    write_page(out, "", [Section("", [{"data": [], "layout": {"height": 100}}])])
    text = out.read_text().replace("<h1>", '<img src="http://127.0.0.1:9/x.png"><h1>')
    out.write_text(text)
    window.open(out)
    (complaint,) = window.complaints()
    assert "Content Security Policy" in complaint
    assert window.run(EMPTY) == 1
    out.write_text(text.replace('{"data":[]', '{"data":['))
    with pytest.raises(AssertionError, match="SyntaxError"):
        window.open(out, seconds=2)
