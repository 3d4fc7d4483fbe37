"""What is said of work that takes long, where there is no terminal."""

from __future__ import annotations

import pytest

from tilecast.cli.output.progress import show_steps


def test_long_work_is_announced_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with show_steps("train", 6, 700.0) as step:
        step()
    assert capsys.readouterr().err == "train: 6 steps, some 12 minutes\n"


def test_short_work_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with show_steps("compile", 2, 1.8) as step:
        step()
        step()
    assert capsys.readouterr().err == ""


def test_steps_are_told_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter((100.0, 120.0, 140.0))
    monkeypatch.setattr("tilecast.cli.output.progress.time.monotonic", lambda: next(now))
    with show_steps("train", 3, 0.0) as step:
        step()
        step()
    assert capsys.readouterr().err.splitlines() == [
        "train: 1 of 3 steps, 40 s left",
        "train: 2 of 3 steps, 20 s left",
    ]
