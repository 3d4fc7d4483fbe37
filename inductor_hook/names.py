"""The names by which users switch tilecast on. PyTorch's import pays for this module."""

from collections.abc import Mapping

VARIABLE = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"
"""The environment variable with Inductor's list of GEMM backends."""
BACKEND = "TILECAST"
"""The backend's name in that list."""
EAGER = "TILECAST_EAGER"
"""The variable that switches eager multiplications to tilecast."""
INVARIANT = "TILECAST_INVARIANT"
"""The variable that asks for rows with the same bits in every batch, compiled and eager."""
SUMMARY = "TILECAST_SUMMARY"
"""The variable that has one line printed at exit."""
MODEL = "TILECAST_MODEL"
"""The variable that names the folder of a model to use instead of the shipped ones."""


def names(backends: str, backend: str = BACKEND) -> bool:
    """Whether a comma-separated list of GEMM backends names one, by default tilecast."""
    return backend in map(str.strip, backends.upper().split(","))


def without(backends: str, backend: str = BACKEND) -> list[str]:
    """The names in such a list but one, by default tilecast's."""
    return [name for name in backends.split(",") if name.strip() and not names(name, backend)]


def switched_on(variable: str, environment: Mapping[str, str], default: bool = False) -> bool:
    """Whether an environment variable switches something on; unset or empty, it is the default.

    Raises:
        TilecastError: its value is neither yes nor no.
    """
    value = environment.get(variable, "").strip().lower()
    if not value:
        return default
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    from tilecast.heuristics.errors import TilecastError

    raise TilecastError(
        f"{variable}={environment[variable]!r} is not understood; allowed: 1, true, yes or on, and "
        "0, false, no, off or nothing"
    )
