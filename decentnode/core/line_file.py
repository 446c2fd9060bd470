"""Files of lines that survive a full disk: what it does not take waits in memory."""

import os
import time
from collections.abc import Callable
from pathlib import Path

MOST_PENDING_BYTES = 16 << 20
"""What a file keeps in memory while it cannot be written."""
WARN_INTERVAL = 60.0
Warn = Callable[[str], object]
"""Told in one line what is wrong with a file."""


class LineFile:
    """A file that is appended to line by line; what the disk does not take is tried again with the next line.

    So a disk that is full for a while costs nothing, and what is written is always a prefix of what was said.
    """

    def __init__(self, path: Path, warn: Warn = lambda _: None) -> None:
        """Opens nothing before the first line; `warn` is called once a minute while there is a problem."""
        self.path = path
        self.lost = 0
        """Lines that found no room in memory either."""
        self._warn = warn
        self._warned: float | None = None
        self._fd: int | None = None
        self._pending = bytearray()
        self._doubt: OSError | None = None
        """What the system said when lines it had taken did not reach the disk; it says so only once."""

    def append(self, line: bytes) -> None:
        """Writes a line, given without its newline. Never raises OSError."""
        if len(self._pending) + len(line) >= MOST_PENDING_BYTES or self.lost:
            self.lost += 1
        else:
            self._pending += line + b"\n"
        if (error := self._write()) is not None:
            self._complain(f"cannot be written: {error.strerror}; its lines wait in memory")

    def sync(self) -> str:
        """Writes what is left and brings it to the disk, where it outlasts a loss of power.

        Says in one line what of all lines so far is not there, empty where nothing is missing. Never raises
        OSError.
        """
        error = self._write()
        try:
            if self._fd is not None:
                os.fdatasync(self._fd)
        except OSError as late:
            self._doubt = late
            self._complain(f"cannot be brought to the disk: {late.strerror}")
        return self._gap(error)

    def close(self) -> str:
        """Writes what is left and closes; says in one line what could not be written, empty where all was."""
        error = self._write()
        fd, self._fd = self._fd, None
        try:
            if fd is not None:
                os.close(fd)
        except OSError as late:  # as a file system over a network does that learns only now of a full disk
            self._doubt = late
        gap = self._gap(error)
        self._doubt, self.lost = None, 0
        self._pending.clear()
        return gap

    def _gap(self, error: OSError | None) -> str:
        """What is missing in the file, in one line; `error` is why what waits could not be written now."""
        missing, doubt = self.lost + self._pending.count(b"\n"), self._doubt
        if not missing:
            return f"{self.path}: lines may not have reached the disk: {doubt.strerror}" if doubt else ""
        reason = error.strerror if error else "there was no room for too long"
        return f"{self.path}: its last lines could not be written ({missing} missing): {reason}"

    def _complain(self, problem: str) -> None:
        now = time.monotonic()
        if self._warned is None or now - self._warned >= WARN_INTERVAL:
            self._warned = now
            self._warn(f"{self.path} {problem}")

    def _write(self) -> OSError | None:
        try:
            while self._pending:
                if self._fd is None:
                    self._fd = _open_at_whole_line(self.path)
                written = os.write(self._fd, self._pending)
                del self._pending[:written]
        except OSError as error:
            return error
        return None


def _open_at_whole_line(path: Path) -> int:
    """Opens a file to append to; a last line that a kill has cut off is taken away first."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.ftruncate(fd, path.read_bytes().rfind(b"\n") + 1)
    return fd
