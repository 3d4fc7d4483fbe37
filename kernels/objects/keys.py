"""What identifies a compiled kernel: a digest of everything that its code depends on."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tilecast.kernels.families import FAMILIES, family_of
from tilecast.kernels.spec import KernelSpec

_IMPORTED = re.compile(r"^ *(?:from|import) ([\w.]+)", re.MULTILINE)


def kernel_key(spec: KernelSpec) -> str:
    """The key of a kernel, 32 hexadecimal digits."""
    return key_of(kernel_facts(spec))


def kernel_symbol(spec: KernelSpec) -> str:
    """What the object of a kernel exports; unique, so that many load into one process."""
    return f"tilecast_{kernel_key(spec)}"


def kernel_facts(spec: KernelSpec) -> dict[str, object]:
    """A spec and what else its code depends on, as plain data."""
    return {
        "config": spec.config.name,
        "operands": spec.operands.text,
        "batched": spec.batched,
        "any_rows": spec.any_rows,
        "extras": [str(extra) for extra in spec.operands.extras],
        "arch": family_of(spec.config).arch,
        # The host loads objects, so they depend on its architecture, too.
        "host": platform.machine(),
        **family_facts(spec.config.family),
    }


def key_of(facts: Mapping[str, object]) -> str:
    """The key of the kernel that some facts describe."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_current(facts: Mapping[str, object]) -> bool:
    """Whether a kernel of these facts was compiled as it would be here and now."""
    family = str(facts.get("family"))
    return family in FAMILIES and (
        {"host": platform.machine(), **family_facts(family)}.items() <= facts.items()
    )


@cache
def family_facts(family: str) -> dict[str, object]:
    """What all kernels of a family depend on: versions of the compiler, and its source here."""
    digest = hashlib.sha256()
    for path in source_files(FAMILIES[family].compiler).values():
        digest.update(path.read_bytes())
    return {
        "family": family,
        "versions": {name: version(name) for name in FAMILIES[family].packages},
        "sources": digest.hexdigest(),
    }


@cache
def toolchain() -> str:
    """What all kernels depend on, those of every family: a digest."""
    facts = [family_facts(name) for name in FAMILIES]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def source_files(module: str) -> dict[str, Path]:
    """A module and those of its own package and of tilecast that it imports, by name.

    Imports are followed in the text, wherever they stand: nothing but packages is loaded.
    """
    packages = {"tilecast", module.partition(".")[0]}
    found: dict[str, Path] = {}
    names = [module]
    while names:
        name = names.pop()
        home = find_spec(name) if name.partition(".")[0] in packages else None
        if home is None or home.origin is None or name in found:
            continue
        found[name] = Path(home.origin)
        names += _IMPORTED.findall(found[name].read_text())
    return dict(sorted(found.items()))
