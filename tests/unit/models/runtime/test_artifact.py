"""An artifact reads back as it was, and anything but a whole, sound and fitting one is refused."""

from __future__ import annotations

import gzip
import hashlib
import json
import multiprocessing
import os
import shutil
import tracemalloc
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fixtures import change_manifest
from processes import python

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.operands import K_GROUPS, LINEAR_BF16, ROW_GROUPS, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.features.features import FEATURE_NAMES, featurize
from tilecast.models.runtime import artifact as artifacts
from tilecast.models.runtime import manifest as manifests
from tilecast.models.runtime.artifact import (
    Artifact,
    load,
    load_shipped,
    model_digest,
    save,
    shipped_folders,
    shipped_names,
)
from tilecast.models.runtime.manifest import HARDWARE_FIELDS, MANIFEST
from tilecast.models.runtime.nearest_gpu import borrowed
from tilecast.models.runtime.objectives import OBJECTIVES

H200 = hardware("H200")
N = len(FEATURE_NAMES)


@pytest.fixture
def folder(small_model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_model_folder, tmp_path / "model"))


def _manifest(folder: Path) -> dict:
    return json.loads((folder / MANIFEST).read_text())


def _arrays(folder: Path) -> Path:
    return folder / _manifest(folder)["file"]["name"]


def _replace_arrays(folder: Path, packed: bytes) -> None:
    """Other arrays, with digests that match."""
    sha256 = hashlib.sha256(packed).hexdigest()
    name = f"model-{sha256[:12]}.bin.gz"
    _arrays(folder).unlink()
    (folder / name).write_bytes(packed)
    change_manifest(folder, lambda m: m.update(file={"name": name, "sha256": sha256}))


def test_a_round_trip_changes_nothing(small_model, folder: Path, synthetic_table) -> None:
    again = load(folder)
    assert (again.hardware, again.operands) == (small_model.hardware, small_model.operands)
    assert (again.calibration, again.facts) == (small_model.calibration, small_model.facts)
    assert again.rule == small_model.rule
    assert again.deferral and again.deferral.margins == small_model.deferral.margins
    for regime in REGIMES:
        for of in (lambda model: model.deferral.forests, lambda model: model.times):
            assert of(again)[regime].pack() == of(small_model)[regime].pack()
    for labels in synthetic_table[:4]:
        features = featurize(labels.problem, labels.candidates, again.hardware)
        for objective in OBJECTIVES:
            ours, theirs = (replace(m.ranker, objective=objective) for m in (small_model, again))
            np.testing.assert_array_equal(ours.scores(features), theirs.scores(features))
            np.testing.assert_array_equal(ours.order(features), theirs.order(features))


def test_a_model_that_knows_no_library_is_whole_too(small_model, tmp_path: Path) -> None:
    save(replace(small_model, deferral=None), tmp_path)
    assert load(tmp_path).deferral is None
    assert not any("deferral" in name for name in _manifest(tmp_path)["forests"])


def test_kernels_that_failed_are_kept_and_a_model_without_any_is_as_it_was(
    small_model, folder: Path, tmp_path: Path
) -> None:
    assert "failing" not in _manifest(folder)
    assert load(folder).failing == {}
    failing = {LINEAR_BF16: frozenset(candidates(GemmProblem(64, 4096, 4096), H200)[:2])}
    save(replace(small_model, failing=failing), tmp_path / "other")
    assert load(tmp_path / "other").failing == failing


def test_families_are_kept_and_a_model_that_states_none_knows_the_first_ones(
    small_model, folder: Path, tmp_path: Path
) -> None:
    assert "families" not in _manifest(folder)
    assert load(folder).families == {"quack_sm90", "quack_sm100"}
    families = frozenset(("quack_sm90_memory", "quack_sm90"))
    save(replace(small_model, families=families), tmp_path / "other")
    assert _manifest(tmp_path / "other")["families"] == sorted(families)
    assert load(tmp_path / "other").families == families


def test_a_new_model_replaces_the_old_files(small_model, folder: Path) -> None:
    old = _arrays(folder)
    other = folder / "notes.txt"
    other.write_text("not ours")
    before = model_digest(folder)
    digest = save(_another(small_model), folder)
    assert not old.exists()
    assert other.exists()
    assert digest == model_digest(folder) == load(folder).digest != before
    assert load(folder).ranker.forest.base == 0.5


def _another(model):
    """A model with other trees."""
    forest = replace(model.ranker.forest, base=0.5, value=model.ranker.forest.value / 2)
    return replace(model, ranker=replace(model.ranker, forest=forest))


def test_a_failed_save_leaves_the_old_model(
    small_model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = artifacts.replace_atomically

    def full_disk(path: Path, content) -> None:
        if path.name == MANIFEST:
            raise TilecastError("cannot write: No space left on device")
        write(path, content)

    monkeypatch.setattr(artifacts, "replace_atomically", full_disk)
    with pytest.raises(TilecastError, match="No space left"):
        save(_another(small_model), folder)
    assert load(folder).ranker.forest.base != 0.5


@pytest.mark.parametrize("slope", [99.0, -0.1])
def test_what_could_not_be_read_back_is_not_saved(small_model, folder: Path, slope: float) -> None:
    unsound = replace(small_model, calibration=dict.fromkeys(OBJECTIVES, (0.0, slope)))
    with pytest.raises(TilecastError, match=rf"not understood \(.*{slope} where 0.0 to 3.0"):
        save(unsound, folder)
    assert load(folder).calibration == small_model.calibration


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "the file with its arrays is not there"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is cut short or edited"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "it is no regular file"),
    ],
)
def test_a_damaged_file_is_refused(folder: Path, damage, reason: str) -> None:
    damage(_arrays(folder))
    message = _refused(folder)
    assert reason in message
    assert "; allowed: a whole model" in message


def _refused(folder: Path) -> str:
    with pytest.raises(TilecastError) as caught:
        load(folder)
    message = str(caught.value)
    assert message.startswith(f"model {folder} is refused: ")
    assert len(message) < 500
    assert "\n" not in message
    return message


def test_an_edited_manifest_is_refused(folder: Path) -> None:
    change_manifest(folder, lambda m: m["calibration"].update(robust=[0, 0]), sign=False)
    assert "manifest.json was edited: its digest does not match" in _refused(folder)


@pytest.mark.parametrize(
    "content",
    ["", '{"features": [', "null", "[" * 100_000, "9" * 5000, '{"facts": -Infinity}'],
)
def test_a_manifest_that_is_none_is_refused(folder: Path, content: str) -> None:
    (folder / MANIFEST).write_text(content)
    assert "manifest.json is cut short or edited" in _refused(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m["file"].update(name="../trees.bin.gz"), "not understood"),
        (lambda m: m["file"].update(name=7), "not understood"),
        (lambda m: m["forests"].pop("distance"), "not understood"),
        (lambda m: m["forests"]["distance"].update(trees=0), "0 trees of depth"),
        (lambda m: m["forests"]["distance"].update(trees=9), "bytes that they should"),
        (lambda m: m["forests"]["distance"].update(trees=2**40), "1099511627776 trees of depth"),
        (lambda m: m["forests"]["distance"].update(depth=12.0), "no integers"),
        (lambda m: m["forests"]["distance"].update(base=1e300), "add up to 1e+300"),
        (lambda m: m["forests"]["distance"].update(more=1), "not understood"),
        (lambda m: m["network"].update(widths=[N, 2]), "bytes that they should"),
        (lambda m: m["network"].update(widths=[N, 10**6, 2]), ", 1000000, 2]"),
        (lambda m: m["network"].update(widths=[N, 8, 3]), " to 3 numbers"),
        (lambda m: m["network"].pop("widths"), "KeyError('widths')"),
        (lambda m: m["calibration"].update(robust=[0, 1e9]), "1000000000.0 where"),
        (lambda m: m["calibration"].update(robust=[0]), "not enough values"),
        (lambda m: m["stopping_rule"]["weights"].pop(), "not enough values"),
        (lambda m: m["stopping_rule"]["thresholds"].pop("4"), "KeyError('4')"),
        (lambda m: m["stopping_rule"].update(constant="x"), "x where"),
        (lambda m: m.pop("deferral_margins"), "KeyError('deferral_margins')"),
        (lambda m: m["deferral_margins"].update(burst=-10.1), "-10.1 where -10.0 to 10.0"),
        (lambda m: m["deferral_margins"].pop("burst"), "margins for ['robust', 'sustained']"),
        (lambda m: m.update(deferral_margins={}), "trees ['burst-"),
        (lambda m: m["forests"].pop("burst-deferral"), "trees ['burst-"),
        (lambda m: m.update(facts={}), "facts dataset"),
        (lambda m: m["facts"].update(seen_families=["4096"]), "facts seen_families[0]"),
        (lambda m: m.update(families=[]), "families []"),
        (lambda m: m.update(families="quack_sm90"), "families 'quack_sm90'"),
        (lambda m: m.update(families=["quack_sm90", "another"]), "families ['quack_sm90', 'an"),
        (lambda m: m.update(families=["quack_sm90_memory", "quack_sm90"]), "families ['quack_sm"),
        (lambda m: m.update(families=[1, []]), "TypeError"),
        (lambda m: m.update(failing=[]), "AttributeError"),
        (lambda m: m.update(failing={"bf16:rcr": [[]]}), "TypeError"),
        (lambda m: m.update(failing={"bf16:rcr": {"64x64x64": 1}}), "failing kernels {"),
        (lambda m: m.update(failing={"bf16:rcr": ["b", "a"]}), "failing kernels ['b', 'a']"),
        (lambda m: m.update(failing={"bf16:rcr": ["64x64"]}), "'64x64' is not a config name"),
        (lambda m: m.update(failing={"b16:rcr": []}), "'b16'"),
        (lambda m: m.update(failing={"bf16:rcr": ["a"] * 65_537}), "more than 65536 kernels"),
    ],
)
def test_an_unsound_model_is_refused_though_its_digest_fits(
    folder: Path, change, reason: str
) -> None:
    change_manifest(folder, change)
    message = _refused(folder)
    assert "its contents are not understood" in message
    assert reason in message


def test_packed_arrays_swell_no_further_than_announced(folder: Path) -> None:
    _replace_arrays(folder, gzip.compress(bytes(2**27)))
    tracemalloc.start()
    assert "arrays that do not take the" in _refused(folder)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**24


@pytest.mark.parametrize(
    "change",
    [
        lambda packed: gzip.decompress(packed),
        lambda packed: packed + b"\0",
        lambda packed: packed + gzip.compress(b""),
        lambda packed: packed[:-5] + b"\0\0\0\0\0",
        lambda packed: gzip.compress(gzip.decompress(packed)[:-4]),
        lambda packed: b"",
    ],
)
def test_arrays_that_are_packed_wrongly_are_refused(folder: Path, change) -> None:
    _replace_arrays(folder, change(_arrays(folder).read_bytes()))
    assert "its contents are not understood (ValueError('arrays that " in _refused(folder)


def test_a_file_longer_than_any_model_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "MAX_BYTES", 100)
    assert "it is longer than 0 MiB" in _refused(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(artifact_version=3), "its artifact_version is 3, this tilecast has 9"),
        (lambda m: m.update(space_version="9" * 999), "its space_version is 99999"),
        (lambda m: m.update(features_version=99), "its features_version is 99"),
        (lambda m: m["features"].append("x"), "its feature list differs from this tilecast's"),
        (lambda m: m["features"].reverse(), "its feature list differs from this tilecast's"),
        (lambda m: m.pop("features"), "its contents are not understood (KeyError("),
        (lambda m: m["hardware"].update(l2_bytes=1), "trained with another description of H200"),
        (
            lambda m: m["hardware"].update(name="B 9"),
            "understood (gpu 'B 9' is not described (wrong: name))",
        ),
        (lambda m: m.update(operands=["int9:rcr"]), "not understood (dtype 'int9' is not known"),
        (lambda m: m.update(operands=7), "its contents are not understood (ValueError('operands 7"),
        (lambda m: m.update(measured=["fp16:rcr"]), "measured for more than it was trained on"),
        (lambda m: m.update(operands=["bf16:rcr"] * 2), "not understood (ValueError("),
    ],
)
def test_a_model_that_does_not_fit_is_refused(folder: Path, change, reason: str) -> None:
    change_manifest(folder, change)
    message = _refused(folder)
    assert reason in message
    assert "; train it again with `tilecast train`" in message


def test_features_read_the_fields_that_a_model_holds_for() -> None:
    """A field of `Hardware` that features do not read voids no model.

    What candidates are follows from the architecture, which has a space of its own.
    """
    read = set()

    class Watched(Hardware):
        def __eq__(self, other: object) -> bool:  # caches read no field
            return self is other

        def __hash__(self) -> int:
            return id(self)

        def __getattribute__(self, name: str):
            read.add(name)
            return super().__getattribute__(name)

    watched = Watched(**{f.name: getattr(H200, f.name) for f in fields(Hardware)})
    problem = GemmProblem(1000, 4096, 4096)
    every = candidates(problem, watched, families=["quack_sm90"])
    read.clear()
    featurize(problem, every, watched)
    assert read & {f.name for f in fields(Hardware)} == set(HARDWARE_FIELDS)


def test_a_model_that_is_not_shipped_names_those_that_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "SHIPPED", folder.parent)
    folder.rename(folder.parent / "H200")
    assert shipped_names() == ["H200"]
    assert load_shipped(H200).name == "H200"
    with pytest.raises(TilecastError, match="no model is shipped for H100; allowed: H200;"):
        load_shipped(hardware("H100"))


@pytest.mark.parametrize(
    ("groups", "text"),
    [(ROW_GROUPS, "bf16:rcr:row-groups"), (K_GROUPS, "bf16:crr:k-groups")],
)
def test_a_shipped_model_brings_those_of_groups(
    groups: str, text: str, small_model: Artifact, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "SHIPPED", folder.parent)
    whole = folder.rename(folder.parent / "H200")
    assert not load_shipped(H200).groups
    operands = GemmOperands.parse(text)
    one = replace(small_model, operands=(operands,), measured=(operands,))
    digest = save(one, whole / groups)
    assert (shipped_names(), shipped_folders()) == (["H200"], [whole, whole / groups])
    shipped = load_shipped(H200)
    both = tuple(sorted((LINEAR_BF16, operands), key=str))
    assert shipped.operands == shipped.measured == both
    assert shipped.digest == shipped.of(LINEAR_BF16).digest == load(whole).digest
    assert shipped.of(operands).digest == digest
    lent = borrowed(shipped, replace(H200, name="H20", sm_count=78)).of(operands)
    assert (lent.hardware.name, lent.trained_for, lent.measured) == ("H20", "H200", ())


def _save_in_turn(models: list, folder: Path, times: int) -> None:
    for _ in range(times):
        for model in models:
            save(model, folder)


def test_readers_are_never_refused_during_a_save(
    small_model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = cache(artifacts.pack)  # most of a save, and nothing that a reader sees
    monkeypatch.setattr(artifacts, "pack", lambda trees, net: packed(tuple(trees), net))
    models = [small_model, _another(small_model)]
    digests = {save(model, folder) for model in models}
    writer = multiprocessing.get_context("fork").Process(
        target=_save_in_turn, args=(models, folder, 20)
    )
    writer.start()
    seen = []
    while writer.is_alive():
        seen.append(load(folder).digest)
    writer.join()
    assert set(seen) == digests
    assert sum(a != b for a, b in zip(seen, seen[1:], strict=False)) > 5
    assert len(list(folder.iterdir())) == 2


def test_loading_and_ranking_imports_nothing_that_trains(folder: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.runtime.learned import load_heuristic
gpu, problem = hardware("H200"), GemmProblem(256, 4096, 4096)
heuristic = load_heuristic(gpu, LINEAR_BF16, folder=Path({str(folder)!r}))
configs = candidates(problem, gpu)
best, *_ = heuristic.predict(problem, configs, limit=5)
heuristic.explain(problem, configs, best.config)
heuristic.shortlist(problem, configs), heuristic.first(problem, configs)
print(*sys.modules)
"""
    process = python(code)
    loaded = set(process.stdout.split())
    assert loaded & {"torch", "xgboost", "sklearn", "scipy", "pandas", "pyarrow", "joblib"} == set()
    assert not [name for name in loaded if name.startswith("tilecast.models.learning")]
