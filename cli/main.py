"""``tilecast``: one command per module; an error is one line that teaches, with exit status 2."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

from tilecast.cli.output.output import checked_stdout, print_note, print_output
from tilecast.heuristics.errors import TilecastError

COMMANDS = {
    "predict": "rank the candidates of a problem, or of many",
    "space": "list and count configs; say why one is invalid",
    "compile": "compile kernels ahead of time into the object cache",
    "objects": "list, pack, unpack, ship or prune the compiled kernels of the object cache",
    "collect": "measure the candidates of suites of problems on a GPU",
    "train": "train a model and write its artifact",
    "evaluate": "score the learned heuristics and the baselines on held-out families",
    "report": "show a data set or a model as one HTML file",
    "tune": "measure your own problems and train a model that knows them",
    "campaign": "measure a GPU, train a model of it, score and report, in one command",
    "doctor": "check this machine, or why a problem gets no tilecast kernel",
}
"""In the order of the help text; the module of each has ``add_arguments`` and ``run``."""

BAD_REQUEST, INTERRUPTED = 2, 130

_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that no text holds; Python reads undecodable bytes as halves of surrogates."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises what is wrong instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        advice = "" if "allowed: " in message else f"; `{self.prog} --help` says what is allowed"
        raise TilecastError(f"{message}{advice}")

    def print_help(self, file=None) -> None:
        # argparse itself would not say that it cannot print.
        with checked_stdout():
            (file or sys.stdout).write(self.format_help())


def parser(named: str | None) -> argparse.ArgumentParser:
    """The command line with the options of the named command; the module of no other is loaded."""
    about = "Learned selection of CuTe DSL GEMM kernels."
    root = _Parser(prog="tilecast", description=about, allow_abbrev=False)
    root.add_argument("--version", action="version", version=f"tilecast {version('tilecast')}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, allow_abbrev=False)
        if name == named:
            from tilecast.cli.options.arguments import add_json

            module = import_module(f"tilecast.cli.commands.{name}")
            command.description = module.__doc__
            module.add_arguments(command)
            add_json(command)
            command.set_defaults(run=module.run, json=False)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with this process's own arguments when none are given.

    Returns:
        The exit status: 0, what the command says, or 2 for a request that cannot be met.
    """
    try:
        options = _parse(sys.argv[1:] if arguments is None else arguments)
        output = options.run(options)
        print_output(output, as_json=options.json)
        return output.status
    except KeyboardInterrupt:
        print_note("interrupted")
        if arguments is None:
            _exit_now()
        return INTERRUPTED
    except TilecastError as error:
        message = str(error)
    except OSError as error:
        message = (
            f"{error.filename or 'a file'}: {error.strerror or error}; allowed: files and folders "
            "that can be read and, where tilecast writes, written; name another one"
        )
    # An unforeseen error is one line, too: a traceback teaches a user nothing.
    except Exception as error:
        message = f"{type(error).__name__}: {error}; this is a fault of tilecast: please report it"
    print_note(f"error: {message}")
    return BAD_REQUEST


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options; TilecastError where they are not understood or nothing can be printed."""
    if sys.stdout is None:
        raise TilecastError("standard output is closed; allowed: a terminal, a file or a pipe")
    for argument in arguments:
        if _NOT_TEXT.search(argument):
            raise TilecastError(f"argument {argument!r} is no text; allowed: valid UTF-8 only")
        if argument == "--":
            raise TilecastError("argument '--' is not taken; allowed: a path such as ./--name")
        if argument.startswith("-") and argument.endswith("=--"):
            # argparse takes `--` for the end of options and leaves a list where text should be.
            raise TilecastError(f"argument {argument!r} has no value; allowed: one that is not --")
    try:
        os.getcwd()  # noqa: PTH109
    except OSError as error:
        raise TilecastError(
            "the working folder is gone; allowed: one that exists; change to another one"
        ) from error
    return parser(arguments[0] if arguments else None).parse_args(arguments)


def _exit_now() -> NoReturn:
    """End this process, whatever its threads are doing, after the registered exit functions.

    Fits run in native code, and Python aborts the process when it ends such threads itself.
    """
    try:
        atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError):
                stream.flush()
    finally:  # also after a second interrupt
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
