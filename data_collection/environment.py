"""Where and with what a measurement was taken."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from tilecast.data_collection.protocol import PROTOCOL_VERSION
from tilecast.heuristics.errors import TilecastError

_PACKAGES = (
    "torch",
    "triton",
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-operators",
    "apache-tvm-ffi",
)
_GPU_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)


def gpu_states() -> list[dict[str, str]]:
    """Name, UUID hash, driver, clocks (MHz), power (W) and temperature (C) of every GPU, now.

    Raises:
        TilecastError: there is no NVIDIA driver.
    """
    if shutil.which("nvidia-smi") is None:
        raise TilecastError(
            "nvidia-smi is not found; allowed: a host with an NVIDIA driver; "
            "collect on the target GPU"
        )
    query = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    states = []
    for line in lines:
        values = [value.strip() for value in line.split(",")]
        state: dict[str, str] = dict(zip(_GPU_FIELDS, values, strict=True))
        state["uuid_hash"] = device_hash(state.pop("uuid"))
        states.append(state)
    return states


def device_hash(uuid: str) -> str:
    """A short name for one card that does not give its serial away."""
    return hashlib.sha256(uuid.removeprefix("GPU-").encode()).hexdigest()[:8]


def describe() -> dict[str, object]:
    """GPUs, versions, protocol, date and command of this run, as plain data."""
    import torch

    return {
        "gpus": gpu_states(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "protocol_version": PROTOCOL_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
