"""Processes that torchrun or srun starts beside a machine's first one: they wait for it, and end as it does.

The first one is the launcher, which forks the nodes by itself. The others find it at a socket without a file,
named by user, job and machine, so that several jobs on one machine do not meet.
"""

import contextlib
import hashlib
import os
import signal
import socket
import struct
import sys
import time
from types import FrameType

from decentnode.core.polling import ready
from decentnode.core.signals import signals_that_stop
from decentnode.errors import STOPPED_BY, ExitCode, StartError
from decentnode.mapping.job import SchedulerJob

MOST_SECONDS_TO_APPEAR = 60.0
"""How much later than another process of its machine one may start."""
SECONDS_AFTER_A_SIGNAL = 10.0
"""How long a process that was asked to end waits for the first one to do so."""
LOOK_AGAIN = 0.1
_CREDENTIALS = struct.Struct("3i")


class Companions:
    """The first process's end: tells the others its exit code, when it has one."""

    def __init__(self, job: SchedulerJob) -> None:
        """To be made before anything that takes time; raises StartError when another job is in the way."""
        self._count = job.followers
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(meeting_place(job))
        except OSError as error:
            raise StartError(
                f"{job.starter}: another first process of this job runs on this machine: {error.strerror}"
            ) from error
        # Who has connected waits in the queue, and nobody here need look before the end.
        self._socket.listen(self._count)

    def dismiss(self, code: int) -> None:
        """Tells all others how the run has ended; one that does not appear is not waited for any longer."""
        for number in signals_that_stop():
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        patience = LOOK_AGAIN if code in STOPPED_BY.values() else MOST_SECONDS_TO_APPEAR
        limit = time.monotonic() + patience
        with self._socket, contextlib.suppress(TimeoutError):
            for _ in range(self._count):
                self._socket.settimeout(max(LOOK_AGAIN, limit - time.monotonic()))
                companion, _ = self._socket.accept()
                with companion, contextlib.suppress(OSError):
                    companion.sendall(bytes([code]))


class Follower:
    """Another process's end."""

    def __init__(self, job: SchedulerJob) -> None:
        self._job = job
        self._signal = 0
        """What this process was asked to end with."""
        self._limit = float("inf")

    def wait(self) -> int:
        """Waits for the first process; gives its exit code. Raises StartError when it does not appear.

        A signal is left to that one to obey, which gets it, too; but not for long.
        """
        for number in signals_that_stop():
            signal.signal(number, self._note)
        first = self._find()
        if first is None:
            return 128 + self._signal
        with first:
            while not ready([first.fileno()], seconds=LOOK_AGAIN):
                if time.monotonic() > self._limit:
                    return 128 + self._signal
            return self._read(first)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signal = number
        self._limit = min(self._limit, time.monotonic() + SECONDS_AFTER_A_SIGNAL)

    def _find(self) -> socket.socket | None:
        """A connection to the first process; None when this one is asked to end before there is one."""
        limit = time.monotonic() + MOST_SECONDS_TO_APPEAR
        while not self._signal:
            if time.monotonic() > limit:
                raise StartError(
                    f"{self._job.starter}: the first process of this machine did not appear within "
                    f"{MOST_SECONDS_TO_APPEAR:.0f} s"
                )
            found = self._connect()
            if found is not None:
                return found
            time.sleep(LOOK_AGAIN)
        return None

    def _connect(self) -> socket.socket | None:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            found.connect(meeting_place(self._job))
            credentials = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            # Anybody on this machine may take such a name.
            if _CREDENTIALS.unpack(credentials)[1] == os.getuid():
                return found
        found.close()
        return None

    def _read(self, first: socket.socket) -> int:
        code = b""
        with contextlib.suppress(OSError):
            code = first.recv(1)
        if code:
            return code[0]
        if self._signal:
            return 128 + self._signal
        print(f"{self._job.starter}: the first process of this machine ended without a word", file=sys.stderr)
        return ExitCode.FAILED


def meeting_place(job: SchedulerJob) -> bytes:
    """The name of the socket, in the kernel's own name space."""
    words = f"{os.getuid()}/{job.starter}/{job.identity}/{job.machine}"
    return b"\0decentnode-" + hashlib.sha256(words.encode()).hexdigest()[:32].encode()
