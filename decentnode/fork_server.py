"""The parent of a machine's host processes: forks them, tells how they end, and outlives the launcher.

It stays single-threaded and opens no socket, so that a fork copies nothing that breaks when copied.
When the launcher is gone, however it went, the server ends its children and removes what they left.
"""

import contextlib
import ctypes
import gc
import os
import select
import shutil
import signal
import time
from typing import NoReturn

from decentnode.host import Inheritance, run_host
from decentnode.reports import Exited

_PR_SET_PDEATHSIG = 1
STOP, KILL = b"s", b"k"
KILL_AFTER = 3.0
"""Seconds between asking the host processes to stop and killing them."""


class ForkServer:
    """The launcher's end: a process that has everything in memory and forks from it."""

    def __init__(self, inheritance: Inheritance, positions: list[int]) -> None:
        """Forks the server, which forks one host process for each position. No thread runs yet."""
        self._lifeline_end, self._lifeline = os.pipe()
        gc.collect()
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._lifeline)
            _serve(inheritance, positions, self._lifeline_end)
        os.close(self._lifeline_end)

    def stop(self) -> None:
        """Asks all host processes to end, and kills them after `KILL_AFTER` seconds."""
        self._command(STOP)

    def kill(self) -> None:
        """Ends all host processes at once."""
        self._command(KILL)

    def close(self) -> None:
        """Lets go of the server, which ends with its children, and waits for it."""
        os.close(self._lifeline)
        # A signal may still come, and the number may belong to another file by then.
        self._lifeline = -1
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _command(self, command: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._lifeline, command)


def _serve(inheritance: Inheritance, positions: list[int], lifeline: int) -> NoReturn:
    try:
        inheritance.reporter.let_go_of_the_reading_end()
        _Children(inheritance, positions, lifeline).serve()
    finally:
        shutil.rmtree(inheritance.socket_dir, ignore_errors=True)
        os._exit(0)


class _Children:
    """The server's end."""

    def __init__(self, inheritance: Inheritance, positions: list[int], lifeline: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._inheritance = inheritance
        self._lifeline: int | None = lifeline
        self._kill_at: float | None = None
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._wake = wake_read
        self._position: dict[int, int] = {}
        for position in positions:
            self._fork(position, (lifeline, wake_read, wake_write))

    def serve(self) -> None:
        """Until the last child has ended."""
        while self._position:
            watched = [fd for fd in (self._wake, self._lifeline) if fd is not None]
            pause = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            readable, _, _ = select.select(watched, [], [], pause)
            if self._wake in readable:
                os.read(self._wake, 4096)
            if self._lifeline in readable:
                self._obey(os.read(self._lifeline, 1))
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal_all(signal.SIGKILL)
            self._reap()

    def _fork(self, position: int, own_fds: tuple[int, ...]) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in own_fds:
                os.close(fd)
            run_host(self._inheritance, position)
        self._position[pid] = position

    def _obey(self, command: bytes) -> None:
        if command == STOP:
            self._signal_all(signal.SIGTERM)
            self._kill_at = time.monotonic() + KILL_AFTER
            return
        if not command:
            self._lifeline = None
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, signum: int) -> None:
        self._kill_at = None
        for pid in self._position:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def _reap(self) -> None:
        while self._position:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self._inheritance.reporter.send(Exited(self._position.pop(pid), code))


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, also when that has happened already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
