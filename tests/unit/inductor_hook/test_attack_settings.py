"""Settings of the hook that make no sense: one clear line or stock behaviour, never a traceback.

Each is followed by a compile for the CPU, which gives what it gives without tilecast.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook import eager, install, telemetry, uninstall
from tilecast.inductor_hook.autoload import autoload
from tilecast.inductor_hook.dispatch import switch
from tilecast.inductor_hook.names import VARIABLE
from tilecast.inductor_hook.settings import active

pytestmark = pytest.mark.usefixtures("hook")
SWITCHES = ("TILECAST_FUSE", "TILECAST_EAGER", "TILECAST_INVARIANT")
PATHS = ("TILECAST_MODEL", "TILECAST_RECORD", "TILECAST_LEARN")
REFUSED_K = ("0", "-1", "65", "1.5", "lots", "²", "５", "1_0", "+5", "1e1", "0x5", "9" * 30, "None")
LISTS = ("tilecast", " TILECAST ,", ",,TILECAST", "TILECAST,TILECAST", "aten,Tilecast")
OTHER_LISTS = ("", ",", "TILECASTS", "ATEN;TILECAST", "no such backend,ATEN", "²")

REFUSED = [
    *(("TILECAST_K", value) for value in REFUSED_K),
    *(("TILECAST_POWER", value) for value in ("eco", "BURST", "robust,burst", "0", "²")),
    *((name, value) for name in SWITCHES for value in ("2", "maybe", "y", "²")),
    ("TILECAST_MODEL", "/nowhere"),
    ("TILECAST_MODEL", "/dev/null"),
    ("TILECAST_MODEL", "/etc/passwd"),
    ("TILECAST_MODEL", "nowhere"),
    ("TILECAST_MODEL", "x" * 5000),
    ("TILECAST_MODEL", "~nobody-of-this-name/model"),
    ("TILECAST_RECORD", "own"),
    ("TILECAST_RECORD", "own.db"),
    ("TILECAST_LEARN", "own.csv"),
    ("TILECAST_LEARN", "."),
]
"""Variables and values that keep tilecast from being installed, or switched on."""
TAKEN = [
    *((name, "") for name in ("TILECAST_K", "TILECAST_POWER", *SWITCHES, *PATHS)),
    *(("TILECAST_K", value) for value in (" ", " 5 ", "5\n", "auto", "05")),
    *(("TILECAST_POWER", value) for value in (" ", " burst ")),
    *(("TILECAST_FUSE", value) for value in ("TRUE", " off ", "No")),
    ("TILECAST_RECORD", "/nowhere/own.csv"),
    ("TILECAST_RECORD", "/dev/full.csv"),
    ("TILECAST_LEARN", "/proc/own.jsonl"),
    ("TILECAST_CACHE", ""),
    ("TILECAST_CACHE", "relative"),
    ("TILECAST_CACHE", "/dev/null"),
    ("TILECAST_CACHE", "~nobody-of-this-name"),
    ("LOCAL_WORLD_SIZE", "many"),
]
"""Those that mean something, or matter only where a kernel is compiled or a file written."""
ARGUMENTS: list[dict[str, Any]] = [
    *({"k": value} for value in (0, -1, 65, 5.0, True, "5", "", None, [5], float("nan"))),
    *({"power": value} for value in ("", "eco", None, 5, ["burst"], {})),
    *({"model": value} for value in (5, b"model", ["model"], True, "/nowhere", "x\0y")),
    *({"record": value} for value in (5, b"own.csv", "own", Path("own.db"), ["own.csv"])),
    *({"learn": value} for value in (5, "own.csv", Path("own"))),
    *(
        {name: value}
        for name in ("fuse", "invariant", "rank_nvgemm", "rank_flex_gemm")
        for value in ("no", 1, None)
    ),
]
"""Arguments of `install` that are refused."""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything off before and behind, with no kernels but the CPU's to replace."""
    monkeypatch.setattr(switch, "_KEY", "CPU")
    monkeypatch.setenv(VARIABLE, "ATEN,TILECAST")
    backends = config.max_autotune_gemm_backends
    telemetry._told.clear()
    yield
    eager.disable()
    uninstall()
    config.max_autotune_gemm_backends = backends


def _check_compiled() -> None:
    """That a compiled product is what the eager one is, bit for bit."""
    torch._dynamo.reset()
    a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in SHAPES)
    options: dict[str, Any] = {"max_autotune_gemm": True}
    with torch.no_grad(), config.patch(force_disable_caches=True):
        assert torch.equal(torch.compile(torch.mm, options=options)(a, b), torch.mm(a, b))


SHAPES = ((8, 16), (16, 4))


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of."""
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert not any("\n" in line or "Traceback" in line for line in said), said
    return said


@pytest.mark.parametrize(("variable", "value"), REFUSED)
def test_a_variable_that_is_refused_is_one_line_that_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str
) -> None:
    """And leaves compiles as they are, which is tried once for each variable."""
    monkeypatch.setenv(variable, value)
    # Of that one Inductor hears as it is imported: test_autoload.py.
    alone = variable != "TILECAST_INVARIANT"
    config.max_autotune_gemm_backends = "TILECAST" if alone else "ATEN"
    autoload()
    if value == dict(REFUSED)[variable]:
        _check_compiled()
    (line,) = _lines(caplog)
    assert value[:50] in line or repr(value)[1:-1] in line
    assert active() is None or variable == "TILECAST_EAGER"
    assert (config.max_autotune_gemm_backends == "ATEN") == (active() is None)


@pytest.mark.parametrize(("variable", "value"), TAKEN)
def test_a_variable_that_is_taken_changes_no_result(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    autoload()
    assert active()
    _check_compiled()
    assert len(_lines(caplog)) <= 1


@pytest.mark.parametrize(
    ("backends", "installed"),
    [*((one, True) for one in LISTS), *((one, False) for one in OTHER_LISTS)],
)
def test_a_list_of_backends_names_tilecast_or_not(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    backends: str,
    installed: bool,
) -> None:
    monkeypatch.setenv(VARIABLE, backends)
    autoload()
    assert (active() is not None) == installed
    if installed:
        config.max_autotune_gemm_backends = backends
    _check_compiled()
    assert _lines(caplog) == []


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_an_argument_that_is_refused_is_one_line_that_names_it(
    caplog: pytest.LogCaptureFixture, arguments: dict[str, Any]
) -> None:
    with pytest.raises(TilecastError) as refused:
        install(**arguments)
    (name,), (value,) = arguments, arguments.values()
    line = str(refused.value)
    assert "\n" not in line and "allowed" in line
    assert name in line and (repr(value) in line or str(value) in line)
    assert active() is None and _lines(caplog) == []
