"""The output of a host process: a file of its own, which may be on a full disk without ending anybody."""

import io
import os
import sys
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
