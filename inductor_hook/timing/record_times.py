"""What the autotuner measured of our choices, for `tilecast train --add` to learn from."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache

from tilecast.data_collection.dataset.autotuned import Autotuned
from tilecast.data_collection.gpu.environment import versions
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.offer.template import FAILED_MS, Choice
from tilecast.inductor_hook.recording import record_times
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.objects.keys import toolchain


def learn(
    path: str,
    problem: GemmProblem,
    times: Iterable[tuple[Choice, float]],
    library: Iterable[float],
    device: int,
    settings: Settings,
) -> None:
    """Write down what was benchmarked of one multiplication; a failure is one warning.

    Args:
        path: the file.
        problem: what was multiplied.
        times: our choices with their milliseconds, `FAILED_MS` or more of one that did not run.
        library: milliseconds of ATen's choices.
        device: the CUDA device.
        settings: those in force, whose model may describe it.
    """
    try:
        ran = {
            choice.configs[0]: float(time)
            for choice, time in times
            if choice.is_one_kernel and time < FAILED_MS
        }
        if ran:
            least = min((float(time) for time in library if time < FAILED_MS), default=None)
            record_times(path, _now(problem, ran, least, selection.hardware_of(device, settings)))
    # Whatever goes wrong in here, the graph compiles without it.
    except Exception as error:
        telemetry.warn_once("recording times", error, f"some lines are missing from {path}")


def _now(
    problem: GemmProblem, ran: dict[KernelConfig, float], library: float | None, gpu: Hardware
) -> Autotuned:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Autotuned(problem, ran, library, gpu.name, toolchain(), _versions(), date)


_versions = cache(versions)
