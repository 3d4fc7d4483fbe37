"""How variables switch tilecast on, or not."""

from __future__ import annotations

import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook.names import switched_on


@pytest.mark.parametrize(
    ("value", "on"),
    [*((v, True) for v in ("1", "true", "Yes", " on ")), *((v, False) for v in ("0", "False"))]
    + [(v, False) for v in ("no", "OFF", "", " ")],
)
def test_a_switch_is_read_strictly(value: str, on: bool) -> None:
    assert switched_on("TILECAST_FUSE", {"TILECAST_FUSE": value}) is on


def test_an_unset_switch_takes_its_default_and_an_unknown_value_is_refused() -> None:
    assert not switched_on("TILECAST_FUSE", {})
    for value in ({}, {"TILECAST_FUSE": ""}):
        assert switched_on("TILECAST_FUSE", value, default=True)
    assert not switched_on("TILECAST_FUSE", {"TILECAST_FUSE": "0"}, default=True)
    with pytest.raises(TilecastError, match="TILECAST_FUSE='2'"):
        switched_on("TILECAST_FUSE", {"TILECAST_FUSE": "2"})
