"""Links between the pages of this repository resolve, and so do their anchors."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md")]


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_links_resolve() -> None:
    texts = {page: re.sub(r"(?ms)^```.*?^```", "", page.read_text()) for page in PAGES}
    headings = {page: re.findall(r"(?m)^#+ (.*)$", text) for page, text in texts.items()}
    for page, text in texts.items():
        for path, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", text):
            target = (page.parent / path).resolve() if path else page
            known = {"", *map(_anchor, headings.get(target, ()))}
            assert target.exists() and anchor in known, f"{page.name}: {path}#{anchor}"
