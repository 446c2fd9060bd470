"""Named pipes between the processes of a machine: they say that something lies in shared memory, or was read.

A message of ZeroMQ passes a thread of libzmq at either end and wakes the one that serves the sockets. What is
written into a pipe is read by the node itself while it waits: nobody else is woken, before or after.
Records have one length and are written at once, so every read begins with a record's first byte.
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.exchange.handle import ExchangeHandle
from decentnode.communication.interceptor import Received
from decentnode.communication.wire import Kind
from decentnode.communication.zmq_poll import milliseconds
from decentnode.errors import StartError

RUNG = frozenset({Kind.NOTICE, Kind.ACKNOWLEDGE})
"""The kinds that come this way. All others keep their order, which only a link does."""
BODY_BYTES = 8
RECORD_BYTES = wire.HEADER_BYTES + BODY_BYTES
READ_BYTES = 512 * RECORD_BYTES
NO_BODY = bytes(BODY_BYTES)
WRITING = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC


class DoorbellReader:
    """What one process hears. Any thread may `hear`; one at a time waits with `attend`, and others sleep."""

    def __init__(
        self, place: ProcessDirectory, take: Callable[[Received], None], refuse: Callable[[str], None]
    ) -> None:
        """`take` gets what comes, unchecked but for its kind; `refuse` the reason where that is wrong.

        Raises StartError.
        """
        self._path = bell_path(place, place.own)
        self.ringer = DoorbellWriter(place)
        self._take = take
        self._refuse = refuse
        try:
            self._path.unlink(missing_ok=True)
            os.mkfifo(self._path, 0o600)
            # Its own writing end keeps the pipe from reporting an end whenever nobody else has it open.
            self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise StartError(
                f"no named pipe can be made: {error} (communication.local=ipc needs none)"
            ) from error
        # Not the pipe itself: the thread of the sockets reads that, too, and would swallow the wake-up.
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._waker, select.POLLIN)
        self._hearing = threading.Lock()
        self._attending = threading.Lock()

    def fileno(self) -> int:
        """Readable when there is something to hear."""
        return self._fd

    def hear(self) -> None:
        """Takes in what has come; waits for nothing but another thread that does so."""
        with self._hearing:
            try:
                content = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            for at in range(0, len(content), RECORD_BYTES):
                self._hear_one(content[at : at + RECORD_BYTES])

    def _hear_one(self, record: bytes) -> None:
        if len(record) < RECORD_BYTES:
            # Whoever wrote it, the next read begins with a whole one again.
            self._refuse("record length")
        elif (kind := wire.kind_of(record)) not in RUNG:
            self._refuse("kind")
        else:
            end = RECORD_BYTES if kind == Kind.NOTICE else wire.HEADER_BYTES
            header, body = record[: wire.HEADER_BYTES], record[wire.HEADER_BYTES : end]
            self._take(([zmq.Frame(header), zmq.Frame(body)], False))

    def attend(self, handle: ExchangeHandle, timeout: float) -> bool:
        """Waits for an exchange and takes in what comes; false when it took longer than `timeout` seconds."""
        if not self._attending.acquire(blocking=False):
            return handle.sleep(timeout)
        try:
            own, limit = threading.get_ident(), time.monotonic() + timeout
            handle.call_when_done(lambda: None if threading.get_ident() == own else self._wake())
            while not handle.done and time.monotonic() < limit:
                for ready, _ in self._poll.poll(milliseconds(limit)):
                    if ready == self._waker:
                        os.eventfd_read(ready)
                    else:
                        self.hear()
            return handle.done
        finally:
            self._attending.release()

    def _wake(self) -> None:
        # After `close` nobody waits.
        with contextlib.suppress(OSError):
            os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        """Ends it, and rings nobody any more; who rings it is told so by the pipe."""
        self.ringer.close()
        self._path.unlink(missing_ok=True)
        own, self._fd, self._waker = (self._fd, self._waker), -1, -1
        for fd in own:
            os.close(fd)


class DoorbellWriter:
    """Rings the bells of the other processes here, once they have our shared memory."""

    def __init__(self, place: ProcessDirectory) -> None:
        self._place = place
        self._unheard = {process for process in range(len(place.processes)) if place.co_located(process)}
        """Who is not known to have read anything of ours yet."""
        self._pipes: dict[int, int] = {}
        self._lock = threading.Lock()

    def answered(self, process: int) -> None:
        """A process has read a payload of ours, so it knows where they lie: it is rung from now on."""
        if process in self._unheard:
            with self._lock, contextlib.suppress(OSError):
                self._unheard.discard(process)
                self._pipes[process] = os.open(bell_path(self._place, process), WRITING)

    def ring(self, messages: list[wire.Outgoing]) -> list[wire.Outgoing]:
        """Returns those that have to go another way: of another kind, or there is no room for them."""
        with self._lock:
            return [message for message in messages if not self._ring(*message)]

    def _ring(self, process: int, header: bytes, body: wire.Body) -> bool:
        if process not in self._pipes or wire.kind_of(header) not in RUNG:
            return False
        try:
            os.write(self._pipes[process], header + (bytes(body) or NO_BODY))
        except OSError:
            return False
        return True

    def forget(self, process: int) -> None:
        """A process has ended; what comes in its place has to be introduced to."""
        with self._lock:
            if self._place.co_located(process):
                self._unheard.add(process)
            if (pipe := self._pipes.pop(process, None)) is not None:
                os.close(pipe)

    def close(self) -> None:
        """Rings nobody any more."""
        for process in list(self._pipes):
            self.forget(process)


def bell_path(place: ProcessDirectory, process: int) -> Path:
    """Where a process of this machine is rung."""
    return Path(place.directory) / f"{place.processes[process].index}.bell"
