"""The end of a command: its error, in one line where it is expected, and its exit code."""

import os
import sys
from typing import NoReturn

import typer

from decentnode.core import streams
from decentnode.core.process_setup import some_are_left_behind
from decentnode.core.streams import complain, flush_output
from decentnode.errors import ExitCode

# Depending on its version, Typer has this class itself or from click.
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


def explain(error: BaseException) -> int:
    """Reports an error on standard error, in one line where it is expected; returns the exit code."""
    if isinstance(error, typer.Abort) and error.__cause__ is not None:
        # Typer treats the end of any file as the end of its own input.
        return explain(error.__cause__)
    if isinstance(error, USAGE_ERROR):
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        if not message:  # no arguments were given, and the help has been shown
            return ExitCode.BAD_INPUT
        return complain(f"decentnode: {message} (see decentnode --help)", ExitCode.BAD_INPUT)
    return ExitCode.INTERRUPTED if isinstance(error, typer.Abort) else streams.explain(error)


def leave(code: int) -> NoReturn:
    """Ends the process: at once if a thread is inside torch, which would abort on its return to Python."""
    if some_are_left_behind():
        flush_output()
        os._exit(code)
    sys.exit(code)
