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
