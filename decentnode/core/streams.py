"""The output of a process: what cannot be written, or is read by nobody, ends no run.

That of a host process goes to a file of its own, which may be on a full disk.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO


class _Tolerant(io.FileIO):
    """A file whose writing never fails; what finds no room is dropped."""

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content) or 0
        except OSError:
            return len(content)


def fill_standard_streams() -> None:
    """Opens the null device for those that are closed, so that no file of a run gets their numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w"))
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            # What the terminal's character set does not have, or a path that is no text.
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Prints a line, unless whoever reads them is gone."""
    try:
        print(text, flush=True)
    except OSError:
        silence(sys.stdout)


def print_lines(lines: Iterable[str]) -> None:
    """Each on its own; ends quietly when whoever reads them has had enough, as `head` does."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)


def silence(output: TextIO) -> None:
    """Lets the null device take what is still to be flushed, which would fail again when the command ends."""
    with contextlib.suppress(OSError), Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), output.fileno())


def log_name(first_rank: int) -> str:
    """Where in the run directory the host process with that first rank writes what it prints."""
    return f"logs/{first_rank:05d}.log"


def redirect_output(path: Path) -> None:
    """Has everything that this process prints appended to a file, or dropped where that cannot be."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        fd = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(fd, number)
    os.close(fd)
    sys.stdout, sys.stderr = _stream(1), _stream(2)


def _stream(fd: int) -> TextIO:
    writer = io.BufferedWriter(_Tolerant(fd, "wb", closefd=False))
    return io.TextIOWrapper(writer, errors="backslashreplace", line_buffering=True)
