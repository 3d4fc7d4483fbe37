"""What the provenance of a data set has to be, so that what reads it need not look again."""

from __future__ import annotations

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.forms import ANY, anything, count, holding, misfit, number, optional, text
from tilecast.heuristics.problem import GemmProblem


def _problem(value: object) -> bool:
    try:
        GemmProblem.from_row(tuple(value) if isinstance(value, list) else ())
    except ValueError:  # a TilecastError is one
        return False
    return True


def _timing(value: object) -> bool:
    """A regime, a config, and microseconds where it ran."""
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(name, str) for name in value[:2])
        and number(value[2])
        and value[2] > 0
    )


_RUN = {
    **dict.fromkeys(("date", "gpu", "command"), optional(text)),
    "cuda": optional(text),
    "gpus": [{"index": anything, ANY: optional(text)}],
    "versions": {ANY: optional(text)},
    "protocol_version": count,
    "hardware": optional(lambda value: isinstance(value, dict)),
    "end": {"seconds": number},
    "troubles": [holding({"card": text, "reason": text})],
    "compared": [holding({"card": text, "problem": _problem, "times": [_timing]})],
}


_REQUIRED = {
    "runs": lambda runs: isinstance(runs, list),
    "space_version": count,
    "protocol_version": count,
}


def check_provenance(provenance: object) -> None:
    """See that a provenance says what it says as a collection does.

    Raises:
        TilecastError: it does not; says where.
    """
    facts = provenance if isinstance(provenance, dict) else {}
    missing = [name for name, fits in _REQUIRED.items() if not fits(facts.get(name))]
    if missing:
        raise TilecastError(f"its provenance is without {', '.join(missing)}")
    if (where := misfit(provenance, {"runs": [_RUN]})) is not None:
        raise TilecastError(f"its provenance is not understood at {where[:100]}")
