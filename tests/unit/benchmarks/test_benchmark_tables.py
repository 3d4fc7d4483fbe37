"""Tables of README and docs are those that the results render to."""

from __future__ import annotations

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


def test_falling_back_stands_beside_the_first_choice_alone() -> None:
    row = {"power": "robust", "problems": "all", "count": 12, "geomean": 1.1, "slower": 0.012}
    row |= {"worst": 0.95}
    pair = [row | {"deferral": False, "left": 0.0}, row | {"deferral": True, "left": 0.4}]
    pair[0]["worst"] = 0.5
    shown = learner_tables.deferral({"selection_regret": {"deferral": pair}}).splitlines()
    after, alone = "1.100x | 1.2% | 0.95x", "1.100x | 1.2% | 0.50x"
    assert shown[2] == f"| robust, all | 12 | 40% | {after} | {alone} |"
