"""What only a process of its own shows: closed and full outputs, signals, locales, cold starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from command_line import VALID, wrong_in
from processes import python

from tilecast.data_collection.dataset.dataset import Dataset, write_dataset


def _shell(command: str, **environment: str | bytes) -> subprocess.CompletedProcess[bytes]:
    """Run ``tilecast`` as a shell does, with ``$T`` for what starts it."""
    start = f"{sys.executable} -m tilecast.cli.main"
    names = {os.fsencode(k): os.fsencode(v) for k, v in (os.environ | environment).items()}
    return subprocess.run(
        ["bash", "-c", command], env=names | {b"T": start.encode()}, capture_output=True, timeout=60
    )


@pytest.mark.parametrize(
    "command",
    [
        f"$T space --why {VALID} > /dev/full",
        f"$T space --why {VALID} --json > /dev/full",
        "$T space --help > /dev/full",
        "$T --help > /dev/full",
        f"$T space --why {VALID} >&-",
        "$T space --help >&-",
        "$T space --gpu $'\\xff'",
        "$T $'space\\xc3'",
        "$T space --why=$'a\\x1b[2J\\n\\tb'",
        "$T space --operands=--",
        "$T space $(printf '9%.0s' {1..5000})x8x8",
    ],
)
def test_process_is_refused_in_one_line(command: str) -> None:
    process = _shell(command)
    assert (process.returncode, process.stdout) == (2, b"")
    assert wrong_in(process.stderr.decode()) is None


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_without_standard_error_the_status_still_tells(closed: str) -> None:
    process = _shell(f"$T space --gpu x {closed}")
    assert (process.returncode, process.stdout, process.stderr) == (2, b"", b"")


def test_narrow_locale_is_no_reason_to_fail() -> None:
    process = _shell(
        f"$T space --why {VALID} 8x8x8",
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
    )
    assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.parametrize("form", ["", "--json"])
def test_reader_that_stops_early_gets_no_traceback(form: str) -> None:
    extents = "4096x4096x4096"  # whose candidates fill more than a pipe
    command = f"{sys.executable} -m tilecast.cli.main space {extents} --list {form} | head -1"
    process = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert (process.returncode, process.stderr) == (0, "")


TOLD = """
from tilecast.cli.output.progress import show_progress
from tilecast.data_collection.run.scheduler import Progress

with show_progress("train") as tell:
    for phase in ("check", "measure"):
        tell(Progress(phase, 1, 1, 0, 0.0, 0.0, 2))
print("done")
"""


@pytest.mark.parametrize("colour", ["", "1"], ids=["file", "terminal"])
@pytest.mark.parametrize("stderr", ["2> /dev/full", "2> >(exec true)", "2>&-", "2> /dev/null"])
def test_work_goes_on_where_nobody_hears_of_it(stderr: str, colour: str) -> None:
    """By the environment rich takes whatever it is for a terminal, and shows progress in place."""
    command = f"sleep 0.1; exec {sys.executable} -c '{TOLD}'"
    process = subprocess.run(
        ["bash", "-c", f"exec {stderr}; {command}"],
        env={**os.environ, "FORCE_COLOR": colour},
        capture_output=True,
        text=True,
    )
    assert (process.returncode, process.stdout) == (0, "done\n")


INTERRUPTED = """
import os, signal, sys, threading
import torch
from tilecast.cli.main import main
from tilecast.models.learning import training

def fit(*_, **__):
    if first.acquire(blocking=False):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        torch.ones(64, 64) @ torch.ones(64, 64)

first, training.fit_ranker = threading.Lock(), fit
sys.exit(main())
"""
"""A command that is interrupted while its threads are in native code, as those that fit are."""


def test_train_that_is_interrupted_says_so_and_no_more(
    few_dataset: Dataset, tmp_path: Path
) -> None:
    write_dataset(few_dataset, tmp_path / "few.parquet")
    command = ["train", "--data", str(tmp_path / "few.parquet"), "--out", str(tmp_path / "model")]
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *command, "--jobs", "4"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        # Not as inherited: whoever runs the tests in the background has it ignored.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert (process.returncode, process.stderr) == (130, "tilecast: interrupted\n")
    assert not (tmp_path / "model").exists()


def test_predict_loads_nothing_slow(small_model_folder: Path, tmp_path: Path) -> None:
    """A cold start is quick because of this; the benchmarks measure how quick."""
    own, model = tmp_path / "own.csv", str(small_model_folder)
    own.write_text("m,n,k\n64,4096,4096\n")
    code = (
        "import sys; from tilecast.cli.main import main; "
        f"status = main({['predict', '--problems', str(own), '--model', model]!r}); "
        "slow = {'torch', 'cutlass', 'xgboost', 'sklearn', 'pandas', 'scipy', 'joblib'}; "
        "sys.exit(f'loaded {slow & set(sys.modules)}' if slow & set(sys.modules) else status)"
    )
    assert python(code).stderr == ""
