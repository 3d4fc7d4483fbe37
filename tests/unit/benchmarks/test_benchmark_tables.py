"""Tables of README and docs are those that the results render to."""

from __future__ import annotations

import cells
import learner_tables
import pytest
import tables

from tilecast.heuristics.errors import TilecastError


def test_pages_show_the_committed_results() -> None:
    results = tables.Results()
    for page in tables.PAGES:
        assert page.read_text().count("<!-- table: ") >= 1
        assert tables.fill(page.read_text(), results) == page.read_text()


def test_every_table_is_rectangular_and_stands_in_a_page() -> None:
    shown, results = "".join(page.read_text() for page in tables.PAGES), tables.Results()
    for name, render in tables.TABLES.items():
        assert f"<!-- table: {name} -->" in shown
        assert len({line.count("|") for line in render(results).splitlines()}) == 1


def test_fill_replaces_only_what_stands_between_the_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(tables.TABLES, "new", lambda figures: figures["result"])
    text = "before\n<!-- table: new -->\nold\n<!-- end of table -->\nafter\n"
    filled = tables.fill(text, {"result": "rows"})
    assert filled == "before\n<!-- table: new -->\nrows\n<!-- end of table -->\nafter\n"


def test_unknown_table_is_named_with_those_allowed() -> None:
    with pytest.raises(TilecastError, match="'cold'.*allowed.*deferral"):
        tables.fill("<!-- table: cold -->\n<!-- end of table -->", {})


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.00%"), (0.00994, "0.99%"), (0.00999, "1.0%"), (0.1234, "12.3%"), (3.45, "345%")],
)
def test_percent(share: float, text: str) -> None:
    assert cells.percent(share) == text


def test_newest_pytorch_a_named_one_and_names_with_numbers() -> None:
    figures = {"2.9.1": "old", "2.15.0+cu130": "new"}
    assert cells.newest(figures) == "new"
    assert cells.of_torch("2.9", figures) == "old"
    assert sorted(["decode 200x1", "decode 16x1"], key=cells.by_numbers)[0] == "decode 16x1"


def test_falling_back_stands_beside_the_first_choice_alone() -> None:
    row = {"power": "robust", "problems": "all", "count": 12, "geomean": 1.1, "slower": 0.012}
    row |= {"worst": 0.95}
    pair = [row | {"deferral": False, "left": 0.0}, row | {"deferral": True, "left": 0.4}]
    pair[0]["worst"] = 0.5
    shown = learner_tables.deferral({"selection_regret": {"deferral": pair}}).splitlines()
    after, alone = "1.100x | 1.2% | 0.95x", "1.100x | 1.2% | 0.50x"
    assert shown[2] == f"| robust, all | 12 | 40% | {after} | {alone} |"


def test_regret_is_shown_at_k_1_3_5() -> None:
    series = {"geomean": [0.0123 / k for k in range(1, 11)]}
    assert cells.by_k(series) == "1.2% / 0.41% / 0.25%"
    by_name = {k: {"geomean": 0.03 / int(k)} for k in "135"}
    assert cells.mean_by_k(by_name) == "3.0% / 1.0% / 0.60%"
