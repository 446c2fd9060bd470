"""Files of lines that survive a full disk: lines that it refuses wait in memory."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

MOST_PENDING_BYTES = 16 << 20
"""Bytes that a file keeps in memory while it cannot be written."""
MOST_COLLECTED_BYTES, COLLECTING_INTERVAL = 1 << 16, 1.0
"""After so many bytes, or so many seconds, lines that are collected are written."""
WARN_INTERVAL = 60.0
Warn = Callable[[str], object]
"""Receives a problem of a file, in one line."""


class RateLimiter:
    """Allows something once per WARN_INTERVAL."""

    def __init__(self) -> None:
        self._last: float | None = None

    def allows(self) -> bool:
        """Whether it may happen now; if so, it counts."""
        now = time.monotonic()
        if self._last is not None and now - self._last < WARN_INTERVAL:
            return False
        self._last = now
        return True


class LineFile:
    """A file to append lines to; lines that the disk refuses are written with the next one.

    So a disk that is full for a while loses nothing, and the content is always a prefix of all lines.
    """

    def __init__(self, path: Path, warn: Warn = lambda _: None, collects: bool = False) -> None:
        """Opens the file at the first line; calls `warn` at most once a minute while there is a problem.

        `collects`: lines may wait in memory for a second, so that many of them are one write.
        """
        self.path = path
        self._collects = collects
        self._wrote = 0.0
        """When it wrote last."""
        self._is_synced = True
        """Whether the disk has all that was written."""
        self.lost = 0
        """Lines that did not fit into memory either."""
        self._warn = warn
        self._limiter = RateLimiter()
        self._fd: int | None = None
        self._pending = bytearray()
        self._doubt: OSError | None = None
        """The error for accepted lines that did not reach the disk; the system reports it only once."""

    def append(self, line: bytes) -> None:
        """Writes a line, passed without its newline. Never raises OSError."""
        # After the first lost line all are lost, so the file stays a prefix.
        if len(self._pending) + len(line) >= MOST_PENDING_BYTES or self.lost:
            self.lost += 1
        else:
            self._pending += line + b"\n"
        if self._collects and len(self._pending) < MOST_COLLECTED_BYTES:
            now = time.monotonic()
            if now - self._wrote < COLLECTING_INTERVAL:
                return
            self._wrote = now
        if (error := self._write()) is not None:
            self._complain(f"cannot be written: {error.strerror}; its lines wait in memory")

    def flush(self) -> str:
        """Writes what is left; returns in one line what is missing of all lines so far. Never raises OSError.

        The operating system has the rest, which a loss of power would lose.
        """
        return self._gap(self._write())

    def sync(self) -> str:
        """Writes what is left and syncs it, so that it survives a loss of power.

        Returns in one line what is missing of all lines so far; empty if nothing is. Never raises OSError.
        """
        error = self._write()
        try:
            # Nodes that share a file ask for this one after the other.
            if self._fd is not None and not self._is_synced:
                os.fdatasync(self._fd)
                self._is_synced = True
        except OSError as late:
            self._doubt = late
            self._complain(f"cannot be brought to the disk: {late.strerror}")
        return self._gap(error)

    def close(self) -> str:
        """Writes what is left and closes; returns in one line what could not be written, or an empty text."""
        error = self._write()
        fd, self._fd = self._fd, None
        try:
            if fd is not None:
                os.close(fd)
        except OSError as late:  # a network file system may report a full disk only here
            self._doubt = late
        gap = self._gap(error)
        self._doubt, self.lost = None, 0
        self._pending.clear()
        return gap

    def _gap(self, error: OSError | None) -> str:
        """Returns in one line what the file lacks; `error`: why waiting lines could not be written now."""
        missing, doubt = self.lost + self._pending.count(b"\n"), self._doubt
        if not missing:
            return f"{self.path}: lines may not have reached the disk: {doubt.strerror}" if doubt else ""
        reason = error.strerror if error else "there was no room for too long"
        return f"{self.path}: its last lines could not be written ({missing} missing): {reason}"

    def _complain(self, problem: str) -> None:
        if self._limiter.allows():
            self._warn(f"{self.path} {problem}")

    def _write(self) -> OSError | None:
        try:
            while self._pending:
                if self._fd is None:
                    self._fd = open_at_whole_line(self.path)
                self._is_synced = False
                written = os.write(self._fd, self._pending)
                del self._pending[:written]
                # The disk accepts what nobody will find.
                if self._doubt is None and not os.fstat(self._fd).st_nlink:
                    self._doubt = OSError(errno.ENOENT, "the file was deleted")
                    self._complain("was deleted; its lines are lost")
        except OSError as error:
            return error
        return None


def open_at_whole_line(path: Path) -> int:
    """Opens a file to append to; removes a last line that a kill has cut off."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.ftruncate(fd, path.read_bytes().rfind(b"\n") + 1)
    return fd
