"""Tables of README and docs are those that `benchmarks/tables.py` renders from the results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import runner

from tilecast.heuristics.errors import TilecastError

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _series(geomean: float) -> dict[str, list[float]]:
    names = ("proposed", "geomean", "p95", "max", "within_2_percent")
    return {name: [geomean * scale / k for k in range(1, 11)] for scale, name in enumerate(names)}


_COMPARED = {
    "adaptive": {"geomean": 0.004, "p95": 0.02},
    "fixed": {"geomean": 0.005, "p95": 0.03},
    "fixed_for_the_same": 3.61,
}


@pytest.fixture
def figures() -> dict:
    heuristics = {"tilecast": _series(0.0123), "random": _series(1.5)}
    groups = {"all": heuristics, "m <= 16": heuristics, "m > 1024": heuristics}
    powers = ("burst", "sustained", "robust")
    losses = {made: {run: _series(0.02) for run in powers} for made in powers}
    stock = {"problems": 7, "regret": {power: heuristics for power in powers}}
    regret = {
        "counts": {"all": 12, "m <= 16": 5, "m > 1024": 7},
        "noise_floor": {p: {"geomean": 0.001, "p95": 0.004, "max": 0.02} for p in powers},
        "regret": dict.fromkeys(powers, groups),
        "cross_regime": {"regret": {"oracle": losses, "tilecast": losses}},
        "library_over": {
            p: {
                k: {"geomean": 1.1, "p5": 0.95, "least": 0.8, "slower": 0.1}
                for k in ("1", "3", "5")
            }
            for p in powers
        },
        "deferral": [
            {"power": p, "problems": "all", "deferral": deferral, "left": 0.4 * deferral}
            | {"count": 12, "geomean": 1.1, "slower": 0.012, "worst": 0.95}
            for p in powers
            for deferral in (False, True)
        ],
        "among_stock": stock,
        "operand_counts": {"bf16:rcr": 12, "bf16:crr": 3},
        "operands": dict.fromkeys(powers, {"bf16:rcr": _series(0.01), "bf16:crr": _series(0.02)}),
    }
    adaptive = {"means": [2, 3], "powers": {power: [_COMPARED] * 2 for power in powers}}
    return {"selection_regret": regret, "adaptive_k": adaptive}


def test_pages_show_the_committed_results(tables: ModuleType) -> None:
    shown = "".join(page.read_text() for page in tables.PAGES if page.exists())
    assert shown.count("<!-- table: ") >= 11
    assert tables.fill(shown, tables.results()) == shown


def test_every_table_is_rectangular(tables: ModuleType, figures: dict) -> None:
    for benchmark, render in tables.TABLES.values():
        shown = render({**tables.results(), **figures}[benchmark])
        assert len({line.count("|") for line in shown.splitlines()}) == 1


def _render(tables: ModuleType, name: str, figures: dict) -> list[str]:
    benchmark, render = tables.TABLES[name]
    return render(figures[benchmark]).splitlines()


def test_regret_table_shows_k_1_3_5(tables: ModuleType, figures: dict) -> None:
    lines = _render(tables, "regret burst", figures)
    ours = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert ours[0] == "**tilecast**"
    assert ours[1::4] == ["1.2%", "0.41%", "0.25%"]
    assert lines[-1].startswith("| noise floor | 0.10% | 0.40% | 2.0% |")


def test_adaptive_table_sets_both_side_by_side(tables: ModuleType, figures: dict) -> None:
    lines = _render(tables, "adaptive k", figures)
    assert lines[2] == "| **adaptive k**, burst | 0.40%, 2.0% | 0.40%, 2.0% |"
    assert lines[3] == "| fixed k, burst | 0.50%, 3.0% | 0.50%, 3.0% |"
    assert lines[4] == "| fixed k that finds as much, burst | 3.6 | 3.6 |"


def test_common_kernels_by_their_number(tables: ModuleType) -> None:
    shares = {"first": 0.812, "first_five": 0.744, "all_five": 0.5}
    figures = {"layers": {"problems": 65, "covered": {"100": shares, "500": shares}}}
    lines = tables.common_kernels(figures).splitlines()
    assert lines[0].endswith("whole fives | 100 | 500 |")
    assert lines[2] == "| layers (65) | 81% / 74% / 50% | 81% / 74% / 50% |"


def test_fill_replaces_only_what_stands_between_the_marks(
    tables: ModuleType, figures: dict
) -> None:
    text = "before\n<!-- table: cross regime -->\nold\n<!-- end of table -->\nafter\n"
    filled = tables.fill(text, figures)
    assert filled.startswith("before\n<!-- table: cross regime -->\n| chosen by, for |")
    assert filled.endswith("|\n<!-- end of table -->\nafter\n")
    assert tables.fill(filled, figures) == filled


def test_unknown_table_is_named_with_those_allowed(tables: ModuleType, figures: dict) -> None:
    with pytest.raises(TilecastError, match="'regret cold' is not known; allowed: regret burst"):
        tables.fill("<!-- table: regret cold -->\n<!-- end of table -->", figures)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.00%"), (0.00994, "0.99%"), (0.00999, "1.0%"), (0.1234, "12.3%"), (3.45, "345%")],
)
def test_percent(tables: ModuleType, share: float, text: str) -> None:
    assert tables.percent(share) == text


def test_compact_is_json_with_lists_of_numbers_on_one_line(figures: dict) -> None:
    document = figures | {"names": ["a [b]", "c"], "numbers": [1, 2.5]}
    text = runner.compact(document)
    assert json.loads(text) == document
    assert '"numbers": [ 1, 2.5 ]' in text


def test_operands_table_has_each_kind_for_each_power(tables: ModuleType, figures: dict) -> None:
    lines = _render(tables, "operands", figures)
    of_power = "1.0% / 0.33% / 0.20% | 2.0% / 0.67% / 0.40%"
    assert lines[2] == f"| `bf16:rcr` | 12 | {' | '.join([of_power] * 3)} |"
    assert lines[3].startswith("| `bf16:crr` | 3 | 2.0% / 0.67% / 0.40% |")


def test_deferral_stands_below_what_goes_without(tables: ModuleType, figures: dict) -> None:
    shown = tables.deferral(figures["selection_regret"]).splitlines()
    assert shown[2] == "| k = 1, burst, all | 12 |  | 1.100x | 1.2% | 0.95x |"
    assert shown[3] == "| **k = 1 or the library**, burst, all | 12 | 40% | 1.100x | 1.2% | 0.95x |"


def _shown(geomean: float) -> dict[str, dict[str, float]]:
    return {str(k): {"geomean": geomean / k} for k in (1, 3, 5)}


def test_new_operand_table_has_a_row_for_each_number_of_problems(tables: ModuleType) -> None:
    known = {
        "0": {"problems": 0, "minutes": 0.0, "beside others": _shown(0.03)},
        "100": {"problems": 83, "minutes": 2.2}
        | {"beside others": _shown(0.015), "alone": _shown(0.06)},
    }
    lines = tables.new_operand({"2.13.0": {"int8": {"scored": 46, "known": known}}}).splitlines()
    assert lines[2] == "| `int8`, 0 | 0.0 | 3.0% / 1.0% / 0.60% |  |"
    assert lines[3].startswith("| `int8`, 83 | 2.2 | 1.5% / 0.50% / 0.30% | 6.0% / 2.0% / 1.2% |")
