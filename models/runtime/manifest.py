"""The manifest of a model: read within bounds, known to be whole, and refused in one line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tilecast.heuristics.errors import NotNow, TilecastError
from tilecast.heuristics.files import read_whole
from tilecast.heuristics.forms import ANY, count, holding, misfit, optional, text
from tilecast.heuristics.forms import number as finite
from tilecast.heuristics.hardware import Hardware, described
from tilecast.kernels.candidates import SPACE_VERSION
from tilecast.models.features.features import FEATURE_NAMES, FEATURES_VERSION

MANIFEST = "manifest.json"
ARTIFACT_VERSION = 9
"""Raised when the files of an artifact, or what its manifest must say, change."""
VERSIONS = {
    "artifact_version": ARTIFACT_VERSION,
    "features_version": FEATURES_VERSION,
    "space_version": SPACE_VERSION,
}
"""What must be as it was when the model was trained."""
HARDWARE_FIELDS = (
    "sm_count",
    "l2_bytes",
    "dram_bytes_per_second",
    "l2_bytes_per_second",
    "peak_flops",
    "clusters_at_once",
)
"""What features read of a GPU: a model holds for these numbers."""
MAX_BYTES = 2**26
"""Longest file that is read; a model takes 2 MB."""


def refuse(folder: Path, reason: str) -> NoReturn:
    """Raise the error that says why a model is not taken.

    Raises:
        NotNow: always; a whole one may come to be in its place.
    """
    raise NotNow(
        f"model {folder} is refused: {reason}; allowed: a whole model that this version of "
        "tilecast wrote; train it again with `tilecast train` or reinstall tilecast"
    )


@contextmanager
def understood(folder: Path) -> Iterator[None]:
    """Refuse a model over whose contents the code inside stumbles."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = str(error).split(";")[0] if isinstance(error, TilecastError) else repr(error)
        refuse(folder, f"its contents are not understood ({shortened(reason)})")


def shortened(value: object) -> str:
    """A value as it is shown in an error: on one line and not for pages."""
    text = " ".join(str(value).split())
    return text if len(text) <= 100 else f"{text[:100]}..."


def number(value: object, least: float, most: float) -> Any:
    """Check a number, which is an integer where the least is one.

    Raises:
        ValueError: it is none, or out of range.
    """
    kinds = (int,) if isinstance(least, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        raise ValueError(f"{shortened(value)} where {least} to {most} is allowed")
    return value


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a model, whole and fitting this version of tilecast.

    Raises:
        TilecastError: it is absent, cut short or edited; or it is for another artifact, space or
            feature version, feature list or description of the GPU.
    """
    try:
        manifest = json.loads(read_whole(folder / MANIFEST, MAX_BYTES), parse_constant=_no_number)
        stated, found = manifest.get("sha256"), digest_of(manifest)
    except OSError as error:
        refuse(folder, f"{MANIFEST} cannot be read ({error.strerror})")
    except (ValueError, AttributeError, RecursionError) as error:
        refuse(folder, f"{MANIFEST} is cut short or edited ({shortened(error)})")
    for name, wanted in VERSIONS.items():
        if manifest.get(name) != wanted:
            other = shortened(manifest.get(name))
            refuse(folder, f"its {name} is {other}, this tilecast has {wanted}")
    if stated != found:
        refuse(folder, f"{MANIFEST} was edited: its digest does not match")
    with understood(folder):
        same_features = manifest["features"] == list(FEATURE_NAMES)
        gpu = described(manifest["hardware"])
        same_gpu = all(manifest["hardware"][name] == gpu.facts()[name] for name in HARDWARE_FIELDS)
    if not same_features:
        refuse(folder, "its feature list differs from this tilecast's")
    if not same_gpu:
        refuse(folder, f"it was trained with another description of {gpu.name}")
    return manifest


def digest_of(manifest: Mapping[str, object]) -> str:
    """SHA-256 of a manifest without its own digest."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def model_hardware(folder: Path) -> Hardware:
    """The GPU that the model in a folder is for.

    Raises:
        TilecastError: its manifest is refused; see `read_manifest`.
    """
    return described(read_manifest(folder)["hardware"])


_FIGURES = {ANY: {ANY: finite}}
_FACTS = {
    "dataset": {
        **dict.fromkeys(("rows", "problems", "families"), count),
        **{"sha256": text, "operands": {ANY: count}, "dates": [optional(text)]},
    },
    "versions": {ANY: text},
    "library": {ANY: [text]},
    "held_out": {ANY: {ANY: _FIGURES}},
    "noise_floor": _FIGURES,
    "beside_library": _FIGURES,
    "learned_from": [text],
    "seen_families": [
        lambda family: text(family) and re.fullmatch("[0-9]{1,10}x[0-9]{1,10}", family)
    ],
    "elsewhere": {"problems": count, "gpus": [text], "sha256": [text]},
    "autotuned": holding({"problems": count, "times": count}),
}
"""The form of what is shown of a model's facts."""


def check_facts(facts: object) -> None:
    """See that what a model says of itself can be read.

    Raises:
        ValueError: it cannot; says where.
    """
    where = misfit(facts, _FACTS)
    if where is None and not holding({"dataset": holding({"sha256": text})})(facts):
        where = "dataset"
    if where is not None:
        raise ValueError(f"facts {where}")


def learned_from(facts: Mapping[str, Any]) -> frozenset[str]:
    """Digests of all data sets that a model learned from, its GPU's own and others', by its facts.

    Those of the parts of what was joined, and of the whole; of a model that does not state the
    parts, of the whole alone.
    """
    parts, others = facts.get("learned_from", []), facts.get("elsewhere", {}).get("sha256", [])
    found = [facts["dataset"]["sha256"], *parts, *others]
    return frozenset(found)


def learned_families(facts: Mapping[str, Any]) -> frozenset[tuple[int, int]]:
    """(n, k) of all problems that a model learned from; none where it does not state them."""
    stated = (family.split("x") for family in facts.get("seen_families", []))
    return frozenset((int(n), int(k)) for n, k in stated)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
