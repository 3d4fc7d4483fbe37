"""How long do short commands take? Seconds of fresh processes, one after the other.

``python benchmarks/hook/command_seconds.py`` on a machine that does nothing else; commands take
turns. Importing PyTorch, which is most of `tilecast doctor`, is timed beside them.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner

CLI = ("-m", "tilecast.cli.main")
COMMANDS = {
    "import torch": ("-c", "import torch"),
    "--help": (*CLI, "--help"),
    "predict, (n, k) never measured": (*CLI, "predict", "4000x7000x3000"),
    "predict, m never measured": (*CLI, "predict", "512x4096x4096"),
    "predict, measured": (*CLI, "predict", "128x4096x4096"),
    "doctor": (*CLI, "doctor"),
}
TURNS = 7


def main() -> None:
    """Time all commands and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(TURNS):
        for name, arguments in COMMANDS.items():
            seconds[name].append(runner.python(*arguments)[0])
    figures = {name: runner.quantiles(s, median=0.5, least=0.0) for name, s in seconds.items()}
    runner.write(options, {"turns": TURNS}, figures)


if __name__ == "__main__":
    main()
