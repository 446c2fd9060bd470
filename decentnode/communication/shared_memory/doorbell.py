"""Named pipes between the processes of a machine, which carry all messages that are not large.

A ZeroMQ message passes a thread of libzmq at either end and wakes the socket thread. A record in a pipe is
read by the node itself while it waits: no other thread wakes up. Records are written in one piece and read
with all others that are there, so every read starts with the first byte of a record.

Threads: any thread may receive, one at a time; one at a time waits. That is the only node of the process, or
the socket thread.
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.exchange.handle import ExchangeHandle
from decentnode.communication.zmq_poll import milliseconds
from decentnode.core.process_setup import close_here, close_in_children
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError


class DoorbellReader:
    """The doorbell of one process. Any thread may `receive`; one at a time waits with `attend`."""

    def __init__(
        self,
        directory: ProcessDirectory,
        take: Callable[[bytes, bytes], None],
        refuse: Callable[[str], None],
        is_doorbell: bool = True,
    ) -> None:
        """`take` receives header and body of the messages; `refuse` the reason of a wrong record.

        Raises StartError.
        """
        import fcntl

        self._path = pipe_path(directory, directory.own, is_doorbell)
        self._take = take
        self._refuse = refuse
        try:
            Path(self._path).unlink(missing_ok=True)
            os.mkfifo(self._path, 0o600)
            # Read and write: with a writer of its own the pipe never reports its end while no peer has it
            # open.
            self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            # A writer sees the death of this process when the last reader has closed the pipe.
            close_in_children(self._fd)
            self._read_bytes = fcntl.fcntl(self._fd, fcntl.F_GETPIPE_SZ)
        except OSError as error:
            raise StartError(
                f"no named pipe can be made: {error} (communication.local=ipc needs none)"
            ) from error
        # Not the pipe itself: the socket thread reads that, too, and would swallow the wake-up.
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._waker, select.POLLIN)
        self._receiving = threading.Lock()
        self._attending = threading.Lock()

    def fileno(self) -> int:
        """Readable when records are waiting."""
        return self._fd

    # Two locks. One thread at a time reads the pipe, so records of one peer are processed in their order. One
    # thread at a time waits at it; another that waits for another part sleeps, and is woken by what the first
    # one receives. The socket thread does not wait here: it reads when the pipe is readable.

    def receive(self) -> None:
        """Processes all waiting records; waits only for another thread that does the same."""
        with self._receiving:
            try:
                content = os.read(self._fd, self._read_bytes)
            except BlockingIOError:
                return
            at = 0
            while at < len(content):
                head = content[at : at + wire.HEADER_BYTES]
                body, at = at + wire.HEADER_BYTES, at + wire.HEADER_BYTES + wire.body_bytes(head)
                if at > len(content):
                    # The kernel writes records whole, so the next read starts with a whole one again.
                    self._refuse("record length")
                else:
                    self._take(head, content[body:at])

    def attend(self, handle: ExchangeHandle, timeout: float) -> bool:
        """Waits for an exchange and processes records; returns False after `timeout` seconds."""
        # Another thread waits already, for another part; it receives for both.
        if not self._attending.acquire(blocking=False):
            return handle.sleep(timeout)
        try:
            own_thread, began = threading.get_ident(), time.monotonic()
            # Another thread may finish the exchange, for example after a timeout: it must end the poll below.
            handle.call_when_done(lambda: None if threading.get_ident() == own_thread else self._wake())
            # Asleep, it would cost its peers a wake-up each, which takes longer than all else that they do.
            limit, awake_until = began + timeout, began + Timeouts.spin
            while not handle.done and (now := time.monotonic()) < limit:
                if now < awake_until:
                    os.sched_yield()
                for ready, _ in self._poll.poll(0 if now < awake_until else milliseconds(limit)):
                    if ready == self._waker:
                        os.eventfd_read(ready)
                    else:
                        self.receive()
            return handle.done
        finally:
            self._attending.release()

    def _wake(self) -> None:
        # After `close` no thread waits.
        with contextlib.suppress(OSError):
            os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        """Removes the doorbell; a later writer gets an error from the pipe."""
        Path(self._path).unlink(missing_ok=True)
        pipe, waker, self._fd, self._waker = self._fd, self._waker, -1, -1
        close_here(pipe)
        os.close(waker)


class OwnPipes:
    """What this process reads: its doorbell, and the pipe of its socket thread."""

    def __init__(
        self, directory: ProcessDirectory, take: Callable[[bytes, bytes], None], refuse: Callable[[str], None]
    ) -> None:
        """`take` and `refuse` as for `DoorbellReader`. Raises StartError."""
        self.doorbell = DoorbellReader(directory, take, refuse)
        self._pipe_reader = DoorbellReader(directory, take, refuse, is_doorbell=False)

    def fileno(self) -> int:
        """Readable when records wait in the pipe of the socket thread."""
        return self._pipe_reader.fileno()

    def receive(self) -> None:
        """Doorbell first: what a sender rang before a message must be processed before it."""
        self.doorbell.receive()
        self._pipe_reader.receive()

    def close(self) -> None:
        """Removes both; a later writer gets an error."""
        self.doorbell.close()
        self._pipe_reader.close()


def pipe_path(directory: ProcessDirectory, process: int, is_doorbell: bool) -> str:
    """The doorbell of a process of this machine, or the pipe that its socket thread reads."""
    return f"{directory.directory}/{directory.processes[process].index}.{'bell' if is_doorbell else 'pipe'}"
