"""One compiled kernel as it is stored: in a cache, a pack or a wheel.

The object, a line of facts, and a line with the SHA-256 of both, so that an ELF tool reads it as it
is.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tilecast.heuristics.errors import TilecastError
from tilecast.kernels.objects.keys import kernel_facts, kernel_key, key_of
from tilecast.kernels.spec import KernelSpec

MOST_ENTRY_BYTES = 16 << 20
"""Of one entry; a kernel takes some 50 KB."""
ENTRY_NAME = re.compile(r"([0-9a-f]{32})\.o")
"""How its file is called: the key of its spec."""
_OWN = ("key", "resources")
"""Facts that are not the spec's."""


_ELF_MAGIC = b"\x7fELF"
_CUDA_MACHINE = 190
"""``EM_CUDA`` of the ELF machine registry."""
_SIZED_VALUE = 4
"""Format byte of an ``.nv.info`` attribute that carries a length and a payload."""
_REGISTER_COUNT, _FRAME_SIZE = 0x2F, 0x11
"""Attributes of ``.nv.info``: (symbol, registers per thread), (symbol, bytes of stack frame). As
``cuobjdump --dump-resource-usage`` reads them."""


@dataclass(frozen=True)
class KernelResources:
    """Facts of one compiled kernel."""

    registers: int
    """Registers per thread at launch."""
    spill_bytes: int
    """Stack frame per thread; 0 means that nothing spilled."""


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
            resources = asdict(KernelResources(**facts["resources"]))
            if not all(type(value) is int and value >= 0 for value in resources.values()):
                return None
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


def read_resources(code: bytes) -> KernelResources:
    """Read registers and spills from the device code inside an object file.

    Raises:
        TilecastError: there is no device code inside, or it is cut short.
    """
    # Fifty modules that only compiling needs.
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    start = 0
    try:
        while (start := code.find(_ELF_MAGIC, start + 1)) != -1:
            elf = ELFFile(io.BytesIO(code[start:]))
            if elf.header["e_machine"] in (_CUDA_MACHINE, "EM_CUDA"):
                section = elf.get_section_by_name(".nv.info")
                if section is None:
                    raise ELFError("no .nv.info section")
                attributes = _attributes(section.data())
                return KernelResources(attributes[_REGISTER_COUNT], attributes[_FRAME_SIZE])
        raise ELFError("it holds no device code")
    except (ELFError, KeyError, struct.error) as error:
        raise TilecastError(
            f"the object file is damaged ({error}); allowed: what `tilecast compile` wrote; "
            "delete it and compile again"
        ) from error


def _attributes(data: bytes) -> dict[int, int]:
    """The largest value of each (symbol, value) attribute of an ``.nv.info`` section."""
    values: dict[int, int] = {}
    offset = 0
    while offset < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, offset)
        offset += 4
        if form == _SIZED_VALUE:
            if size == 8:
                value = struct.unpack_from("<II", data, offset)[1]
                values[attribute] = max(values.get(attribute, 0), value)
            offset += size
    return values
