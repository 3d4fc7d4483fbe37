"""A trained model on disk: trees and network as packed arrays, and a manifest that describes them.

It is data and never code: nothing here unpickles, and the arrays are handed to no other package.
The manifest is written last and names the arrays by their digest, so a reader finds the old model
or the new one, and an edited or cut file is refused. The digest has no key: whoever may write the
folder may put a model there, so everything that is read is also checked to be sound.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import read_whole, replace_atomically
from tilecast.heuristics.hardware import Hardware, described
from tilecast.heuristics.operands import GROUPS, GemmOperands
from tilecast.kernels.families import FAMILIES, UNSTATED, parse_config
from tilecast.models.features.features import FEATURE_NAMES
from tilecast.models.runtime.deferral import DEFERRAL_FEATURES, MOST_MARGIN, Deferral
from tilecast.models.runtime.forest import Forest
from tilecast.models.runtime.manifest import (
    MANIFEST,
    MAX_BYTES,
    VERSIONS,
    check_facts,
    digest_of,
    number,
    read_manifest,
    refuse,
    understood,
)
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.packed_arrays import pack, shapes_of, unpack
from tilecast.models.runtime.ranker import ConfigRanker
from tilecast.models.runtime.stopping import MEANS, MOST_WEIGHT, StoppingRule

SHIPPED = Path(__file__).parents[1].joinpath("artifacts")
"""The models that come with the package, a folder for each GPU."""

_RANKER = "distance"
"""The name of the ranker's trees, which are packed first."""
_TIMES = {f"{regime}-level": regime for regime in REGIMES}
"""Those of the trees that predict times, which come next."""
_DEFERRAL = {f"{regime}-deferral": regime for regime in REGIMES}
"""Those of the trees that predict a lead over cuBLAS, last, where a model has them."""
_FILE = re.compile(r"model-[0-9a-f]{12}\.bin\.gz")
INTERCEPT, SLOPE = (-10.0, 10.0), (0.0, 3.0)
"""Bounds of a calibration: no predicted time is beyond a float, nor falls along a ranking."""
_WEIGHT = (-MOST_WEIGHT, MOST_WEIGHT)
_MARGIN = (-MOST_MARGIN, MOST_MARGIN)
_MOST_FAILING = 65_536
"""Kernels that a model may say failed: more than there are configs for any operands, many times."""


@dataclass(frozen=True, eq=False)
class Artifact:
    """Everything that predicting for one GPU takes."""

    hardware: Hardware
    """The GPU that it ranks for: the one that it was trained for, unless another borrows it."""
    operands: tuple[GemmOperands, ...]
    """The kinds of operands that it was trained on, sorted by their texts."""
    measured: tuple[GemmOperands, ...]
    """Those of them that were timed on its own GPU: what it may decide without a benchmark."""
    ranker: ConfigRanker
    """The fitted ranker, for ``robust``."""
    times: Mapping[str, Forest]
    """For each regime trees that predict log(time / analytic time) of good configs."""
    calibration: Mapping[str, tuple[float, float]]
    """For each objective a and b of: expected log slowdown = a + b x (score - best score)."""
    rule: StoppingRule
    """How many candidates a problem deserves."""
    deferral: Deferral | None
    """Which problems are left to cuBLAS; None where cuBLAS was not timed."""
    facts: Mapping[str, object]
    """Data set, versions (cuBLAS's, too), seed and held-out metrics, as plain data."""
    failing: Mapping[GemmOperands, frozenset[KernelConfig]] = field(default_factory=dict)
    """The configs whose kernels a collection on its GPU found wrong, hanging or crashing, or that
    do not compile, by the operands of those kernels; see `failed`."""
    families: frozenset[str] = UNSTATED
    """The kernel families that it has times of: it ranks configs of no others."""
    digest: str | None = None
    """SHA-256 that its manifest states; None before it is saved."""
    trained_for: str | None = None
    """The GPU that it was trained for, where another one borrows it."""
    groups: Mapping[str, Artifact] = field(default_factory=dict)
    """The models of groups that have one of their own, by what comes in groups
    (`tilecast.heuristics.operands.GROUPS`); their operands are among this one's."""

    def failed(self, operands: GemmOperands) -> frozenset[KernelConfig]:
        """The configs that are never chosen: one of their kernels failed with such an A and B.

        Its main loop is the same whatever is done to its sums, and however they are added up.
        """
        inputs = operands.a, operands.b
        alike = (configs for one, configs in self.failing.items() if (one.a, one.b) == inputs)
        return frozenset().union(*alike)

    @property
    def name(self) -> str:
        """Name of its folder among the shipped ones: that of the GPU that it was trained for."""
        return self.trained_for or self.hardware.name

    def of(self, operands: GemmOperands) -> Artifact:
        """The model of some operands: this one, or that of their groups."""
        return self.groups.get(operands.groups, self)

    def with_groups(self, groups: Mapping[str, Artifact]) -> Artifact:
        """The same with models of groups; what failed for one is left out by all."""
        failing: dict[GemmOperands, frozenset[KernelConfig]] = {}
        every = self, *groups.values()
        for kind, configs in (item for one in every for item in one.failing.items()):
            failing[kind] = configs | failing.get(kind, frozenset())
        return replace(
            self,
            operands=tuple(sorted({kind for one in every for kind in one.operands}, key=str)),
            measured=tuple(sorted({kind for one in every for kind in one.measured}, key=str)),
            failing=failing,
            groups={kind: replace(one, failing=failing) for kind, one in groups.items()},
        )


def shipped_folders() -> list[Path]:
    """The folders of all models that come with the package, those of groups among them."""
    return sorted(path.parent for path in SHIPPED.rglob(MANIFEST))


def shipped_names() -> list[str]:
    """The GPUs that models come with the package for."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{MANIFEST}"))


def load_shipped(gpu: Hardware) -> Artifact:
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
    folder = SHIPPED / gpu.name
    folders = {kind: folder / kind for kind in GROUPS}
    groups = {kind: load(own) for kind, own in folders.items() if own.exists()}
    return load(folder).with_groups(groups)


def save(artifact: Artifact, folder: Path) -> str:
    """Write an artifact, replacing the one that is there.

    Returns:
        Its digest.

    Raises:
        TilecastError: the folder is read-only, the disk is full, or the model could not be read
            back; what was there stays whole.
    """
    forests, network = _forests(artifact), artifact.ranker.network
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


def load(folder: Path) -> Artifact:
    """Read an artifact and check that it is whole, sound and fits this version.

    Raises:
        TilecastError: a file is absent, cut short, edited or unsound; or it was made for another
            artifact, space or feature version, feature list or description of the GPU.
    """
    while True:
        version = _version(folder)
        manifest = read_manifest(folder)
        path, sha256 = _arrays(folder, manifest)
        try:
            packed = read_whole(path, MAX_BYTES)
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
    forests = {_RANKER: artifact.ranker.forest}
    forests |= {name: artifact.times[regime] for name, regime in _TIMES.items()}
    if deferral := artifact.deferral:
        forests |= {name: deferral.forests[regime] for name, regime in _DEFERRAL.items()}
    return forests


def _manifest(artifact: Artifact, shapes: Mapping[str, object], sha256: str) -> dict[str, Any]:
    rule, deferral = artifact.rule, artifact.deferral
    manifest: dict[str, Any] = {
        **VERSIONS,
        "hardware": artifact.hardware.facts(),
        "operands": [operands.text for operands in artifact.operands],
        "measured": [operands.text for operands in artifact.measured],
        "features": list(FEATURE_NAMES),
        **shapes,
        "file": {"name": f"model-{sha256[:12]}.bin.gz", "sha256": sha256},
        "calibration": {name: list(line) for name, line in artifact.calibration.items()},
        "stopping_rule": {
            "constant": rule.constant,
            "weights": list(rule.weights),
            "thresholds": {str(mean): bound for mean, bound in rule.thresholds.items()},
        },
        "deferral_margins": dict(deferral.margins) if deferral else {},
        "facts": artifact.facts,
    }
    if artifact.failing:
        manifest["failing"] = {
            operands.text: sorted(config.name for config in configs)
            for operands, configs in artifact.failing.items()
        }
    if artifact.families != UNSTATED:
        manifest["families"] = sorted(artifact.families)
    return manifest | {"sha256": digest_of(manifest)}


def _artifact(manifest: Mapping[str, Any], packed: bytes) -> Artifact:
    """What a manifest and its arrays say.

    Raises:
        LookupError, TypeError, ValueError: they say it wrongly, or it is unsound.
    """
    gpu = described(manifest["hardware"])
    margins = {
        name: number(margin, *_MARGIN) for name, margin in manifest["deferral_margins"].items()
    }
    if margins and margins.keys() != set(OBJECTIVES):
        raise ValueError(f"margins for {sorted(margins)}")
    columns = dict.fromkeys((_RANKER, *_TIMES), len(FEATURE_NAMES))
    columns |= dict.fromkeys(_DEFERRAL if margins else (), DEFERRAL_FEATURES)
    forests, network = unpack(manifest, packed, columns, len(REGIMES))
    lines = {name: manifest["calibration"][name] for name in OBJECTIVES}
    rule = manifest["stopping_rule"]
    first, second, third, fourth = (number(weight, *_WEIGHT) for weight in rule["weights"])
    thresholds = {mean: number(rule["thresholds"][str(mean)], *_WEIGHT) for mean in MEANS}
    check_facts(manifest["facts"])
    operands, measured = _kinds(manifest["operands"]), _kinds(manifest["measured"])
    if not set(measured) <= set(operands):
        raise ValueError("it was measured for more than it was trained on")
    leads = {regime: forests[name] for name, regime in _DEFERRAL.items() if margins}
    return Artifact(
        gpu,
        operands,
        measured,
        ConfigRanker(gpu, forests[_RANKER], network),
        {regime: forests[name] for name, regime in _TIMES.items()},
        {name: (number(a, *INTERCEPT), number(b, *SLOPE)) for name, (a, b) in lines.items()},
        StoppingRule(
            number(rule["constant"], *_WEIGHT), (first, second, third, fourth), thresholds
        ),
        Deferral(leads, margins) if margins else None,
        manifest["facts"],
        _failing(manifest.get("failing", {})),
        _families(manifest.get("families", sorted(UNSTATED))),
        manifest["sha256"],
    )


def _failing(stated: Mapping[str, list[str]]) -> dict[GemmOperands, frozenset[KernelConfig]]:
    if sum(map(len, stated.values())) > _MOST_FAILING:
        raise ValueError(f"more than {_MOST_FAILING} kernels that failed")
    for names in stated.values():
        if not isinstance(names, list) or names != sorted(set(names)):
            raise ValueError(f"failing kernels {names!r:.100}")
    return {
        GemmOperands.parse(text): frozenset(map(parse_config, names))
        for text, names in stated.items()
    }


def _families(names: object) -> frozenset[str]:
    if not isinstance(names, list) or not names or names != sorted(set(names) & FAMILIES.keys()):
        raise ValueError(f"families {names!r:.100}")
    return frozenset(names)


def _kinds(texts: object) -> tuple[GemmOperands, ...]:
    if not isinstance(texts, list) or not texts or texts != sorted(set(texts)):
        raise ValueError(f"operands {texts!r:.100}")
    return tuple(map(GemmOperands.parse, texts))


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
