"""Where and with what a measurement was taken."""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
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
"""nvidia-smi that takes longer is taken for a hang; on eight cards it takes two seconds."""

_CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu12")
"""What brings cuBLAS along, with CUDA 13 and 12."""
_LIBRARIES = ("torch", "triton", *_CUBLAS)
"""What the library's own kernels come from."""
_GPU_FIELDS = (
    "index", "name", "uuid", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm",
    "power.draw", "power.limit", "temperature.gpu",
)  # fmt: skip


def gpu_states(cards: Collection[str] | None = None) -> list[dict[str, str]]:
    """Name, UUID hash, driver, clocks (MHz), power (W) and temperature (C) of GPUs, now.

    The GPUs are asked for by their hashes, and all of them where these are left out. One that is
    gone has no state.

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
    """See that CUDA devices are there.

    Raises:
        TilecastError: one is not.
    """
    import torch

    with warnings.catch_warnings(action="ignore"):  # what PyTorch finds amiss is told below
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device in devices:
        if device >= count:
            raise TilecastError(
                f"CUDA device {device} is not there; allowed: the {count} that PyTorch sees, "
                "counted from 0; name others with --devices, or see `tilecast doctor`"
            )


def cards(devices: Sequence[int], target: Hardware) -> list[str]:
    """Hashes of CUDA devices, each of which is the GPU that is to be measured.

    Raises:
        TilecastError: a device is not there, or is another GPU.
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
    """The hash of a CUDA device that is there."""
    import torch

    return device_hash(str(torch.cuda.get_device_properties(device).uuid))


def device_of(card: str) -> int:
    """The CUDA device that a card is now, by its hash: once one is lost, others may move up.

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
    """Hold GPUs, so that no other collector on this host, whoever's, times on them meanwhile.

    A name among Linux's abstract sockets is one process's at a time and free once that ends,
    however it ends. Containers with networks of their own do not see each other's.

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
    """A short name for one card that does not give its serial away."""
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
    """Hashes of those of some CUDA devices that are not gone, and what `describe` says of them.

    A process that has used a GPU does not see that it is gone; its driver does.

    Raises:
        TilecastError: as `cards`, or as `gpu_states`.
    """
    chosen = cards(devices, target)
    facts: dict[str, Any] = describe(chosen)
    listed = {state["uuid_hash"] for state in facts["gpus"]}
    return [card for card in chosen if card in listed], facts


def versions() -> dict[str, str | None]:
    """Of PyTorch, the library's kernels and what ours are compiled by; None of what is missing."""
    return {name: installed_version(name) for name in (*_LIBRARIES, *_compilers())}


def cublas_versions(runs: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Which versions of the library's kernels some runs, each as `describe` says it, had.

    Returns:
        Sorted versions of ``cuBLAS`` and of the ``driver``; neither where no run tells it.
    """
    found: dict[str, set[str]] = {"cuBLAS": set(), "driver": set()}
    for run in runs:
        had, gpus = run.get("versions", {}), run.get("gpus", ())
        found["cuBLAS"] |= {had[name] for name in _CUBLAS if had.get(name)}
        found["driver"] |= {gpu["driver_version"] for gpu in gpus if "driver_version" in gpu}
    return {name: sorted(texts) for name, texts in found.items() if texts}


def cublas_here() -> dict[str, list[str]]:
    """The `cublas_versions` of this machine; without those of a driver that does not answer."""
    run: dict[str, Any] = {"versions": {name: installed_version(name) for name in _CUBLAS}}
    with suppress(TilecastError):
        run["gpus"] = gpu_states()
    return cublas_versions([run])


def _compilers() -> Iterator[str]:
    """What our kernels are compiled by."""
    return itertools.chain.from_iterable(family.packages for family in FAMILIES.values())


def public_command(arguments: Sequence[str]) -> str:
    """A command as one line for a shell that names no folder, and so no user.

    Of the program and arguments a path keeps its last part, or ``.`` if it is a folder.
    """
    words = []
    for argument in arguments:
        assigned = argument.startswith("-") and "=" in argument
        option, equals, value = argument.partition("=") if assigned else ("", "", argument)
        if "/" in value:
            # `Path.is_dir` raises where it may not look.
            value = "." if os.path.isdir(value) else Path(value).name  # noqa: PTH112
        words.append(option + equals + value)
    return shlex.join(words)


def installed_version(package: str) -> str | None:
    """Version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
