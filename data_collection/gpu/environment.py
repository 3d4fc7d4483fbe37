"""Where and with what a measurement was taken."""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tilecast.data_collection.dataset.measurement import PROTOCOL_VERSION
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.kernels.families import FAMILIES

NVIDIA_SMI_SECONDS = 30.0
"""When nvidia-smi counts as hung; on eight cards it takes two seconds."""

_CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu12")
"""Packages of cuBLAS, for CUDA 13 and 12."""
_LIBRARIES = ("torch", "triton", *_CUBLAS)
"""Packages of PyTorch's kernels."""
_OUT_OF_MEMORY = ("out of memory", "out_of_memory", "alloc_failed", "allocate memory")
"""Words of PyTorch and CUDA, of the driver and the DSL, of cuBLAS and cuDNN, and of the host."""
_GPU_FIELDS = (
    "index", "name", "uuid", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm",
    "power.draw", "power.limit", "temperature.gpu",
)  # fmt: skip


def gpu_states(cards: Collection[str] | None = None) -> list[dict[str, str]]:
    """Name, UUID hash, driver, clocks (MHz), power (W) and temperature (C) of GPUs, now.

    Args:
        cards: hashes of the GPUs, of which those that are gone have no state; None for all GPUs.

    Raises:
        TilecastError: there is no NVIDIA driver, it does not answer, or it lists none of the cards.
    """
    states = []
    for line in _nvidia_smi().splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_GPU_FIELDS):
            raise _no_answer(f"it says {line[:80]!r}")
        state: dict[str, str] = dict(zip(_GPU_FIELDS, values, strict=True))
        state["uuid_hash"] = device_hash(state.pop("uuid"))
        states.append(state)
    if cards is None:
        return states
    listed = {state["uuid_hash"]: state for state in states}
    found = [listed[card] for card in cards if card in listed]
    if not found:
        raise _no_answer(f"it does not list GPU {', '.join(cards)}")
    return found


def _nvidia_smi() -> str:
    query = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.Popen(
            query, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        raise _no_answer(str(error)) from error
    try:
        # Not `subprocess.run`: it waits for what it kills, and nothing ends amid a driver call.
        output, errors = process.communicate(timeout=NVIDIA_SMI_SECONDS)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise _no_answer(f"it hangs for {NVIDIA_SMI_SECONDS:g} s") from error
    if process.returncode:
        said = " ".join((output + errors).split())[:200]
        raise _no_answer(f"status {process.returncode}: {said}")
    return output


def _no_answer(reason: str) -> TilecastError:
    return TilecastError(
        f"nvidia-smi does not say which GPUs there are ({reason}); allowed: a host with a working "
        "NVIDIA driver; collect on the target GPU"
    )


def check_there(devices: Sequence[int]) -> None:
    """Check that CUDA devices exist.

    Raises:
        TilecastError: one does not.
    """
    import torch

    with warnings.catch_warnings(action="ignore"):  # the error below says it
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device in devices:
        if device >= count:
            raise TilecastError(
                f"CUDA device {device} is not there; allowed: the {count} that PyTorch sees, "
                "counted from 0; name others with --devices, or see `tilecast doctor`"
            )


def cards(devices: Sequence[int], target: Hardware) -> list[str]:
    """Hashes of CUDA devices, which must all be the GPU that is to be measured.

    Raises:
        TilecastError: a device does not exist, or is another GPU.
    """
    import torch

    check_there(devices)
    found = []
    for device in devices:
        properties = torch.cuda.get_device_properties(device)
        if properties.name not in target.device_names:
            raise TilecastError(
                f"CUDA device {device} is an {properties.name!r}, no {target.name}; allowed: "
                f"{', '.join(target.device_names)}; name what it is with --gpu, or others with "
                "--devices"
            )
        found.append(card_of(device))
    return found


def card_of(device: int) -> str:
    """The hash of a CUDA device."""
    import torch

    return device_hash(str(torch.cuda.get_device_properties(device).uuid))


def device_of(card: str) -> int:
    """The CUDA device with a hash; indices move up when a card is lost.

    Raises:
        TilecastError: it is gone.
    """
    import torch

    for device in range(torch.cuda.device_count()):
        if card_of(device) == card:
            return device
    raise TilecastError(
        f"GPU {card} is gone; allowed: one that PyTorch sees; see `tilecast doctor`, then run "
        "again: it goes on where it was"
    )


@contextmanager
def claimed(cards: Iterable[str]) -> Iterator[None]:
    """Hold GPUs, so that no other collection on this host, of any user, times on them meanwhile.

    The lock is an abstract Unix socket of Linux, which is free once its process ends, however it
    ends. Containers with networks of their own do not see each other's.

    Raises:
        TilecastError: a GPU is held already.
    """
    with ExitStack() as stack:
        for card in cards:
            holder = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            try:
                holder.bind(f"\0tilecast-gpu-{card}")
            except OSError as error:
                raise TilecastError(
                    f"GPU {card} is in use by another collection ({error.strerror}); allowed: one "
                    "at a time; wait for the other one, or name other --devices"
                ) from error
        yield


def device_hash(uuid: str) -> str:
    """A short name of a card that does not reveal its serial number."""
    return hashlib.sha256(uuid.removeprefix("GPU-").encode()).hexdigest()[:8]


def describe(cards: Collection[str] | None = None) -> dict[str, object]:
    """GPUs (see `gpu_states`), versions, protocol, date and command of this run, as plain data."""
    import torch

    return {
        "gpus": gpu_states(cards),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": versions(),
        "protocol_version": PROTOCOL_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": public_command(sys.argv),
    }


def present(devices: Sequence[int], target: Hardware) -> tuple[list[str], dict[str, Any]]:
    """Hashes of the CUDA devices that are not gone, and what `describe` says of them.

    Only the driver sees that a GPU is gone that this process has used.

    Raises:
        TilecastError: as `cards`, or as `gpu_states`.
    """
    chosen = cards(devices, target)
    facts: dict[str, Any] = describe(chosen)
    listed = {state["uuid_hash"] for state in facts["gpus"]}
    return [card for card in chosen if card in listed], facts


def versions() -> dict[str, str | None]:
    """Versions of PyTorch, cuBLAS and the kernels' compilers; None of what is not installed."""
    compilers = itertools.chain.from_iterable(family.packages for family in FAMILIES.values())
    return {name: installed_version(name) for name in (*_LIBRARIES, *compilers)}


def cublas_versions(runs: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Sorted versions of ``cuBLAS`` and of the ``driver`` in runs, as `describe` gives them.

    A key is absent where no run has a version of it.
    """
    found: dict[str, set[str]] = {"cuBLAS": set(), "driver": set()}
    for run in runs:
        had, gpus = run.get("versions", {}), run.get("gpus", ())
        found["cuBLAS"] |= {had[name] for name in _CUBLAS if had.get(name)}
        found["driver"] |= {gpu["driver_version"] for gpu in gpus if gpu.get("driver_version")}
    return {name: sorted(texts) for name, texts in found.items() if texts}


def cublas_here() -> dict[str, list[str]]:
    """The `cublas_versions` of this machine; without a driver that does not answer."""
    run: dict[str, Any] = {"versions": {name: installed_version(name) for name in _CUBLAS}}
    with suppress(TilecastError):
        run["gpus"] = gpu_states()
    return cublas_versions([run])


def public_command(arguments: Sequence[str]) -> str:
    """A command as one line for a shell, without folders, which name users, and hosts.

    A path keeps its last part, or is ``.`` if it is a folder; an address is ``HOST:PORT``.
    """
    words = []
    for argument in arguments:
        assigned = argument.startswith("-") and "=" in argument
        option, equals, value = argument.partition("=") if assigned else ("", "", argument)
        if "/" in value:
            # `Path.is_dir` raises where it may not look.
            value = "." if os.path.isdir(value) else Path(value).name  # noqa: PTH112
        elif re.fullmatch(".+:[0-9]+", value):
            value = "HOST:PORT"
        words.append(option + equals + value)
    return shlex.join(words)


def installed_version(package: str) -> str | None:
    """Version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: each package has an exception of its own for it, or none."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(words in message for words in _OUT_OF_MEMORY)
