"""Headless Chromium, by the WebDriver protocol: opens a page and says what became of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

_FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
    "disable-background-networking", "disable-component-update", "disable-sync",
    "disable-dev-shm-usage", "window-size=1200,900",
)  # fmt: skip


class Browser:
    """One window."""

    def __init__(self, address: str):
        """Open it through a driver."""
        flags = [f"--{flag}" for flag in _FLAGS]
        wanted = {
            "goog:chromeOptions": {"args": flags, "binary": CHROMIUM},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self._session = address
        opened = self._ask("", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"{address}/{opened['sessionId']}"

    def _ask(self, path: str, body: dict[str, object] | None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self._session + path, data, method=method), timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, file: Path, *, dark: bool = False, seconds: float = 30.0) -> int:
        """Show a page until its plots are drawn; how many milliseconds the first one took."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        command = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}}
        self._ask("/goog/cdp/execute", command)
        self._ask("/url", {"url": file.as_uri()})
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.run("return document.body?.dataset.drawn"):
                return int(self.run("return document.body.dataset.opened"))
            time.sleep(0.05)
        raise AssertionError(f"nothing was drawn in {seconds} s: {self.complaints()}")

    def run(self, script: str) -> Any:
        """What a function with this body returns on the page."""
        return self._ask("/execute/sync", {"script": script, "args": []})

    def complaints(self) -> list[str]:
        """What was written to the console since the last look, warnings and errors."""
        log = self._ask("/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        """Every address that was asked for since the last look."""
        log = self._ask("/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in log]
        sent = [one for one in messages if one["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in sent]

    def close(self) -> None:
        """Close it."""
        self._ask("", None, "DELETE")


@contextmanager
def browser() -> Iterator[Browser]:
    """A window that is closed in the end, and its driver ended."""
    assert DRIVER
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout
        said = (re.search(r"started successfully on port (\d+)", line) for line in driver.stdout)
        port = next(found[1] for found in said if found)
        window = Browser(f"http://127.0.0.1:{port}/session")
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait(timeout=10)
