"""A forged model, whether or not its digests fit, is refused in one line or answers as models do.

One process gets 300 of them, one after the other; it must not die, and must not warn.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.candidates import space
from tilecast.models.runtime.artifact import Artifact, save
from tilecast.models.runtime.manifest import MANIFEST, digest_of

COUNT = 300
READER = """
import sys, warnings
from pathlib import Path

import numpy as np

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.runtime.learned import load_heuristic

warnings.simplefilter("error")
gpu, problem = hardware("H200"), GemmProblem(64, 4096, 4096)
configs = candidates(problem, gpu)
for line in sys.stdin:
    try:
        heuristic = load_heuristic(gpu, LINEAR_BF16, folder=Path(line.rstrip()))
        ranking = heuristic.rank(problem, configs)
        sound = set(configs) - heuristic.artifact.failed(LINEAR_BF16)
        assert set(ranking) == sound and len(ranking) == len(sound)
        predictions = heuristic.predict(problem, configs, limit=9)
        assert [p.config for p in predictions] == list(ranking[:9])
        numbers = [x for p in predictions for x in (p.microseconds, p.slowdown)]
        assert np.isfinite(numbers).all() and min(numbers) > 0
        assert 1 <= len(heuristic.shortlist(problem, configs)) <= 8
        reasons = heuristic.explain(problem, configs, ranking[3])
        assert np.isfinite([reason.effect for reason in reasons]).all()
        print("answered")
    except TilecastError as error:
        print("refused", str(error).replace("\\n", "<newline>"))
    except Exception as error:
        print("broke", repr(error).replace("\\n", " "))
    sys.stdout.flush()
"""


def _paths(value: Any, path: tuple = ()) -> list[tuple]:
    """Where something stands in plain data."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, item in inside:
        found.append((*path, key))
        if isinstance(item, dict | list):
            found += _paths(item, (*path, key))
    return found


NASTY = (
    *(None, True, "", "x" * 99, "../x", "\0", [], {}, [[]], {"a": [1]}),
    *(0, -1, 1, 2, 7, 64, 2**31, 2**63, 10**400),
    *(1.5, -0.0, 1e-300, 1e300, float("nan"), float("inf")),
)


def _change_manifest(manifest: dict, source: random.Random) -> None:
    """Put something else in one place of the manifest, or take the place away."""
    places = [path for path in _paths(manifest) if path[0] not in ("sha256", "features")]
    *path, last = source.choice(places)
    inner: Any = manifest
    for key in path:
        inner = inner[key]
    if source.random() < 0.15:
        del inner[last]
    elif source.random() < 0.3 and isinstance(inner[last], int | float):
        inner[last] *= source.choice((-1, 0, 2, 0.5, 1e6))
    else:
        inner[last] = source.choice(NASTY)


def _change_bytes(content: bytearray, source: random.Random) -> bytearray:
    """Flip, overwrite, cut, repeat or insert."""
    at, many = source.randrange(len(content)), source.choice((1, 4, 64, 4096))
    kind = source.randrange(6)
    if kind == 0:
        content[at] ^= 1 << source.randrange(8)
    elif kind == 1:
        content[at : at + many] = source.randbytes(len(content[at : at + many]))
    elif kind == 2:
        del content[at : at + many]
    elif kind == 3:
        content[at:at] = content[at : at + many]
    elif kind == 4:
        # A number that is none, or a huge one, in every fourth byte from here on.
        value = source.choice((float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45))
        at -= at % 4
        content[at : at + 4 * many] = struct.pack("<f", value) * (
            len(content[at:][: 4 * many]) // 4
        )
    else:
        content[at : at + many] = bytes([source.choice((0, 67, 68, 127, 255))]) * many
    return content


def _forge(whole: Path, folder: Path, source: random.Random, *, sign: bool) -> None:
    """A changed copy of a model; with ``sign`` its digests are made to fit."""
    shutil.copytree(whole, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    path = folder / manifest["file"]["name"]
    change = source.choice(("manifest", "manifest", "trees", "trees", "packed", "text"))
    if change == "manifest":
        _change_manifest(manifest, source)
    elif change == "trees":
        trees = _change_bytes(bytearray(gzip.decompress(path.read_bytes())), source)
        path.write_bytes(gzip.compress(trees, 1))
    elif change == "packed":
        path.write_bytes(_change_bytes(bytearray(path.read_bytes()), source))
    if sign and change in ("trees", "packed"):
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        path = path.rename(folder / f"model-{sha256[:12]}.bin.gz")
        manifest["file"] = {"name": path.name, "sha256": sha256}
    if sign:
        manifest["sha256"] = digest_of(manifest)
    text = json.dumps(manifest)
    if change == "text":
        text = _change_bytes(bytearray(text.encode()), source)
        (folder / MANIFEST).write_bytes(text)
    else:
        (folder / MANIFEST).write_text(text)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory):
    """Lets one process load and use the models of some folders, one after the other."""
    with subprocess.Popen(
        [sys.executable, "-c", READER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        asked, answered = process.stdin, process.stdout
        assert asked
        assert answered

        def answer(folder: Path) -> str:
            asked.write(f"{folder}\n")
            asked.flush()
            return answered.readline().rstrip("\n")

        yield answer
        asked.close()
        assert process.wait() == 0
        assert process.stderr
        assert process.stderr.read() == ""


def test_forged_models_are_refused_or_answer(
    ask: Callable[[Path], str], small_model: Artifact, tmp_path: Path
) -> None:
    failing = frozenset(space(LINEAR_BF16, hardware("H200")).configs[::40])
    save(replace(small_model, failing={LINEAR_BF16: failing}), tmp_path / "whole")
    assert ask(tmp_path / "whole") == "answered"
    answered = {True: 0, False: 0}
    for number in range(COUNT):
        signed = number % 2 == 0
        folder = tmp_path / f"forged{number}"
        _forge(tmp_path / "whole", folder, random.Random(number), sign=signed)
        found = ask(folder)
        assert found.startswith(("answered", "refused")), f"{number}: {found}"
        assert "<newline>" not in found
        assert len(found) < 600
        answered[signed] += found == "answered"
        shutil.rmtree(folder)
    # Without a fitting digest only a change that changes nothing passes; with one, what is sound.
    assert answered[False] <= 3
    assert 10 < answered[True] < COUNT / 2 - 30
    assert ask(tmp_path / "whole") == "answered"
