"""What the hook was asked for: the settings in force, their model, and what caches see of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tilecast.data_collection.dataset import autotuned
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import recording, telemetry
from tilecast.inductor_hook.names import INVARIANT, MODEL, names, switched_on
from tilecast.kernels.objects.keys import toolchain
from tilecast.models.runtime import artifact
from tilecast.models.runtime.artifact import shipped_folders
from tilecast.models.runtime.objectives import check_objective
from tilecast.reporting.choices import choices_digest

_CHOOSING = ("data_collection", "heuristics", "inductor_hook", "kernels", "models")
"""Packages whose code decides what a graph becomes."""
MOST = 64
"""The largest k: more would be an exhaustive search, which `tilecast collect` does better."""


@dataclass(frozen=True)
class Settings:
    """The arguments of `install`, of which ``record`` and ``learn`` change no choice.

    Of ``choices`` not the path counts but ``named``.
    """

    k: int | str = 5
    model: str | None = None
    power: str = "robust"
    rank_nvgemm: bool = False
    rank_flex_gemm: bool = False
    record: str | None = field(default=None, compare=False)
    fuse: bool = True
    """Never if ``invariant``: whether it pays depends on m, and what is fused rounds once."""
    invariant: bool = False
    learn: str | None = field(default=None, compare=False)
    choices: str | None = field(default=None, compare=False)
    named: str = ""
    """SHA-256 of the file of choices as it is when the settings are made; empty without one."""
    digest: str = ""
    """`model_digest` of the model that is meant; of the one that is there now when left out."""

    def __post_init__(self) -> None:
        """Check every field that can be checked without loading the model.

        Raises:
            TilecastError: a value is not allowed, or the model's manifest is refused.
        """
        if self.k != "auto" and not (type(self.k) is int and 1 <= self.k <= MOST):
            raise TilecastError(
                f"k={self.k!r} is out of range; allowed: 1 to {MOST}, or 'auto'; "
                "1 takes the model's first choice"
            )
        # Another type than a text may not even hash.
        check_objective(self.power if isinstance(self.power, str) else repr(self.power))
        for name in ("rank_nvgemm", "rank_flex_gemm", "fuse", "invariant"):
            if type(getattr(self, name)) is not bool:
                raise TilecastError(f"{name}={getattr(self, name)!r}; allowed: True or False")
        object.__setattr__(self, "fuse", self.fuse and not self.invariant)
        _check_suffix("record", self.record, recording.SUFFIX, "CSV")
        _check_suffix("learn", self.learn, autotuned.SUFFIX, "JSON Lines")
        if self.choices and not self.named:
            object.__setattr__(self, "named", choices_digest(Path(self.choices)))
        if not self.digest:
            object.__setattr__(self, "digest", model_digest(self.model))

    def posed(self, problem: GemmProblem) -> GemmProblem:
        """A problem as these settings have it solved: if ``invariant``, added up for any m."""
        return problem.invariant() if self.invariant else problem


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the environment says of `install`'s arguments; an empty variable counts as unset.

    Raises:
        TilecastError: a switch is neither yes nor no, or a path begins with a home that is not
            there. `Settings` checks the others.
    """
    k = environment.get("TILECAST_K", "").strip() or "5"
    return {
        "k": int(k) if k.isascii() and k.isdigit() else k,
        "model": named_path(environment, MODEL),
        "power": environment.get("TILECAST_POWER", "").strip() or "robust",
        "record": named_path(environment, "TILECAST_RECORD"),
        "fuse": switched_on("TILECAST_FUSE", environment, default=True),
        "invariant": switched_on(INVARIANT, environment),
        "learn": named_path(environment, "TILECAST_LEARN"),
        "choices": named_path(environment, "TILECAST_CHOICES"),
    }


def named_path(environment: Mapping[str, str], variable: str) -> str | None:
    """The path that a variable names, with the user's home in place of ``~``.

    Raises:
        TilecastError: there is no such home.
    """
    value = environment.get(variable, "")
    try:
        return str(Path(value).expanduser()) if value else None
    except RuntimeError as error:
        raise TilecastError(
            f"{variable}={value!r} begins with no user's home; allowed: ~, or the whole path"
        ) from error


def absolute(name: str, path: Any) -> str | None:
    """The path that an argument names, spelled out; None where it names none.

    Raises:
        TilecastError: it is no path.
    """
    if path is None or path == "":
        return None
    if not isinstance(path, str | Path):
        raise TilecastError(f"{name}={path!r} is no path; allowed: a text or a pathlib.Path")
    return str(Path(path).absolute())


def unbenchmarked(model: str | Path | None, power: str, invariant: bool = False) -> Settings:
    """Settings of eager calls, with the model that is there now.

    Raises:
        TilecastError: a value is not allowed, or the model's manifest is refused.
    """
    return Settings(1, absolute("model", model), power, invariant=invariant)


_kept = cache(unbenchmarked)


def of_environment() -> Settings:
    """What the environment says of eager calls; the model stays the one that was there first.

    Raises:
        TilecastError: as `unbenchmarked`; asked again, it is looked for again.
    """
    named = from_environment(os.environ)
    return _kept(named["model"], named["power"], named["invariant"])


def _check_suffix(name: str, path: str | None, suffix: str, kind: str) -> None:
    if path and Path(path).suffix.lower() != suffix:
        raise TilecastError(
            f"{name}={path!r} is no {kind} file; allowed: a path that ends in {suffix}"
        )


_active: Settings | None = None


def active() -> Settings | None:
    """The settings in force, or None.

    Handlers ask for them anew each time: a thread keeps its handler when another one installs.
    """
    return _active


def activate(settings: Settings | None) -> None:
    """Put settings in force, or none; `tilecast.inductor_hook.install` does what else it takes."""
    global _active
    _active = settings


def asked() -> Settings | None:
    """The settings in force, where Inductor autotunes and its list of backends names TILECAST.

    If ``invariant``, also where it does not autotune. Nothing is benchmarked there, nor in
    Inductor's deterministic mode: ``k`` is 1.

    None if Inductor's caches could not tell tilecast's graphs from others, or if ranks would have
    to exchange tilecast's choices, which Inductor cannot do.
    """
    from torch._inductor import config

    settings = _active  # once, as another thread may uninstall
    tuned = config.max_autotune or config.max_autotune_gemm
    wanted = settings and (tuned or settings.invariant)
    if not (settings and wanted and names(config.max_autotune_gemm_backends)):
        return None
    if getattr(config.inductor_choices_class, "settings", None) != settings:
        telemetry.say_once(
            "another choices class",
            "inductor_choices_class was set after tilecast was installed, so tilecast offers no "
            "kernels; set it before, or call tilecast.inductor_hook.install() again",
        )
        return None
    if config.distributed_max_autotune_gemm:
        telemetry.say_once(
            "distributed autotuning",
            "distributed_max_autotune_gemm is set, so tilecast offers no kernels; unset it (k=1 "
            "picks the same kernel on every rank)",
        )
        return None
    benchmarked = tuned and not config.deterministic
    return settings if benchmarked else replace(settings, k=1)


def cache_key(settings: Settings | None) -> tuple[Any, ...]:
    """What a compiled graph depends on beside the graph, for Inductor's caches."""
    if settings is None:
        return ("tilecast", None)
    compared = (getattr(settings, one.name) for one in fields(settings) if one.compare)
    return ("tilecast", version("tilecast"), *compared, toolchain(), _source())


@cache
def _source() -> str:
    """A digest of the code that chooses: graphs that other code has rewritten are compiled anew."""
    root = Path(__file__).parents[1]
    files = sorted(path for name in _CHOOSING for path in (root / name).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def model_digest(folder: str | None) -> str:
    """What identifies the model in a folder: the head of the SHA-256 that its manifest states.

    Without a folder those of all shipped models, with a + between them.

    Raises:
        TilecastError: a manifest is absent, damaged or of another version.
    """
    return artifact.model_digest(Path(folder))[:16] if folder else _shipped_digest()


@cache
def _shipped_digest() -> str:
    return "+".join(model_digest(str(folder)) for folder in shipped_folders())
