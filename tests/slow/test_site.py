"""The site builds without a warning, and every link in it leads somewhere."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors = {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.links.update(named[name] or "" for name in ("href", "src") if name in named)
        self.anchors.add(named.get("id") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = (sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-d")
    state = tmp_path_factory.mktemp("state")
    made = subprocess.run(
        (*build, state, "-c", ROOT / "docs", ROOT, folder), capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    return folder


def test_links_and_anchors_lead_somewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                assert parts.scheme in ("https", "data"), f"{path.name}: {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {link}"
            if target in pages:
                assert parts.fragment in pages[target].anchors, f"{path.name}: {link}"


def test_every_page_is_in_the_contents_and_can_be_searched(site: Path) -> None:
    links = Page(site / "index.html").links
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/EXPERIMENTS.md")):
        place = page.relative_to(ROOT).with_suffix(".html")
        assert place.name == "README.html" or str(place) in links
        assert f'"{place.with_suffix("")}"' in (site / "searchindex.js").read_text()


def test_the_api_shows_arguments_and_errors(site: Path) -> None:
    page = (site / "docs" / "api.html").read_text()
    for name in ("install", "installed", "mm", "eager.enable", "eager.decide_again"):
        assert f'id="tilecast.inductor_hook.{name}"' in page
    assert "TilecastError" in page
