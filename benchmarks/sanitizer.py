"""Does compute-sanitizer find a bad access or a race in the kernels?

``python benchmarks/sanitizer.py`` on one GPU whose driver lets the tool in. A sample of kernels
over the space and over operands runs under each tool on the ragged problems that `tilecast collect`
checks kernels with, and their results are checked as there. Kept is what each tool says.
"""

import os
import re
import subprocess
import sys
import time

import runner

from tilecast.data_collection.timing.correctness import check_problems, wrong_elements
from tilecast.data_collection.timing.tensors import poisoned_out, random_inputs, reference
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.candidates import space
from tilecast.kernels.launch import load_kernel
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.spec import KernelSpec

TOOLS = ("memcheck", "racecheck")
SECONDS = 150.0  # that a tool may take
OURS = "kns=tilecast"  # substring of our kernels' names, which alone are watched
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
    """Run and check every kernel of the sample; what the tools watch."""
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
    print(f"{len(sample())} kernels ran, {len(wrong)} with wrong results {wrong[:3]}")


def watch(tool: str) -> runner.Row:
    """Run the sample under a tool; returns its summary and what it reported first."""
    # Calls of the driver that fail are no finding: its Python binding asks for functions by name.
    command = ["compute-sanitizer", "--tool", tool, "--kernel-name", OURS]
    command += ["--report-api-errors", "no"] if tool == "memcheck" else []
    start = time.monotonic()
    done = subprocess.run(
        [*command, sys.executable, __file__, "--sample"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = (done.stdout + done.stderr).splitlines()
    reports = [line for line in said if line.startswith("=========")]
    return {
        "summary": [line for line in reports if "SUMMARY" in line] or said[-5:],
        "sample": [line for line in said if re.match(r"\d+ kernels ran", line)],
        "reported_first": [line for line in reports if "COMPUTE-SANITIZER" not in line][:20],
        "seconds": time.monotonic() - start,
        "command": " ".join([*command, "python", "sanitizer.py", "--sample"]),
    }


def main() -> None:
    """Compile, run under each tool, and keep the result."""
    options = runner.parser(__file__, __doc__)
    options.add_argument("--sample", action="store_true", help="run the sample, under no tool")
    asked = options.parse_args()
    if asked.sample:
        return run_sample()
    workers = len(os.sched_getaffinity(0))
    for result in compile_all(sample(), ObjectCache(default_root()), workers):
        if result.error:
            raise RuntimeError(f"{result.spec}: {result.error}")
    figures = {}
    for tool in TOOLS:
        figures[tool] = watch(tool)
        runner.write(asked, {"kernels": KERNELS, "problems": "check_problems"}, figures)


if __name__ == "__main__":
    main()
