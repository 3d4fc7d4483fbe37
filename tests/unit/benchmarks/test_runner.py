"""What every benchmark shares: the form of a result, sweeps, several GPUs, provenance."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runner
import torch

SWEEPS = (
    *("compile_time", "fused_activations", "gated", "inductor_timing", "invariance"),
    *("invariant_models", "invariant_speed", "kernel_speed", "grouped_compiled", "grouped_speed"),
    *("llama_shapes", "real_models", "screen_against_race", "sm100_compiles"),
)


def _count(rows: Any) -> dict[str, Any]:
    return {"n": len(rows)}


def _sweep(measured: list[str], longest: float = 0.0) -> runner.Sweep:
    """A sweep over a, b and c that notes what it measures."""

    @contextmanager
    def measuring() -> Iterator[runner.Measure]:
        def measure(item: int) -> list[runner.Row]:
            measured.append("abc"[item])
            return [{"time": item}]

        yield measure

    return runner.Sweep("problem", {"a": 0, "b": 1, "c": 2}, measuring, _count, longest, {"k": 5})


def _asked(
    out: Path, share: slice = slice(None), seconds: float = 60, only: Sequence[str] = ()
) -> argparse.Namespace:
    return argparse.Namespace(out=out, benchmark="some", share=share, deadline=seconds, only=only)


def test_rows_replace_those_of_the_same_identity(tmp_path: Path) -> None:
    options, sweep = _asked(tmp_path / "result.json"), _sweep([])
    for problem, version, time in (("a", "1", 1), ("b", "1", 2), ("a", "1", 3), ("a", "2", 4)):
        sweep.keep(options, {"problem": problem, "torch": version}, [{"t": time}])
    document = json.loads(options.out.read_text())
    assert document["rows"] == [
        {"problem": "b", "torch": "1", "t": 2},
        {"problem": "a", "torch": "1", "t": 3},
        {"problem": "a", "torch": "2", "t": 4},
    ]
    assert document["figures"] == {"1": {"n": 2}, "2": {"n": 1}}


def test_a_result_grows_by_items_and_keeps_what_it_has(tmp_path: Path) -> None:
    out, measured = tmp_path / "made" / "result.json", []
    _sweep(measured).measure(_asked(out, slice(0, 2)))
    _sweep(measured).measure(_asked(out))
    document = json.loads(out.read_text())
    assert measured == ["a", "b", "c"]
    assert [row["run"] for row in document["rows"]] == [0, 0, 1]
    assert document["figures"] == {torch.__version__: {"n": 3}}
    assert (document["benchmark"], document["settings"]) == ("some", {"k": 5})


def test_a_run_says_where_and_with_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "2")
    monkeypatch.setenv("TILECAST_MODEL", "/home/someone/model")
    _sweep([]).measure(_asked(tmp_path / "result.json"))
    (run,) = json.loads((tmp_path / "result.json").read_text())["provenance"]
    assert {"date", "command", "cpus", "python", "versions", "gpus"} <= run.keys()
    assert run["imported"]["torch"] == torch.__version__
    noted = {"TORCHINDUCTOR_COMPILE_THREADS": "2", "TILECAST_MODEL": "model"}
    assert noted.items() <= run["environment"].items()
    assert run["end"].keys() == {"date", "gpus"}


def test_every_committed_result_has_the_one_form() -> None:
    paths = sorted(runner.RESULTS.rglob("*.json"))
    assert len(paths) >= 11
    for path in paths:
        document = json.loads(path.read_text())
        assert [*document] == ["benchmark", "provenance", "settings", "rows", "figures"]
        assert document["benchmark"] == path.stem
        assert [*runner.RESULTS.parent.glob(f"*/{path.stem}.py")]
        for run in document["provenance"]:
            assert {"date", "command", "cpus", "python", "versions", "gpus"} <= run.keys()
        assert {row["run"] for row in document["rows"]} <= {*range(len(document["provenance"]))}
        assert runner.compact(document) == path.read_text()


@pytest.mark.parametrize("name", SWEEPS)
def test_figures_of_committed_sweeps_follow_from_their_rows(name: str) -> None:
    script = importlib.import_module(name)
    paths = [*runner.RESULTS.rglob(f"{name}.json")]
    assert runner.RESULTS / f"{name}.json" in paths
    for path in paths:
        document = json.loads(path.read_text())
        assert {row["torch"] for row in document["rows"]} == document["figures"].keys()
        for version, figures in document["figures"].items():
            rows = [row for row in document["rows"] if row["torch"] == version]
            assert _near(script.figures(rows), figures)


def _near(found: Any, kept: Any) -> bool:
    """Whether two documents agree, numbers to rounding."""
    if isinstance(kept, dict):
        return found.keys() == kept.keys() and all(_near(found[k], kept[k]) for k in kept)
    return found == (pytest.approx(kept, rel=1e-9) if isinstance(kept, float) else kept)


def test_regret_is_shown_with_how_far_its_mean_is_known() -> None:
    lost = np.array([[0.1, 0.0, 0.0], [0.1, 0.02, 0.0]])
    one, three, five = runner.shown_regret(lost, [(64, 64), (128, 64)]).values()
    assert one == {"geomean": 0.1, "p95": 0.1, "max": 0.1, "error": 0.0}
    # Of two families the mean of a draw is anything from one's loss to the other's.
    assert three["geomean"] == round(1.02**0.5 - 1, 5)
    assert (three["max"], three["error"]) == (0.02, 0.01)
    assert five["error"] == five["max"] == 0.0
    assert runner.shown_regret(lost, [(64, 64)] * 2)["3"]["error"] == 0.0


def test_a_gpu_that_fails_or_hangs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    monkeypatch.setattr("sys.argv", [str(script)])
    script.write_text("import sys; sys.exit(3)")
    with pytest.raises(subprocess.CalledProcessError):
        runner.over_gpus(1, _asked(tmp_path / "out.json", seconds=5))
    monkeypatch.setattr(runner, "PROCESS_SECONDS", 0.1)
    script.write_text("import time; time.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired):
        runner.over_gpus(1, _asked(tmp_path / "out.json", seconds=0.1))


def test_items_are_asked_for_by_a_part_of_their_name() -> None:
    assert _sweep([]).named(["c", "a"]) == [("c", 2), ("a", 0)]


def test_shares_are_all_items_once() -> None:
    parts = [list(range(10))[runner.share(f"{i}/3")] for i in range(3)]
    assert parts == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


@pytest.mark.parametrize("text", ["", "3", "a/b", "-1/2", "1/2/3", "2/2", "0/0"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="allowed: I/N"):
        runner.share(text)


def test_scripts_import_their_folder_and_the_shared_one_alone() -> None:
    floors = {path.stem: path.parent.name for path in runner.RESULTS.parent.glob("*/*.py")}
    for path in runner.RESULTS.parent.glob("*/*.py"):
        text = path.read_text()
        found = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)) & floors.keys()
        assert {floors[name] for name in found} <= {path.parent.name, "shared"}
        if "__main__" in text:
            assert 'parents[1] / "shared"' in text
