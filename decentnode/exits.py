"""How a command ends: what went wrong, in a line where it could be expected, and its exit code."""

import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
from typing import NoReturn

import typer

from decentnode.errors import STOPPED_BY, BadInput, DecentnodeError, ExitCode, is_out_of_memory

# Typer has this class in itself or from click, depending on its version.
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
_left_behind: list[threading.Thread] = []


def explain(error: BaseException) -> int:
    """Says on standard error what went wrong, in one line where it can be expected; gives the exit code."""
    if isinstance(error, typer.Abort) and error.__cause__ is not None:
        # Typer takes the end of any file for that of its own input.
        return explain(error.__cause__)
    if isinstance(error, USAGE_ERROR):
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        if not message:  # no word was given, and the help has been shown
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
    """Prints to standard error; gives the code back."""
    print(text, file=sys.stderr)
    return code


def signals_that_stop() -> list[signal.Signals]:
    """What this process is to obey: under nohup nobody wants it to hear that the terminal is closed."""
    is_deaf = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signum for signum in STOPPED_BY if not (is_deaf and signum is signal.SIGHUP)]


def leave_behind(thread: threading.Thread) -> None:
    """Has `leave` not wait for a thread that may be amid torch then."""
    _left_behind.append(thread)


def leave(code: int) -> NoReturn:
    """Ends the process: at once where a thread is amid torch, which would abort on its way back to Python."""
    if any(thread.is_alive() for thread in _left_behind):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
