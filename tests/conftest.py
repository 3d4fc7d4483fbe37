"""What several test files share."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from fixtures import *  # noqa: F403
from fixtures import change_manifest
from hypothesis import settings

from tilecast.cli.main import main
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands

# A shared machine stalls now and then; a slow example is no failure.
settings.register_profile("tilecast", deadline=None)
settings.load_profile("tilecast")

GPU_TESTS = Path(__file__).with_name("gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, or one for itself."""
    on_gpu = [item for item in items if item.path.is_relative_to(GPU_TESTS)]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
    elif int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) > 1:
        for item in on_gpu:
            if item.get_closest_marker("alone"):
                item.add_marker(pytest.mark.skip(reason="times the GPU: run pytest -m alone"))


@pytest.fixture(scope="session")
def h200() -> Hardware:
    return hardware("H200")


@pytest.fixture(scope="session")
def linear() -> GemmOperands:
    return LINEAR_BF16


def _device_elf(info: bytes, machine: int = 190) -> bytes:
    """The smallest ELF file with an ``.nv.info`` section; 190 is ``EM_CUDA``."""
    names = b"\0.nv.info\0.shstrtab\0"
    header_size, section_size = 64, 64
    info_at = header_size
    names_at = info_at + len(info)
    sections_at = names_at + len(names)
    header = struct.pack(
        "<4sBBBBB7xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 51, 7, 2, machine, 1, 0, 0, sections_at, 0),
        *(header_size, 0, 0, section_size, 3, 2),
    )

    def section(name: int, kind: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, 0, 0, 1, 0)

    return (
        header
        + info
        + names
        + bytes(section_size)
        + section(1, 0x70000000, info_at, len(info))
        + section(names.index(b".shstrtab"), 3, names_at, len(names))
    )


def _object_file(registers: int, spill_bytes: int, machine: int = 190) -> bytes:
    """What stands in for a compiled kernel: a host ELF magic, and a device ELF inside it."""
    values = [(0x2F, registers), (0x11, spill_bytes), (0x2F, registers - 8)]
    info = b"".join(struct.pack("<BBHII", 4, name, 8, 1, value) for name, value in values)
    return b"\x7fELF" + b"host code" * 40 + _device_elf(b"\x03\x1b\x00\x00" + info, machine)


@pytest.fixture(scope="session")
def object_file() -> Callable[..., bytes]:
    """Makes the bytes of an object file with the given registers and spills."""
    return _object_file


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:
    """Runs a command with ``--json`` and returns its document."""

    def run(*arguments: str, status: int = 0) -> dict:
        assert main([*arguments, "--json"]) == status
        captured = capsys.readouterr()
        # Work that takes long, as where the machine is busy, says how far it is.
        assert [line for line in captured.err.splitlines() if " steps, " not in line] == []
        return json.loads(captured.out)

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must be refused and returns the one line that says why."""

    def run(*arguments: str) -> str:
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert line.startswith("tilecast: error: ")
        return line.removeprefix("tilecast: error: ")

    return run


@pytest.fixture(scope="session")
def shipped_again(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """Gives the folder of a GPU's shipped model, saved as one that leaves all or nothing.

    Packing its arrays takes longer than most of what is tested with it.
    """
    from tilecast.models.runtime.artifact import load_shipped, save
    from tilecast.models.runtime.objectives import OBJECTIVES

    @cache
    def make(gpu: str, leaves: bool) -> Path:
        shipped = load_shipped(hardware(gpu))
        assert shipped.deferral
        leaving = replace(shipped.deferral, margins=dict.fromkeys(OBJECTIVES, 9.0))
        folder = tmp_path_factory.mktemp("shipped")
        save(replace(shipped, deferral=leaving if leaves else None), folder)
        return folder

    return make


@pytest.fixture
def model_of(tmp_path: Path, shipped_again: Callable[[str, bool], Path]) -> Callable[..., Path]:
    """Gives the folder of the shipped model as if it were for other operands, one or several.

    It leaves no problem to the library, or all of them.
    """

    def make(operands: str, gpu: str = "H200", leaves: bool = False) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(shipped_again(gpu, leaves), folder, dirs_exist_ok=True)
        texts = sorted(GemmOperands.parse(text).text for text in operands.split())
        change_manifest(folder, lambda m: m.update(operands=texts, measured=texts))
        return folder

    return make
