"""compute-sanitizer finds no bad access and no race in a sample of the kernels.

The tools watch this file, run as a script: it runs every kernel of the sample on the ragged
problems that `tilecast collect` checks kernels with.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tilecast.data_collection.timing.correctness import check_problems, wrong_elements
from tilecast.data_collection.timing.tensors import poisoned_out, random_inputs, reference
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.candidates import space
from tilecast.kernels.launch import load_kernel
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.spec import KernelSpec

# Calls of the driver that fail are no finding: its Python binding asks for functions by name.
MEMCHECK = ("--tool", "memcheck", "--report-api-errors", "no")
# Every hazard, at its address.
RACECHECK = ("--tool", "racecheck", "--racecheck-report", "hazard", "--print-limit", "0")
HAZARD = re.compile(
    r"Potential (\w+) hazard detected at __shared__ 0x([0-9a-f]+) in block .*\n"
    r"=+ +\w+ Thread \(.*?\) at (\w+)"
)
"""Its kind, its address and, from the next line, the kernel: ``Potential WAR hazard detected at
__shared__ 0x4cf in block (0,0,180) :`` and ``Read Thread (127,0,0) at NAME+0x90``."""
TILE_BYTES = 16
KERNELS = {
    "bf16:rcr": 24,
    "bf16:rrr": 4,
    "bf16:ccc": 4,
    "bf16:rcr:bias+gelu": 8,
    "bf16:rcr:beta-c": 4,
    "e4m3:rcr>bf16@fp32:row-scales+bias": 4,
    "int8:rcr>int32": 4,
    "int8:rcr>bf16:row-scales": 4,
    "bf16xint8:rcr:column-scales": 4,
    "bf16:rcr:row-groups": 6,
    "e4m3:rcr>bf16@fp32:row-groups+row-scales": 3,
    "bf16:crr:k-groups": 2,
}  # by operands


def sample() -> list[KernelSpec]:
    """Configs evenly over the space of each operands."""
    chosen = []
    for text, count in KERNELS.items():
        operands = GemmOperands.parse(text)
        configs = space(operands, hardware("H200")).configs
        chosen += [KernelSpec(configs[len(configs) * i // count], operands) for i in range(count)]
    return chosen


def run_sample() -> None:
    """Run every kernel of the sample, and end with an error if a result is wrong."""
    objects, wrong = ObjectCache(default_root()), []
    for spec in sample():
        launch = load_kernel(spec, objects)
        # Without the first, which has many tiles: a tool takes a thousand times a kernel's time.
        for problem in check_problems(spec)[1:]:
            inputs, out = random_inputs(problem), poisoned_out(problem)
            a, b, *extras = inputs
            launch(a, b, out, *extras)
            found = wrong_elements(out, reference(problem, inputs), problem)
            wrong += [f"{spec}: {found}"] if found else []
    if wrong:
        sys.exit("\n".join(wrong))


needs_compute_sanitizer = pytest.mark.skipif(
    not shutil.which("compute-sanitizer"), reason="needs compute-sanitizer"
)


@pytest.fixture(scope="module")
def compiled() -> None:
    for result in compile_all(sample(), ObjectCache(default_root()), 8):
        assert result.error is None, result.spec


def watched(*options: str) -> subprocess.CompletedProcess[str]:
    """The sample, run under a tool."""
    command = ["compute-sanitizer", *options, "--error-exitcode", "1"]
    command += ["--kernel-name", "kns=tilecast", sys.executable, __file__]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


@needs_compute_sanitizer
def test_memcheck_finds_nothing(compiled: None) -> None:
    done = watched(*MEMCHECK)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


@needs_compute_sanitizer
def test_racecheck_finds_nothing_but_the_next_tile_of_groups(compiled: None) -> None:
    """A warp reads where its next tile is, waits for all its threads, and one frees the place.

    ptxas leaves that wait of a warp out, as its threads go together, and racecheck then takes the
    next write of the place for a hazard: of kernels with more tiles than there are CTAs, each of
    which has one such place.
    """
    done = watched(*RACECHECK)
    said = (done.stdout + done.stderr)[-2000:]
    found = HAZARD.findall(done.stdout)
    assert done.returncode == 0 or found, said
    assert "RACECHECK SUMMARY" in done.stdout, said
    assert len(found) == done.stdout.count(" hazard detected at "), said
    assert {kind for kind, _, _ in found} <= {"WAR"}, said
    places = {(kernel, int(address, 16) // TILE_BYTES) for _, address, kernel in found}
    assert len(places) == len({kernel for kernel, _ in places}), said


if __name__ == "__main__":
    run_sample()
