"""``tilecast``: one command per module; errors that teach, in one line, with exit status 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from tilecast.cli import (
    collect,
    compile,
    doctor,
    evaluate,
    predict,
    space,
    train,
)
from tilecast.cli.report import show
from tilecast.heuristics.errors import TilecastError

COMMANDS = (predict, space, compile, collect, train, evaluate, doctor)
"""In the order of the help text. Each has NAME, HELP, add_arguments and run."""

BAD_REQUEST, INTERRUPTED = 2, 130


class _Parser(argparse.ArgumentParser):
    """A parser that raises what is wrong instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise TilecastError(f"{message}; `{self.prog} --help` says what is allowed")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = _Parser(
        prog="tilecast",
        description="Learned selection of CuTe DSL GEMM kernels.",
        allow_abbrev=False,
    )
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        command = commands.add_parser(
            module.NAME, help=module.HELP, description=module.__doc__, allow_abbrev=False
        )
        module.add_arguments(command)
        command.add_argument(
            "--json", action="store_true", help="print one JSON document instead of tables"
        )
        command.set_defaults(run=module.run)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: what follows ``tilecast``; this process's own when left out.

    Returns:
        The exit status: 0, what the command says, or 2 for a request that cannot be met.
    """
    try:
        options = parser().parse_args(arguments)
        report = options.run(options)
        show(report, as_json=options.json)
        sys.stdout.flush()
    except TilecastError as error:
        print(f"tilecast: error: {error}", file=sys.stderr)
        return BAD_REQUEST
    except BrokenPipeError:
        # The reader has seen enough (`| head`); Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("tilecast: interrupted", file=sys.stderr)
        return INTERRUPTED
    return report.status


if __name__ == "__main__":
    sys.exit(main())
