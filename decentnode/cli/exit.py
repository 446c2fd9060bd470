"""The end of a command: its error, in one line where it is expected, and its exit code."""

import contextlib
import errno
import os
import sys
import traceback
from typing import NoReturn

import typer

from decentnode.core.process_setup import some_are_left_behind
from decentnode.errors import BadInput, DecentnodeError, ExitCode, is_out_of_memory

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
    if isinstance(error, BadInput):
        return complain(str(error), ExitCode.BAD_INPUT)
    if isinstance(error, DecentnodeError):
        return complain(f"error: {error}", error.exit_code)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return ExitCode.INTERRUPTED
    if is_out_of_memory(error):
        return complain(f"out of memory: {error}", ExitCode.OUT_OF_MEMORY)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return complain(f"error: {error}", ExitCode.FAILED)
    traceback.print_exception(error)
    return ExitCode.FAILED


def complain(text: str, code: ExitCode) -> ExitCode:
    """Prints to standard error; returns the code."""
    print(text, file=sys.stderr)
    return code


def leave(code: int) -> NoReturn:
    """Ends the process: at once if a thread is inside torch, which would abort on its return to Python."""
    if some_are_left_behind():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
