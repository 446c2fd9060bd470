"""A fork of this process that is the launcher of a run: for a sweep, and for a run that Python starts."""

import contextlib
import mmap
import os
import signal
import struct
from collections.abc import Callable
from functools import partial
from math import nan

from decentnode.core.process_setup import (
    ForkedProcess,
    die_with,
    forget_signal_handlers,
    reset_inherited_signals,
    signals_that_stop,
)
from decentnode.core.streams import explain, fill_standard_streams
from decentnode.errors import STOPPED_BY

_PROGRESS = struct.Struct("<ddddd")
_DIRECTORY = struct.Struct("4096s")
"""A path with the longest name that Linux takes."""


class RunProgress:
    """Memory that the launcher of a run writes and the process that forked it reads.

    It is a file without a name, so that a new program may take it over by its descriptor.
    """

    def __init__(self, fd: int | None = None) -> None:
        """`fd`: the descriptor of memory that another process has made."""
        self.fd = os.memfd_create("decentnode-progress") if fd is None else fd
        size = _PROGRESS.size + _DIRECTORY.size
        os.ftruncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)
        if fd is None:
            self.put(nan, 0.0)

    def put(
        self, began: float, rounds: float, planned: int = 0, virtual: float = nan, wall: float = nan
    ) -> None:
        """Writes the start of the first round on the clock of `time.monotonic`, and the rounds.

        `virtual`, `wall`: the seconds of a simulation, and the real ones that it has taken.
        """
        _PROGRESS.pack_into(self._memory, 0, began, rounds, planned, virtual, wall)

    def get(self) -> tuple[float, float, int, float, float]:
        """Returns the start of the first round (nan before it), the mean rounds that nodes have done, the
        rounds of the run, and virtual and real seconds of a simulation (nan where time is real).
        """
        began, rounds, planned, virtual, wall = _PROGRESS.unpack_from(self._memory)
        return began, rounds, int(planned), virtual, wall

    @property
    def directory(self) -> str:
        """The directory of the run; empty before it is made."""
        return os.fsdecode(_DIRECTORY.unpack_from(self._memory, _PROGRESS.size)[0].rstrip(b"\0"))

    @directory.setter
    def directory(self, path: str) -> None:
        _DIRECTORY.pack_into(self._memory, _PROGRESS.size, os.fsencode(path))

    def close(self) -> None:
        """Closes the memory in this process."""
        self._memory.close()
        os.close(self.fd)


class LauncherProcess(ForkedProcess):
    """The forked launcher as its parent sees it; it has a session and a process group of its own."""

    def __init__(self, work: Callable[..., int], up: int = 0) -> None:
        """Forks a process that does `work`, which returns its exit code, given the ends of `up` pipes.

        The child computes in no thread of this process, and is killed when the calling thread ends.
        """
        # A signal before the child has its own handlers would run those of this process.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPED_BY)
        try:
            super().__init__(partial(_as_launcher, work, os.getpid()), up=up, failed=explain)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def stop(self, signum: int) -> None:
        """Passes a signal on: the first one stops the run gracefully, a later request kills its nodes.

        Does nothing after the end; a handler of signals may still call it then.
        """
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.fd, signum)

    def kill(self) -> None:
        """Ends all processes of the run at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _as_launcher(work: Callable[..., int], parent: int, *ends: int) -> int:
    for signum in signals_that_stop():
        signal.signal(signum, signal.SIG_DFL)
    forget_signal_handlers()
    os.setsid()
    die_with(parent)
    reset_inherited_signals()
    os.close(0)
    fill_standard_streams()
    return work(*ends)
