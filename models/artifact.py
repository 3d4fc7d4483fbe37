"""A trained model on disk: boosters as UBJSON, trees as JSON, both packed, and a manifest of them.

It is data and never code: nothing here unpickles. The manifest is written last and names each file
by its digest, so a reader finds the old model or the new one, and an edited or cut file is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmOperands
from tilecast.kernels.candidates import SPACE_VERSION
from tilecast.models.booster import Booster
from tilecast.models.features import FEATURE_NAMES, FEATURES_VERSION
from tilecast.models.labels import POWERS
from tilecast.models.ranker import ConfigRanker
from tilecast.models.shortlist import ShortlistRule
from tilecast.models.tree_linear import TreeLinearRanker

ARTIFACT_VERSION = 2
"""Raised when the files of an artifact, or what its manifest must say, change."""
MANIFEST = "manifest.json"
SHIPPED = Path(__file__).with_name("artifacts")
"""The models that come with the package, one folder each."""


@dataclass(frozen=True, eq=False)
class Artifact:
    """Everything that predicting for one GPU, dtype and layout takes."""

    hardware: Hardware
    """The GPU that it was trained for."""
    operands: GemmOperands
    """The dtypes and majors that it was trained for."""
    rankers: Mapping[str, ConfigRanker]
    """The fitted ranker of each power."""
    trees: Mapping[str, TreeLinearRanker]
    """The readable alternative of each power."""
    calibration: Mapping[str, tuple[float, float]]
    """For each power a and b of: expected log slowdown = a + b x (score - best score), held out."""
    rule: ShortlistRule
    """How many candidates a problem deserves."""
    facts: Mapping[str, object]
    """Data set, versions, seed and held-out metrics, as plain data."""

    @property
    def name(self) -> str:
        """Name of its folder among the shipped ones, such as ``H200-bfloat16-rcr``."""
        return artifact_name(self.hardware, self.operands)


def artifact_name(gpu: Hardware, operands: GemmOperands) -> str:
    """Name of the folder that a model of a GPU, dtype and layout is shipped in."""
    return f"{gpu.name}-{operands.dtype}-{operands.layout}"


def shipped_names() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{MANIFEST}"))


def load_shipped(gpu: Hardware, operands: GemmOperands) -> Artifact:
    """Load the model that comes with the package.

    Raises:
        TilecastError: there is none for this GPU, dtype and layout, or it is damaged.
    """
    name = artifact_name(gpu, operands)
    if name not in shipped_names():
        raise TilecastError(
            f"no model is shipped for {name} (GPU, dtype, layout); allowed: "
            f"{', '.join(shipped_names()) or 'none so far'}; measure with `tilecast collect`, "
            "train with `tilecast train` and name the model's folder"
        )
    return load(SHIPPED / name)


def save(artifact: Artifact, folder: Path) -> None:
    """Write an artifact, replacing the one that is there.

    Raises:
        TilecastError: the folder is read-only or the disk is full; what was there stays whole.
    """
    contents = _contents(artifact)
    files = {}
    for name, content in contents.items():
        # Without a time stamp, so that the same model gives the same bytes.
        packed = gzip.compress(content, mtime=0)
        digest = hashlib.sha256(packed).hexdigest()
        stem, suffix = name.split(".")
        files[name] = {"file": f"{stem}-{digest[:12]}.{suffix}.gz", "sha256": digest}
        write_atomically(folder / files[name]["file"], _writer(packed))
    manifest = {
        "artifact_version": ARTIFACT_VERSION,
        "hardware": _hardware_facts(artifact.hardware),
        "operands": asdict(artifact.operands),
        "space_version": SPACE_VERSION,
        "features_version": FEATURES_VERSION,
        "features": list(FEATURE_NAMES),
        "calibration": {power: list(line) for power, line in artifact.calibration.items()},
        "shortlist": json.loads(json.dumps(asdict(artifact.rule))),
        "settings": _settings(artifact),
        "files": files,
        "facts": artifact.facts,
    }
    manifest["sha256"] = _digest(manifest)
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    write_atomically(folder / MANIFEST, _writer(text.encode()))
    current = {entry["file"] for entry in files.values()}
    for name in contents:
        stem, suffix = name.split(".")
        for path in folder.glob(f"{stem}-{'[0-9a-f]' * 12}.{suffix}.gz"):
            if path.name not in current:
                path.unlink()


def load(folder: Path) -> Artifact:
    """Read an artifact and check that it is whole and fits this version.

    Raises:
        TilecastError: a file is absent, cut short or edited, or it was made for another artifact,
            space or feature version, feature list or description of the GPU.
    """
    manifest = _manifest(folder)
    try:
        contents = {
            name: _content(folder / entry["file"], entry["sha256"])
            for name, entry in manifest["files"].items()
        }
        gpu, operands = hardware(manifest["hardware"]["name"]), GemmOperands(**manifest["operands"])
        settings = manifest["settings"]
        trees = json.loads(contents["tree-linear.json"])
        return Artifact(
            gpu,
            operands,
            {power: _ranker(gpu, power, settings, contents) for power in POWERS},
            {power: TreeLinearRanker(gpu, power).restore(trees[power]) for power in POWERS},
            {power: (line[0], line[1]) for power, line in manifest["calibration"].items()},
            _rule(manifest["shortlist"]),
            manifest["facts"],
        )
    except (LookupError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise _refused(folder, f"its contents are not understood ({error!r})") from error


def _contents(artifact: Artifact) -> dict[str, bytes]:
    """The data files by their plain names."""
    files = {}
    for power in POWERS:
        ranker = artifact.rankers[power]
        files[f"{power}-distance.ubj"] = ranker.distance_.model
        files[f"{power}-order.ubj"] = ranker.order_.model
        if ranker.level_ is not None:
            files[f"{power}-level.ubj"] = ranker.level_.model
    trees = {power: artifact.trees[power].state() for power in POWERS}
    files["tree-linear.json"] = json.dumps(trees, sort_keys=True).encode()
    return files


def _ranker(
    gpu: Hardware, power: str, settings: Mapping[str, Any], contents: Mapping[str, bytes]
) -> ConfigRanker:
    ranker = ConfigRanker(gpu, power, **settings)
    ranker.distance_ = Booster(contents[f"{power}-distance.ubj"])
    ranker.order_ = Booster(contents[f"{power}-order.ubj"])
    level = contents.get(f"{power}-level.ubj")
    ranker.level_ = None if level is None else Booster(level)
    return ranker


def _rule(facts: Mapping[str, Any]) -> ShortlistRule:
    weights = facts["weights"]
    least = {int(mean): bound for mean, bound in facts["least"].items()}
    return ShortlistRule(facts["constant"], (weights[0], weights[1], weights[2]), least)


def _settings(artifact: Artifact) -> dict[str, float]:
    """What a ranker needs to know beside its boosters."""
    ranker = artifact.rankers[POWERS[0]]
    names = ("entrants", "coarse_rounds", "survivors", "blend")
    return {name: getattr(ranker, name) for name in names}


def _hardware_facts(gpu: Hardware) -> dict[str, object]:
    """The GPU as plain JSON data: features depend on its numbers."""
    return json.loads(json.dumps(asdict(gpu)))


def _digest(manifest: Mapping[str, object]) -> str:
    """SHA-256 of a manifest without its own digest."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _writer(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _manifest(folder: Path) -> dict:
    """The manifest, once it is known to be whole and to fit."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except OSError as error:
        raise _refused(folder, f"{MANIFEST} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise _refused(folder, f"{MANIFEST} is cut short or edited ({error})") from error
    if not isinstance(manifest, dict):
        raise _refused(folder, f"{MANIFEST} is no JSON object")
    for name, ours in (
        ("artifact_version", ARTIFACT_VERSION),
        ("features_version", FEATURES_VERSION),
        ("space_version", SPACE_VERSION),
    ):
        if manifest.get(name) != ours:
            raise _refused(folder, f"its {name} is {manifest.get(name)}, this tilecast has {ours}")
    if manifest.get("sha256") != _digest(manifest):
        raise _refused(folder, f"{MANIFEST} was edited: its digest does not match")
    theirs, ours = manifest["features"], list(FEATURE_NAMES)
    if theirs != ours:
        other = sorted(set(theirs) ^ set(ours)) or "the order"
        raise _refused(folder, f"its feature list differs from this tilecast's in {other}")
    gpu = hardware(manifest["hardware"]["name"])
    if manifest["hardware"] != _hardware_facts(gpu):
        raise _refused(folder, f"it was trained with another description of {gpu.name}")
    return manifest


def _content(path: Path, sha256: str) -> bytes:
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise _refused(path.parent, f"{path.name} cannot be read ({error.strerror})") from error
    if hashlib.sha256(packed).hexdigest() != sha256:
        raise _refused(
            path.parent, f"{path.name} is cut short or edited: its digest does not match"
        )
    return gzip.decompress(packed)


def _refused(folder: Path, reason: str) -> TilecastError:
    return TilecastError(
        f"model {folder} is refused: {reason}; allowed: a whole model that this version of "
        "tilecast wrote; train it again with `tilecast train` or reinstall tilecast"
    )
