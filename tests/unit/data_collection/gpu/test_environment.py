"""Which GPUs are measured, who else does, and what is written down about it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tilecast.data_collection.gpu import environment
from tilecast.data_collection.gpu.environment import (
    cards,
    claimed,
    cublas_here,
    cublas_versions,
    describe,
    device_hash,
    gpu_states,
    present,
    public_command,
)
from tilecast.data_collection.run.collect import CollectOptions, site
from tilecast.data_collection.timing import card_health
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.kernels.objects.cache import ObjectCache

UUIDS = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")
NAMES = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H200")
LISTING = "\n".join(
    f"{index}, {name}, {uuid}, 580.1, 1980, 3201, 1980, 120.5, 700.0, 40"
    for index, (name, uuid) in enumerate(zip(NAMES, UUIDS, strict=True))
)
Smi = Callable[[str], None]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """Puts a shell script in nvidia-smi's place."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return write


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch as on a host with an H200, an H100 and another H200."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(NAMES))
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(name=NAMES[device], uuid=UUIDS[device].removeprefix("GPU-")),
    )


def test_only_measured_gpus_are_listed(smi: Smi) -> None:
    smi(f"echo '{LISTING}'")
    hashes = [device_hash(uuid) for uuid in UUIDS]
    assert [state["uuid_hash"] for state in gpu_states()] == hashes
    chosen = [hashes[2], hashes[0]]
    assert [state["index"] for state in gpu_states(chosen)] == ["2", "0"]
    # One that is gone has no state.
    assert [state["index"] for state in gpu_states([*chosen, "dddd"])] == ["2", "0"]
    facts = describe(chosen)
    assert {state["name"] for state in facts["gpus"]} == {"NVIDIA H200"}  # type: ignore[attr-defined]
    assert not any(uuid in str(facts) for uuid in UUIDS)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo NVIDIA-SMI has failed; echo because >&2; exit 9",
         "status 9: NVIDIA-SMI has failed because"),
        ("echo No devices were found", "it says 'No devices were found'"),
        ("printf '\\377\\376, x'", "it says '\ufffd\ufffd, x'"),
        ("exit 1", "status 1: "),
        ("true", "it does not list GPU dddd"),
    ],
)  # fmt: skip
def test_nvidia_smi_that_fails_is_reported_in_one_line(smi: Smi, script: str, reason: str) -> None:
    smi(script)
    with pytest.raises(TilecastError) as caught:
        gpu_states(["dddd"])
    message = str(caught.value)
    assert message.startswith(f"nvidia-smi does not say which GPUs there are ({reason}); allowed: ")
    assert "\n" not in message


def test_nvidia_smi_that_hangs_is_not_waited_for(smi: Smi, monkeypatch: pytest.MonkeyPatch) -> None:
    smi("exec /bin/sleep 60")
    monkeypatch.setattr(environment, "NVIDIA_SMI_SECONDS", 0.2)
    with pytest.raises(TilecastError, match=r"it hangs for 0\.2 s"):
        gpu_states()


@pytest.mark.usefixtures("gpus")
def test_a_card_that_only_the_driver_knows_to_be_gone_is_left_out(h200: Hardware, smi: Smi) -> None:
    smi(f"echo '{LISTING.splitlines()[2]}'")
    chosen, facts = present((0, 2), h200)
    assert chosen == [device_hash(UUIDS[2])]
    assert [gpu["uuid_hash"] for gpu in facts["gpus"]] == chosen


@pytest.mark.usefixtures("gpus")
def test_a_worker_keeps_its_card_when_devices_are_numbered_anew(
    h200: Hardware, smi: Smi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card is lost, and the one behind it moves up: nobody else shall measure on that."""
    smi(f"echo '{LISTING}'")
    monkeypatch.setattr(card_health, "others_on", lambda uuid: [])
    options = CollectOptions((), tmp_path / "store", ObjectCache(tmp_path), h200, (0, 2))
    with site(options) as place:
        lost, kept = place.factories

    class Bound(Exception):
        """Ends a session once it has a device."""

    def bind(device: int) -> None:
        raise Bound(device)

    monkeypatch.setattr(torch.cuda, "set_device", bind)
    left = [SimpleNamespace(uuid=uuid.removeprefix("GPU-")) for uuid in UUIDS[1:]]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(left))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: left[device])
    with pytest.raises(Bound, match="^1$"):
        kept(lambda spec: None)
    with pytest.raises(TilecastError, match=f"GPU {device_hash(UUIDS[0])} is gone; allowed: "):
        lost(lambda spec: None)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("device", "told"),
    [
        (1, "^CUDA device 1 is an 'NVIDIA H100.*allowed: .* H200"),
        (3, "CUDA device 3 is not there; allowed: the 3 that"),
    ],
)
def test_a_device_that_is_another_gpu_or_none_is_refused(
    h200: Hardware, device: int, told: str
) -> None:
    with pytest.raises(TilecastError, match=told):
        cards((0, device), h200)


def test_gpu_is_held_by_one_process_until_it_ends() -> None:
    code = (
        "from tilecast.data_collection.gpu.environment import claimed\n"
        "with claimed(['test-a', 'test-b']): print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with (
            pytest.raises(TilecastError, match="GPU test-b is in use by another collection"),
            claimed(["test-c", "test-b"]),
        ):
            pass
        with claimed(["test-c"]):
            pass
        process.kill()
    with claimed(["test-a", "test-b"]):
        pass


def test_command_is_kept_without_folders(tmp_path: Path) -> None:
    home = tmp_path / "alice"
    home.mkdir()
    arguments = [f"{home}/bin/tilecast", "collect", "--suite", "llm", "--devices=0,1",
                 "--store", f"{home}/runs/store.db", f"--export={home}/a=b/data.parquet",
                 "--cache", f"{home}", f"--other={home}/", "--budget", "8B 60"]  # fmt: skip
    assert public_command(arguments) == (
        "tilecast collect --suite llm --devices=0,1 --store store.db --export=data.parquet "
        "--cache . --other=. --budget '8B 60'"
    )


def test_command_names_no_host() -> None:
    for given in (["--address", "gpu7.example.org:6379"], ["--address=[::1]:6379"]):
        assert "HOST:PORT" in public_command(["tilecast", "collect", "--engine", "ray", *given])
        assert "6379" not in public_command(["tilecast", "collect", "--engine", "ray", *given])
    assert public_command(["tilecast", "tune", "--address", "auto"]).endswith("--address auto")


def test_versions_of_cublas_are_those_of_all_runs() -> None:
    old: dict = {"gpus": [{"name": "NVIDIA H200"}], "versions": {"torch": "2.11.0"}}
    assert cublas_versions([old, {}]) == {}
    new = {
        "gpus": [{"driver_version": "580.1"}, {"driver_version": "580.1"}],
        "versions": {"nvidia-cublas": "13.1", "nvidia-cublas-cu12": None},
    }
    other = {"gpus": [{"driver_version": "570.9"}], "versions": {"nvidia-cublas-cu12": "12.9"}}
    found = cublas_versions([old, new, other])
    assert found == {"cuBLAS": ["12.9", "13.1"], "driver": ["570.9", "580.1"]}


def test_versions_of_cublas_on_this_machine(smi: Smi) -> None:
    smi(f"echo '{LISTING}'")
    assert cublas_here()["driver"] == ["580.1"]
    assert cublas_versions([describe()]) == cublas_here()
    smi("exit 9")
    assert "driver" not in cublas_here()
