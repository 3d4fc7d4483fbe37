"""``tilecast compile`` with real compilers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Answer = Callable[..., dict]


def test_compile_builds_once(answer: Answer, tmp_path: Path) -> None:
    command = ("compile", "64x4096x4096", "-k", "1", "--cache", str(tmp_path), "--workers", "1")
    first = answer(*command)
    assert (first["compiled"], first["found"], first["failed"]) == (1, 0, 0)
    (kernel,) = first["kernels"]
    assert kernel["registers"] == 168
    assert kernel["spill_bytes"] == 0
    assert Path(tmp_path, f"{kernel['key']}.o").is_file()
    again = answer(*command)
    assert (again["compiled"], again["found"], again["failed"]) == (0, 1, 0)
