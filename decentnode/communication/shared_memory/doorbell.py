"""Named pipes between the processes of a machine: they announce payloads in shared memory, and
acknowledgements.

A ZeroMQ message passes a thread of libzmq at either end and wakes the socket thread. A record in a pipe is
read by the node itself while it waits: no other thread wakes up. Records have one length and are written in
one piece, so every read starts with the first byte of a record.
"""

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.exchange.handle import ExchangeHandle
from decentnode.communication.wire import Kind
from decentnode.communication.zmq_poll import milliseconds
from decentnode.errors import StartError

RUNG = frozenset({Kind.NOTICE, Kind.ACKNOWLEDGE})
"""The kinds that use the doorbell. All others need the order that only a link keeps."""
BODY_BYTES = 8
RECORD_BYTES = wire.HEADER_BYTES + BODY_BYTES
READ_BYTES = 512 * RECORD_BYTES
NO_BODY = bytes(BODY_BYTES)
WRITING = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC


class DoorbellReader:
    """The doorbell of one process. Any thread may `hear`; one at a time waits with `attend`, others sleep."""

    def __init__(
        self, place: ProcessDirectory, take: Callable[[bytes, bytes], None], refuse: Callable[[str], None]
    ) -> None:
        """`take` receives header and body of the messages, of which only the kind is checked; `refuse` the
        reason of a wrong record.

        Raises StartError.
        """
        self._path = bell_path(place, place.own)
        self.ringer = DoorbellWriter(place)
        self._take = take
        self._refuse = refuse
        try:
            self._path.unlink(missing_ok=True)
            os.mkfifo(self._path, 0o600)
            # Read and write: with a writer of its own the pipe never reports its end while no peer has it
            # open.
            self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise StartError(
                f"no named pipe can be made: {error} (communication.local=ipc needs none)"
            ) from error
        # Not the pipe itself: the socket thread reads that, too, and would swallow the wake-up.
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._waker, select.POLLIN)
        self._hearing = threading.Lock()
        self._attending = threading.Lock()

    def fileno(self) -> int:
        """Readable when records are waiting."""
        return self._fd

    def hear(self) -> None:
        """Processes all waiting records; waits only for another thread that does the same."""
        # One thread at a time, so records of one peer are processed in their order.
        with self._hearing:
            try:
                content = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            for at in range(0, len(content), RECORD_BYTES):
                head = content[at : at + wire.HEADER_BYTES]
                if at + RECORD_BYTES > len(content):
                    # The kernel writes records whole, so the next read starts with a whole one again.
                    self._refuse("record length")
                elif (kind := head[wire.KIND_AT]) not in RUNG:
                    self._refuse("kind")
                else:
                    end = at + RECORD_BYTES if kind == wire.NOTICE else 0
                    self._take(head, content[at + wire.HEADER_BYTES : end])

    def attend(self, handle: ExchangeHandle, timeout: float) -> bool:
        """Waits for an exchange and processes records; returns False after `timeout` seconds."""
        # Another thread waits already, for another part; it receives for both.
        if not self._attending.acquire(blocking=False):
            return handle.sleep(timeout)
        try:
            own, limit = threading.get_ident(), time.monotonic() + timeout
            # Another thread may finish the exchange, for example after a timeout: it must end the poll below.
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
        # After `close` no thread waits.
        with contextlib.suppress(OSError):
            os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        """Removes the doorbell and stops ringing others; a later writer gets an error from the pipe."""
        self.ringer.close()
        self._path.unlink(missing_ok=True)
        own, self._fd, self._waker = (self._fd, self._waker), -1, -1
        for fd in own:
            os.close(fd)


class DoorbellWriter:
    """Rings the other processes of this machine, once they have attached our shared memory."""

    def __init__(self, place: ProcessDirectory) -> None:
        self._place = place
        self._reached: set[int] = set()
        """Processes that have acknowledged a payload of ours."""
        self.most: float = math.inf
        """Pipes that are kept open; the one that was used least recently is closed."""
        self._pipes: dict[int, int] = {}
        self._lock = threading.Lock()

    def answered(self, process: int) -> None:
        """Enables the doorbell of a process that acknowledged a payload, and so has our segments."""
        if process not in self._reached and self._place.co_located(process):
            with self._lock:
                self._reached.add(process)
                self._pipe(process)

    def _pipe(self, process: int) -> int | None:
        """The pipe to a process, now the last one used; None: it has none any more. With the lock held."""
        fd = self._pipes.pop(process, None)
        if fd is None:
            try:
                fd = os.open(bell_path(self._place, process), WRITING)
            except OSError:
                return None
        self._pipes[process] = fd
        while len(self._pipes) > self.most:
            os.close(self._pipes.pop(next(iter(self._pipes))))
        return fd

    def ring(self, messages: list[wire.Outgoing]) -> list[wire.Outgoing]:
        """Returns the messages that need another way: another kind, or no room in the pipe."""
        # `forget` closes pipes in another thread, and their numbers are reused.
        with self._lock:
            return [message for message in messages if not self._ring(*message)]

    def _ring(self, process: int, header: bytes, body: wire.Body) -> bool:
        # The first payloads take the link, because they must not overtake the HELLO that names the segment.
        if header[wire.KIND_AT] not in RUNG or process not in self._reached:
            return False
        if (fd := self._pipe(process)) is None:
            return False
        try:
            os.write(fd, header + (body or NO_BODY))
        except OSError:
            # A full pipe, or one without a reader: the link takes the message.
            return False
        return True

    def forget(self, process: int) -> None:
        """Disables the doorbell of an ended process; its successor must acknowledge a payload first."""
        with self._lock:
            self._reached.discard(process)
            if (pipe := self._pipes.pop(process, None)) is not None:
                os.close(pipe)

    def close(self) -> None:
        """Disables all doorbells."""
        for process in list(self._pipes):
            self.forget(process)


def bell_path(place: ProcessDirectory, process: int) -> Path:
    """The named pipe of a process of this machine."""
    return Path(place.directory) / f"{place.processes[process].index}.bell"
