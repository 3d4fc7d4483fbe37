"""A trained model on disk: trees and network as packed arrays, and a manifest that describes them.

It is data and never code: nothing here unpickles, and the arrays are handed to no library. The
manifest is written last and names the arrays by their digest, so a reader finds the old model or
the new one, and an edited or cut file is refused. The digest has no key: whoever may write the
folder may put a model there, so all that is read is also checked to be sound.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import replace_atomically
from tilecast.heuristics.hardware import Hardware, described
from tilecast.heuristics.operands import GemmOperands
from tilecast.models.features.features import FEATURE_NAMES
from tilecast.models.learning.labels import POWERS
from tilecast.models.runtime.deferral import DEFERRAL_FEATURES, MOST_MARGIN, Deferral
from tilecast.models.runtime.forest import Forest
from tilecast.models.runtime.manifest import (
    MANIFEST,
    VERSIONS,
    digest_of,
    learned_from,
    number,
    read_bytes,
    read_manifest,
    refuse,
    understood,
)
from tilecast.models.runtime.packed_arrays import pack, shapes_of, unpack
from tilecast.models.runtime.ranker import ConfigRanker
from tilecast.models.runtime.stopping import MEANS, MOST_WEIGHT, StoppingRule

SHIPPED = Path(__file__).parents[1].joinpath("artifacts")
"""The models that come with the package, one folder each."""

_FORESTS = {
    f"{power}-{part}": (power, f"{part}_")
    for power in sorted(POWERS)
    for part in ("distance", "level")
    if (power, part) != ("robust", "level")
}
"""The trees of a model's rankers, in the order in which they are packed: whose, its attribute."""
_LIBRARY = "{}-library"
"""The name of the trees behind those: of a power's deferral, where a model has one."""
_FILE = re.compile(r"model-[0-9a-f]{12}\.bin\.gz")
_SETTINGS = {
    "entrants": (1, 2**20),
    "coarse_rounds": (1, 2**20),
    "survivors": (1, 2**20),
    "blend": (0.0, 1.0),
}
"""What a ranker needs to know beside its arrays, with the least and the most of it."""
INTERCEPT, SLOPE = (-10.0, 10.0), (0.0, 3.0)
"""Bounds of a calibration: no predicted time is beyond a float, nor falls along a ranking."""
_WEIGHT = (-MOST_WEIGHT, MOST_WEIGHT)
_MARGIN = (-MOST_MARGIN, MOST_MARGIN)


@dataclass(frozen=True, eq=False)
class Artifact:
    """Everything that predicting for one GPU takes."""

    hardware: Hardware
    """The GPU that it ranks for: the one that it was trained for, but where it is lent."""
    operands: tuple[GemmOperands, ...]
    """The kinds of operands that it was trained on, sorted by their texts."""
    measured: tuple[GemmOperands, ...]
    """Those of them that were timed on its own GPU: what it may decide without a benchmark."""
    rankers: Mapping[str, ConfigRanker]
    """The fitted ranker of each power."""
    calibration: Mapping[str, tuple[float, float]]
    """For each power a and b of: expected log slowdown = a + b x (score - best score), held out."""
    rule: StoppingRule
    """How many candidates a problem deserves."""
    deferrals: Mapping[str, Deferral]
    """For each power which problems are left to the library; none where that was not timed."""
    facts: Mapping[str, object]
    """Data set, versions (the library's, too), seed and held-out metrics, as plain data."""
    digest: str | None = None
    """SHA-256 that its manifest states; None before it is saved."""
    lender: str | None = None
    """The GPU that it was trained for, where it is lent to another one."""

    @property
    def name(self) -> str:
        """Name of its folder among the shipped ones: that of the GPU that it was trained for."""
        return self.lender or self.hardware.name


def shipped_names() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{MANIFEST}"))


def load_shipped(gpu: Hardware, *, digest: str | None = None) -> Artifact:
    """`load` the model for a GPU that comes with the package.

    Raises:
        TilecastError: there is none for this GPU, or `load` refuses it.
    """
    if gpu.name not in shipped_names():
        raise TilecastError(
            f"no model is shipped for {gpu.name}; allowed: "
            f"{', '.join(shipped_names()) or 'none so far'}; measure with `tilecast collect`, "
            "train with `tilecast train` and name the model's folder"
        )
    return load(SHIPPED / gpu.name, digest=digest)


def save(artifact: Artifact, folder: Path) -> str:
    """Write an artifact, replacing the one that is there.

    Returns:
        Its digest.

    Raises:
        TilecastError: the folder is read-only, the disk is full, or the model could not be read
            back; what was there stays whole.
    """
    forests, network = _forests(artifact), artifact.rankers[POWERS[0]].network_
    packed = pack(forests.values(), network)
    shapes = shapes_of(forests, network)
    manifest = _manifest(artifact, shapes, hashlib.sha256(packed).hexdigest())
    with understood(folder):
        _artifact(manifest, packed)
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    replaced = None
    with suppress(TilecastError):
        replaced, _ = _arrays(folder, read_manifest(folder))
    data = folder / manifest["file"]["name"]
    replace_atomically(data, lambda path: path.write_bytes(packed))
    replace_atomically(folder / MANIFEST, lambda path: path.write_text(text, encoding="utf-8"))
    if replaced is not None and replaced != data:
        replaced.unlink(missing_ok=True)
    return manifest["sha256"]


def load(folder: Path, *, digest: str | None = None) -> Artifact:
    """Read an artifact and check that it is whole, sound and fits this version.

    Args:
        folder: where it is.
        digest: which model is wanted, as `model_digest` told it earlier; any when left out.

    Raises:
        TilecastError: a file is absent, cut short, edited or unsound; it was made for another
            artifact, space or feature version, feature list or description of the GPU; or it is not
            the model of ``digest``.
    """
    while True:
        version = _version(folder)
        manifest = read_manifest(folder)
        if digest is not None and manifest["sha256"] != digest:
            raise TilecastError(
                f"model {folder} is not the one that was asked for: its digest is "
                f"{manifest['sha256'][:16]}; allowed: {digest[:16]}; it was replaced since, so "
                "start anew, or put the former model back"
            )
        path, sha256 = _arrays(folder, manifest)
        try:
            packed = read_bytes(path)
        except FileNotFoundError:
            # Another process may have put a new model there since: then that one is read.
            if _version(folder) != version:
                continue
            refuse(folder, "the file with its arrays is not there")
        except OSError as error:
            refuse(folder, f"{path.name} cannot be read ({error.strerror})")
        if hashlib.sha256(packed).hexdigest() != sha256:
            refuse(folder, f"{path.name} is cut short or edited: its digest does not match")
        with understood(folder):
            return _artifact(manifest, packed)


def model_digest(folder: Path) -> str:
    """What identifies the model in a folder: the SHA-256 that its manifest states.

    Raises:
        TilecastError: `load` would refuse its manifest.
    """
    return read_manifest(folder)["sha256"]


def _forests(artifact: Artifact) -> dict[str, Forest]:
    """All trees of a model by name, in the order in which they are packed."""
    rankers = artifact.rankers
    forests = {name: getattr(rankers[power], part) for name, (power, part) in _FORESTS.items()}
    deferrals = sorted(artifact.deferrals.items())
    return forests | {_LIBRARY.format(power): one.forest for power, one in deferrals}


def _manifest(artifact: Artifact, shapes: Mapping[str, object], sha256: str) -> dict[str, Any]:
    ranker, rule = artifact.rankers[POWERS[0]], artifact.rule
    manifest: dict[str, Any] = {
        **VERSIONS,
        "hardware": artifact.hardware.facts(),
        "operands": [operands.text for operands in artifact.operands],
        "measured": [operands.text for operands in artifact.measured],
        "features": list(FEATURE_NAMES),
        **shapes,
        "file": {"name": f"model-{sha256[:12]}.bin.gz", "sha256": sha256},
        "settings": {name: getattr(ranker, name) for name in _SETTINGS},
        "calibration": {power: list(line) for power, line in artifact.calibration.items()},
        "stopping_rule": {
            "constant": rule.constant,
            "weights": list(rule.weights),
            "thresholds": {str(mean): bound for mean, bound in rule.thresholds.items()},
        },
        "deferral_margins": {power: one.margin for power, one in artifact.deferrals.items()},
        "facts": artifact.facts,
    }
    return manifest | {"sha256": digest_of(manifest)}


def _artifact(manifest: Mapping[str, Any], packed: bytes) -> Artifact:
    """What a manifest and its arrays say.

    Raises:
        LookupError, TypeError, ValueError: they say it wrongly, or it is unsound.
    """
    gpu = described(manifest["hardware"])
    settings = {
        name: number(manifest["settings"][name], *bounds) for name, bounds in _SETTINGS.items()
    }
    rankers = {power: ConfigRanker(gpu, power, **settings) for power in POWERS}
    margins = {
        power: number(margin, *_MARGIN) for power, margin in manifest["deferral_margins"].items()
    }
    if margins and margins.keys() != set(POWERS):
        raise ValueError(f"margins for {sorted(margins)}")
    forests, network = unpack(manifest, packed, _columns(margins), len(POWERS))
    for name, (power, part) in _FORESTS.items():
        setattr(rankers[power], part, forests[name])
    for ranker in rankers.values():
        ranker.network_ = network
    lines = {power: manifest["calibration"][power] for power in POWERS}
    rule = manifest["stopping_rule"]
    first, second, third, fourth = (number(weight, *_WEIGHT) for weight in rule["weights"])
    thresholds = {mean: number(rule["thresholds"][str(mean)], *_WEIGHT) for mean in MEANS}
    learned_from(manifest["facts"])
    operands, measured = _kinds(manifest["operands"]), _kinds(manifest["measured"])
    if not set(measured) <= set(operands):
        raise ValueError("it was measured for more than it was trained on")
    return Artifact(
        gpu,
        operands,
        measured,
        rankers,
        {power: (number(a, *INTERCEPT), number(b, *SLOPE)) for power, (a, b) in lines.items()},
        StoppingRule(
            number(rule["constant"], *_WEIGHT), (first, second, third, fourth), thresholds
        ),
        {power: Deferral(forests[_LIBRARY.format(power)], margins[power]) for power in margins},
        manifest["facts"],
        manifest["sha256"],
    )


def _kinds(texts: object) -> tuple[GemmOperands, ...]:
    if not isinstance(texts, list) or not texts or texts != sorted(set(texts)):
        raise ValueError(f"operands {texts!r:.100}")
    return tuple(map(GemmOperands.parse, texts))


def _columns(powers: Iterable[str]) -> dict[str, int]:
    """How many features each of a model's sets of trees reads, in the order of packing.

    Args:
        powers: those with a deferral.
    """
    library = {_LIBRARY.format(power): DEFERRAL_FEATURES for power in sorted(powers)}
    return dict.fromkeys(_FORESTS, len(FEATURE_NAMES)) | library


def _arrays(folder: Path, manifest: Mapping[str, Any]) -> tuple[Path, str]:
    """The file with the arrays that a manifest speaks of, and the digest that it shall have."""
    with understood(folder):
        name, sha256 = manifest["file"]["name"], manifest["file"]["sha256"]
        if not _FILE.fullmatch(name):
            raise ValueError(f"file {name}")
        return folder / name, sha256


def _version(folder: Path) -> tuple[int, int]:
    """What changes whenever a manifest is replaced."""
    try:
        stat = (folder / MANIFEST).stat()
    except (OSError, ValueError):
        return (0, 0)
    return (stat.st_ino, stat.st_mtime_ns)
