"""``tilecast``: one command per module; errors that teach, in one line, with exit status 2."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from tilecast.cli.commands import (
    campaign,
    collect,
    compile,
    doctor,
    evaluate,
    objects,
    predict,
    report,
    space,
    train,
    tune,
)
from tilecast.cli.options import options as shared
from tilecast.cli.output.output import answering, say, show
from tilecast.heuristics.errors import TilecastError

COMMANDS = (
    *(predict, space, compile, objects, collect, train, evaluate, report),
    *(tune, campaign, doctor),
)
"""In the order of the help text. Each has NAME, HELP, add_arguments and run."""

BAD_REQUEST, INTERRUPTED = 2, 130

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""What no text holds; Python reads bytes that it cannot decode as halves of surrogates."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises what is wrong instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        advice = "" if "allowed: " in message else f"; `{self.prog} --help` says what is allowed"
        raise TilecastError(f"{message}{advice}")

    def print_help(self, file=None) -> None:
        # argparse itself would not say that it cannot print.
        with answering():
            (file or sys.stdout).write(self.format_help())


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    about = "Learned selection of CuTe DSL GEMM kernels."
    root = _Parser(prog="tilecast", description=about, allow_abbrev=False)
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        command = commands.add_parser(
            module.NAME, help=module.HELP, description=module.__doc__, allow_abbrev=False
        )
        module.add_arguments(command)
        shared.add_json(command)
        command.set_defaults(run=module.run, json=False)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by this process's own arguments when none are given.

    Returns:
        The exit status: 0, what the command says, or 2 for a request that cannot be met.
    """
    try:
        options = _read(sys.argv[1:] if arguments is None else arguments)
        answer = options.run(options)
        show(answer, as_json=options.json)
        return answer.status
    except KeyboardInterrupt:
        say("interrupted")
        if arguments is None:
            _leave()
        return INTERRUPTED
    except TilecastError as error:
        message = str(error)
    except OSError as error:
        message = (
            f"{error.filename or 'a file'}: {error.strerror or error}; allowed: files and folders "
            "that can be read and, where tilecast writes, written; name another one"
        )
    # Whatever nobody foresaw is told in one line, too: a traceback teaches nothing to who typed.
    except Exception as error:
        message = f"{type(error).__name__}: {error}; this is a fault of tilecast: please report it"
    say(f"error: {message}")
    return BAD_REQUEST


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    """The options that are given.

    Raises:
        TilecastError: they are not understood, or there is nowhere to answer.
    """
    if sys.stdout is None:
        raise TilecastError("standard output is closed; allowed: a terminal, a file or a pipe")
    for argument in arguments:
        if _NO_TEXT.search(argument):
            raise TilecastError(f"argument {argument!r} is no text; allowed: valid UTF-8 only")
        if argument.startswith("-") and argument.endswith("=--"):
            # argparse takes the `--` for the end of options and leaves a list where text should be.
            raise TilecastError(f"argument {argument!r} has no value; allowed: one that is not --")
    return parser().parse_args(arguments)


def _leave() -> NoReturn:
    """End this process, whatever its threads are doing, once what is to be done at exit is done.

    Python ends threads that are in native code, as those that fit are, in a way that aborts it.
    """
    try:
        atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError):
                stream.flush()
    finally:  # interrupted again, too
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
