"""One compiled kernel as it is stored: in a cache, a pack or a wheel.

The object, a line of facts, and a line with the SHA-256 of both, so that an ELF tool reads it as it
is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tilecast.kernels.objects.facts import KernelResources, read_resources
from tilecast.kernels.objects.keys import kernel_facts, kernel_key, key_of
from tilecast.kernels.spec import KernelSpec

ENTRY_NAME = re.compile(r"([0-9a-f]{32})\.o")
"""How its file is called: the key of its spec."""
_OWN = ("key", "resources")
"""Facts that are not the spec's."""


@dataclass(frozen=True)
class Entry:
    """One kernel as it is stored."""

    facts: Mapping[str, Any]
    """`kernel_facts` of what it was compiled from, ``key`` and ``resources``."""
    code: bytes
    """The object."""
    whole: bytes
    """The object, the line of facts, and the line of digest, as they lie in a file."""

    @classmethod
    def of(cls, spec: KernelSpec, code: bytes) -> Entry:
        """The entry of a kernel that was compiled.

        Raises:
            TilecastError: the code is damaged.
        """
        facts = kernel_facts(spec) | {
            "key": kernel_key(spec),
            "resources": asdict(read_resources(code)),
        }
        content = b"%b\n%b" % (code, json.dumps(facts).encode())
        return cls(facts, code, b"%b\n%b" % (content, _digest(content)))

    @classmethod
    def read(cls, key: str, whole: bytes) -> Entry | None:
        """The entry of a key; None when it is cut short, altered, or another one's."""
        content, _, digest = whole.rpartition(b"\n")
        if _digest(content) != digest:
            return None
        code, _, line = content.rpartition(b"\n")
        try:
            facts = json.loads(line)
            KernelResources(**facts["resources"])
            about = {name: facts[name] for name in facts if name not in _OWN}
            return cls(facts, code, whole) if facts["key"] == key == key_of(about) else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    @property
    def key(self) -> str:
        """Of the spec; the entry's name."""
        return self.facts["key"]

    @property
    def resources(self) -> KernelResources:
        """Registers and spills."""
        return KernelResources(**self.facts["resources"])


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
