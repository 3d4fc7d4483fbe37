"""Whether PyTorch's own CuTe DSL operators run beside the CuTe DSL that is installed.

PyTorch registers them (``torch/_native``) only under versions of CuTe DSL that it lists, and says
nothing under others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tilecast.cli.diagnosis.finding import Finding

SUBJECT = "PyTorch's CuTe DSL operators"
DSL = "nvidia-cutlass-dsl"


def check_torch_operators(listed: Sequence[str] | None, wanted: SpecifierSet) -> Iterator[Finding]:
    """Nothing where PyTorch has no such operators and lists no versions, or CuTe DSL is absent."""
    with suppress(PackageNotFoundError):
        if listed is not None:
            yield compare(Version(version(DSL)), {*map(Version, listed)}, wanted)


def compare(found: Version, listed: Set[Version], wanted: SpecifierSet) -> Finding:
    """Whether PyTorch lists the version that is found, or which one it and tilecast both want."""
    names = ", ".join(map(str, sorted(listed)))
    if found in listed:
        return Finding(SUBJECT, f"on, under CuTe DSL {found}", True, needed=False)
    ignore = "set TORCH_NATIVE_SKIP_VERSION_CHECK=1 to use them untested"
    both = [one for one in listed if one in wanted]
    advice = f"run `pip install '{DSL}[cu13]=={max(both)}'`, or {ignore}" if both else ignore
    shown = f"off: this PyTorch wants CuTe DSL {names}, not {found}"
    return Finding(SUBJECT, shown, False, needed=False, advice=advice)
