"""The table of environment variables has what the code reads, with its values and defaults."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook.names import switched_on
from tilecast.inductor_hook.settings import MOST, Settings, from_environment

ROOT = Path(__file__).parents[2]
FOLDERS = "cli data_collection heuristics inductor_hook kernels models reporting"
PAGE = (ROOT / "docs" / "variables.md").read_text()
ROWS = {
    row[0].strip(" `"): [cell.strip() for cell in row[1:]]
    for row in (line.strip("| ").split(" | ") for line in PAGE.splitlines() if line[:3] == "| `")
}
"""Values, default and meaning by variable."""
ARGUMENTS = {
    **{f"TILECAST_{name.upper()}": name for name in ("k", "fuse", "invariant", "power", "model")},
    **{f"TILECAST_{name.upper()}": name for name in ("record", "learn", "choices")},
}
VALUES = {"switch": ("1", "true", "yes", "on", "0", "false", "no", "off")}


def test_the_table_names_what_the_code_reads() -> None:
    texts = {
        node.value
        for folder in FOLDERS.split()
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    read = {
        text for text in texts if re.fullmatch(r"(TILECAST|TORCH|TORCHINDUCTOR|LOKY)_[A-Z_]+", text)
    }
    tilecasts = {name for name in ROWS if name.startswith("TILECAST_")}
    assert tilecasts == {name for name in read if name.startswith("TILECAST_")}
    assert read <= ROWS.keys()


def test_the_table_has_every_variable_that_a_page_names() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")))
    named = re.findall(
        r"\b(?:TILECAST|TORCH|TORCHINDUCTOR|TRITON|RAY|XDG|LOKY)_[A-Za-z_]+\b", pages
    )
    assert {*named} == ROWS.keys()


def test_every_argument_that_the_environment_sets_is_there() -> None:
    assert set(ARGUMENTS.values()) == from_environment({}).keys()


@pytest.mark.parametrize("variable", ARGUMENTS)
def test_defaults_are_those_of_the_table(variable: str) -> None:
    stated = ROWS[variable][1].strip("`")
    unset = from_environment({variable: ""})
    assert unset == from_environment({})
    argument = ARGUMENTS[variable]
    assert unset[argument] == getattr(Settings(), argument)
    if argument in ("model", "record", "learn", "choices"):
        assert unset[argument] is None
    else:
        assert unset == from_environment({variable: stated})


@pytest.mark.parametrize("variable", [name for name, row in ROWS.items() if row[0] == "switch"])
def test_switches_take_what_the_page_says(variable: str) -> None:
    for value in VALUES["switch"]:
        assert f"`{value}`" in PAGE
        assert switched_on(variable, {variable: value}) is (value in VALUES["switch"][:4])
    with pytest.raises(TilecastError, match=variable):
        switched_on(variable, {variable: "perhaps"})


def test_the_other_values_are_taken_and_no_others() -> None:
    assert ROWS["TILECAST_K"][0] == f"1 to {MOST}, `auto`"
    for value in ("1", str(MOST), "auto"):
        Settings(**from_environment({"TILECAST_K": value}))
    for value in ROWS["TILECAST_POWER"][0].replace("`", "").split(", "):
        Settings(**from_environment({"TILECAST_POWER": value}))
    for wrong in ({"TILECAST_K": "0"}, {"TILECAST_K": str(MOST + 1)}, {"TILECAST_POWER": "cold"}):
        with pytest.raises(TilecastError):
            Settings(**from_environment(wrong))
    for variable, suffix in (("TILECAST_RECORD", ".csv"), ("TILECAST_LEARN", ".jsonl")):
        assert ROWS[variable][0] == f"path of a `{suffix}` file"
        Settings(**from_environment({variable: f"own{suffix}"}))
        with pytest.raises(TilecastError):
            Settings(**from_environment({variable: "own.txt"}))
