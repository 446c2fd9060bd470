"""The output of a process: text that cannot be written, or has no reader, ends no run.

A host process writes to its own file, which may be on a full disk.
"""

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from decentnode.errors import BadInput, DecentnodeError, ExitCode, is_out_of_memory


class _Tolerant(io.FileIO):
    """A file whose writes never fail; what does not fit is dropped."""

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content) or 0
        except OSError:
            return len(content)


def fill_standard_descriptors() -> list[int]:
    """Opens the null device for closed streams, whose numbers no file of a run may get; returns these."""
    filled = []
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
        filled.append(fd)
    os.close(fd)
    return filled


@contextlib.contextmanager
def standard_descriptors() -> Iterator[None]:
    """Fills the standard descriptors for the time of a block."""
    filled = fill_standard_descriptors()
    try:
        yield
    finally:
        for fd in filled:
            os.close(fd)


def fill_standard_streams() -> None:
    """Opens the null device for closed streams, here and in Python."""
    fill_standard_descriptors()
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w"))
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal lacks, or paths that are not valid text.
            stream.reconfigure(errors="backslashreplace")


def flush_output() -> None:
    """Writes out what is still in the buffers of this process; a program may have closed or replaced them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def print_line(text: str) -> None:
    """Prints a line, unless the output has been closed."""
    try:
        print(text, flush=True)
    except OSError:
        silence(sys.stdout)


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines; ends quietly if the reader closes the pipe, as `head` does."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)


def explain(error: BaseException) -> ExitCode:
    """Reports what ends a process, in one line where it is expected; returns the exit code."""
    if isinstance(error, BadInput):
        return complain(str(error), ExitCode.BAD_INPUT)
    if isinstance(error, DecentnodeError):
        return complain(f"error: {error}", error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if is_out_of_memory(error):
        return complain(f"out of memory: {error}", ExitCode.OUT_OF_MEMORY)
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        # Only a person writes such a path, in whatever argument or file.
        return complain(f"{error.filename}: no usable path: {error.strerror}", ExitCode.BAD_INPUT)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return complain(f"error: {error}", ExitCode.FAILED)
    traceback.print_exception(error)
    return ExitCode.FAILED


def complain(text: str, code: ExitCode) -> ExitCode:
    """Prints to standard error; returns the code."""
    print(text, file=sys.stderr)
    return code


def silence(output: TextIO) -> None:
    """Redirects unflushed output to the null device, because it would fail again at exit."""
    with contextlib.suppress(OSError), Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), output.fileno())


def log_name(first_rank: int) -> str:
    """Returns the log of a host process in the run directory, by its first rank."""
    return f"logs/{first_rank:05d}.log"


def log_of(path: Path) -> str:
    """Returns the place of a log for messages; empty where another program has the output."""
    return f"; its log: {path}" if path.exists() else ""


def redirect_output(path: Path) -> None:
    """Appends all output of this process to a file, or drops it if the file cannot be opened."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        fd = os.open(os.devnull, os.O_WRONLY)
    send_output_to(fd)


def send_output_to(fd: int) -> None:
    """Sends all output of this process to a descriptor, and closes that one."""
    for number in (1, 2):
        os.dup2(fd, number)
    os.close(fd)
    sys.stdout, sys.stderr = _stream(1), _stream(2)


def _stream(fd: int) -> TextIO:
    writer = io.BufferedWriter(_Tolerant(fd, "wb", closefd=False))
    return io.TextIOWrapper(writer, errors="backslashreplace", line_buffering=True)
