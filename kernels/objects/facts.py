"""What a compiled kernel really takes, read from its code."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from tilecast.heuristics.errors import TilecastError

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


def read_resources(code: bytes) -> KernelResources:
    """Read registers and spills from the device code inside an object file.

    Raises:
        TilecastError: there is no device code inside, or it is cut short.
    """
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
