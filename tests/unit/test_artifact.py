"""An artifact reads back as it was, and anything but a whole and fitting one is refused."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.models import artifact as artifacts
from tilecast.models.artifact import MANIFEST, load, load_shipped, save, shipped_names
from tilecast.models.features import FEATURE_NAMES, featurize
from tilecast.models.labels import POWERS


@pytest.fixture
def folder(trained, tmp_path: Path) -> Path:
    save(trained, tmp_path / "model")
    return tmp_path / "model"


def _manifest(folder: Path) -> dict:
    return json.loads((folder / MANIFEST).read_text())


def _rewrite(folder: Path, change: Callable[[dict], object], *, sign: bool = True) -> None:
    """Change the manifest, and make its digest match unless it shall not."""
    manifest = _manifest(folder)
    change(manifest)
    if sign:
        del manifest["sha256"]
        text = json.dumps(manifest, sort_keys=True)
        manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_round_trip_changes_nothing(trained, folder: Path, synthetic_table) -> None:
    again = load(folder)
    assert (again.hardware, again.operands) == (trained.hardware, trained.operands)
    assert (again.calibration, again.facts) == (trained.calibration, trained.facts)
    assert again.rule == trained.rule
    for labels in synthetic_table:
        features = featurize(labels.problem, labels.configs, again.hardware)
        for power in POWERS:
            for ours, theirs in (
                (trained.rankers[power], again.rankers[power]),
                (trained.trees[power], again.trees[power]),
            ):
                np.testing.assert_array_equal(ours.scores(features), theirs.scores(features))
                np.testing.assert_array_equal(ours.order(features), theirs.order(features))
        time = again.rankers["burst"].best_microseconds(features[:1])
        assert time == trained.rankers["burst"].best_microseconds(features[:1])


def test_saving_again_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    save(load(folder), tmp_path / "again")
    for path in folder.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_nothing_on_disk_is_code(folder: Path) -> None:
    assert {path.suffix for path in folder.iterdir()} == {".json", ".gz"}
    for path in folder.glob("*.json"):
        json.loads(path.read_text())


def test_a_new_model_replaces_the_old_files(trained, folder: Path) -> None:
    stale = folder / "robust-distance-0123456789ab.ubj.gz"
    stale.write_bytes(b"of a former model")
    other = folder / "notes.txt"
    other.write_text("not ours")
    save(trained, folder)
    assert not stale.exists()
    assert other.exists()
    load(folder)


def test_a_failed_save_leaves_the_old_model(
    trained, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = artifacts.write_atomically

    def full_disk(path: Path, content) -> None:
        if path.name == MANIFEST:
            raise TilecastError("cannot write: No space left on device")
        write(path, content)

    monkeypatch.setattr(artifacts, "write_atomically", full_disk)
    with pytest.raises(TilecastError, match="No space left"):
        save(trained, folder)
    load(folder)


def test_a_folder_that_cannot_be_made_is_named(trained, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TilecastError, match="cannot write .*; allowed: a writable folder"):
        save(trained, tmp_path / "file" / "model")


@pytest.mark.parametrize(
    "pattern", ["robust-distance-*.ubj.gz", "burst-level-*.ubj.gz", "tree-linear-*.json.gz"]
)
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is cut short or edited"),
        (lambda path: path.write_bytes(b"\0" + path.read_bytes()[1:]), "is cut short or edited"),
        (lambda path: path.write_bytes(b""), "is cut short or edited"),
    ],
)
def test_a_damaged_file_is_refused(folder: Path, pattern: str, damage, reason: str) -> None:
    (path,) = folder.glob(pattern)
    damage(path)
    with pytest.raises(TilecastError) as caught:
        load(folder)
    message = str(caught.value)
    assert path.name in message
    assert reason in message
    assert "; allowed: a whole model" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(artifact_version=0), "its artifact_version is 0, this tilecast has 2"),
        (lambda m: m.update(space_version=99), "its space_version is 99"),
        (lambda m: m.update(features_version=99), "its features_version is 99"),
        (lambda m: m["features"].append("x"), r"its feature list differs .* in \['x'\]"),
        (lambda m: m["features"].reverse(), "its feature list differs .* in the order"),
        (lambda m: m["hardware"].update(l2_bytes=1), "trained with another description of H200"),
        (lambda m: m["hardware"].update(name="B9"), "gpu 'B9' is not known; allowed: H200"),
        (lambda m: m["operands"].update(dtype="int8"), "dtype 'int8' is not known; allowed"),
        (lambda m: m["files"].pop("robust-distance.ubj"), "its contents are not understood"),
        (lambda m: m["settings"].update(depth=1), "its contents are not understood"),
        (lambda m: m.pop("calibration"), "its contents are not understood"),
        (lambda m: m.pop("shortlist"), "its contents are not understood"),
        (lambda m: m["shortlist"]["weights"].pop(), "its contents are not understood"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(folder: Path, change, reason: str) -> None:
    _rewrite(folder, change)
    with pytest.raises(TilecastError, match=reason):
        load(folder)


def test_an_edited_manifest_is_refused(folder: Path) -> None:
    _rewrite(folder, lambda m: m["calibration"].update(robust=[0, 0]), sign=False)
    with pytest.raises(TilecastError, match="manifest.json was edited: its digest does not match"):
        load(folder)


@pytest.mark.parametrize("content", ["", '{"features": [', "[]", "null", "\x00"])
def test_a_manifest_that_is_none_is_refused(folder: Path, content: str) -> None:
    (folder / MANIFEST).write_text(content)
    with pytest.raises(TilecastError, match="is refused: manifest.json .*; allowed: a whole model"):
        load(folder)


def test_an_absent_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TilecastError, match=r"manifest.json cannot be read \(No such file"):
        load(tmp_path / "nowhere")


def test_the_manifest_names_what_a_reader_needs(folder: Path) -> None:
    manifest = _manifest(folder)
    assert manifest["features"] == list(FEATURE_NAMES)
    assert manifest["operands"]["dtype"] == "bfloat16"
    assert manifest["hardware"]["name"] == "H200"
    assert manifest["facts"]["dataset"]["problems"] == 24
    for entry in manifest["files"].values():
        content = (folder / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]


def test_a_model_that_is_not_shipped_names_those_that_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "SHIPPED", folder.parent)
    folder.rename(folder.parent / "H200-bf16-rcr")
    assert shipped_names() == ["H200-bf16-rcr"]
    assert load_shipped(hardware("H200"), LINEAR_BF16).name == "H200-bf16-rcr"
    for gpu, operands in (("H100", LINEAR_BF16), ("H200", GemmOperands.parse("bf16:rrr"))):
        with pytest.raises(TilecastError, match="no model is shipped .*; allowed: H200-bf16-rcr"):
            load_shipped(hardware(gpu), operands)


def test_loading_and_ranking_needs_numpy_alone(folder: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from tilecast.heuristics.hardware import hardware
from tilecast.models.learned import load_heuristic
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
gpu, problem = hardware("H200"), GemmProblem(256, 4096, 4096)
heuristic = load_heuristic(gpu, LINEAR_BF16, folder=Path({str(folder)!r}))
configs = candidates(problem, gpu)
best, *_ = heuristic.predict(problem, configs, limit=5)
heuristic.explain(problem, configs, best.config)
print(*sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    heavy = {"torch", "xgboost", "sklearn", "scipy", "pandas", "pyarrow", "joblib"}
    assert set(process.stdout.split()) & heavy == set()
