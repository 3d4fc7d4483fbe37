"""How long does a browser take to show a report, and how large is its file?

``python benchmarks/report_page.py`` in headless Chromium (Debian's packages chromium and
chromium-driver), on the report of the shipped model and the page of one problem. The figure is the
time from asking for the file until all plots are drawn. It also takes the picture in README.
"""

import tempfile
from pathlib import Path

import runner
from browser import browser

from tilecast.cli.main import main as tilecast
from tilecast.models.runtime.artifact import SHIPPED

REPEATS = 9  # times that each page is opened
PAGES = {
    "report of the shipped model": ("report", str(SHIPPED / "H200"), "--out"),
    "page of a problem": ("predict", "--m", "72", "--n", "288", "--k", "640", "--html"),
}
PICTURE = Path(__file__).parents[1] / "docs" / "report.png"
SECTION = """return [...document.querySelectorAll("nav a")]
.find(link => link.textContent == "Winners by region, robust")?.hash"""  # in the picture
MOST_BYTES, MOST_MILLISECONDS = 5_000_000, 2_000


def main() -> None:
    """Measure, take the picture, and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as folder, browser() as window:
        for name, command in PAGES.items():
            page = Path(folder) / "page.html"
            if tilecast([*command, str(page)]):
                raise SystemExit(f"tilecast {' '.join(command)} failed")
            opened = [window.open(page) for _ in range(REPEATS)]
            figures[name] = {
                "bytes": page.stat().st_size,
                "milliseconds_to_open": runner.quantiles(opened, median=0.5, worst=1.0),
            }
            if section := window.run(SECTION):
                window.screenshot(PICTURE, f"{section} h2", f"{section} .plot")
    figures["bars"] = {
        "within_5_MB": all(figures[name]["bytes"] <= MOST_BYTES for name in PAGES),
        "opens_within_2_s": all(
            figures[name]["milliseconds_to_open"]["worst"] <= MOST_MILLISECONDS for name in PAGES
        ),
    }
    runner.write(options, {"repeats": REPEATS}, figures)


if __name__ == "__main__":
    main()
