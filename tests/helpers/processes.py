"""Processes that tests start and wait for."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code, which has to succeed; gives the process that has ended.

    Args:
        code: of Python.
        arguments: what it finds in ``sys.argv`` after the first.
        environment: variables beside those of this process, of which tilecast's are left out.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TILECAST_")}
    process = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=ours | environment,
    )
    assert process.returncode == 0, process.stderr
    return process


def started(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """A process of Python with some arguments, and variables beside those of this process."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def printed(*processes: subprocess.Popen[str]) -> list[list[str]]:
    """The lines that some processes print, each of which has to succeed within 5 minutes.

    All are listened to at once, and where one fails the others are killed: they may wait for it.
    """

    failed = []

    def listen(process: subprocess.Popen[str]) -> list[str]:
        try:
            output, errors = process.communicate(timeout=300)
            if process.returncode != 0:
                failed.append(errors)
        finally:
            if process.returncode != 0:
                for one in processes:
                    one.kill()
        return output.splitlines()

    with ThreadPoolExecutor(len(processes)) as pool:
        lines = [*pool.map(listen, processes)]
    assert not failed, failed[0]
    return lines


def alive(process: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(met: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for something that has to come about within some seconds."""
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)
