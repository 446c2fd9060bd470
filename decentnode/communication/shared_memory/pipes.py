"""The pipes into the other processes of a machine.

A process has a doorbell for the messages of exchanges, and a pipe for all others, which its socket thread
reads. Opening one takes some microseconds, a DEALER and its monitor a thousand.

Threads: any thread writes and opens, the socket thread closes, all with the lock of the links.
"""

import os
import select
from collections.abc import Callable

from decentnode.communication import wire
from decentnode.communication.wire import Kind

RUNG = frozenset({Kind.NOTICE, Kind.ACKNOWLEDGE, Kind.LEAVE})
"""The kinds that the node itself reads while it waits."""
MOST_PIPED = select.PIPE_BUF - wire.HEADER_BYTES
"""Bytes of a body that the kernel writes together with its header."""
WRITING = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
NO_READER, FULL = -1, -2
"""Why a pipe could not be opened: nobody reads it, or its reader has not read it for long."""


class PeerPipes:
    """The pipes of other processes, which the first message opens; its caller holds the lock of the links."""

    def __init__(
        self,
        path_of: Callable[[int, bool], str | None],
        hello_messages: Callable[[int, bool], list[wire.Outgoing]],
        record_hello: Callable[[int], None],
        epoll: "select.epoll",
    ) -> None:
        """`path_of`: the pipe of a process, or its doorbell, None where it has none; `hello_messages`: the
        first messages for it; `record_hello` is called when they were sent; `epoll` learns of lost readers.
        """
        self._path_of = path_of
        self._hello_messages = hello_messages
        self._record_hello = record_hello
        self._epoll = epoll
        self._pipes: dict[int, int] = {}
        """By process the descriptor of its pipe, or why it could not be opened."""
        self._bells: dict[int, int] = {}
        """By process the descriptor of its doorbell."""
        self._writes_to: dict[int, int] = {}
        """By descriptor the process that reads it."""

    def __contains__(self, process: int) -> bool:
        """Whether a pipe of a process is open, or was tried; for any thread."""
        return process in self._bells or process in self._pipes

    @property
    def processes(self) -> list[int]:
        """All processes that it contains, some twice; for any thread."""
        return [*tuple(self._bells), *tuple(self._pipes)]

    def reaches(self, process: int) -> bool:
        """Whether a process has pipes at all."""
        return self._path_of(process, False) is not None

    def write(self, process: int, header: bytes, body: wire.Body, opens: bool) -> bool:
        """Writes a message into a pipe, which it `opens` if need be; False: it must go another way."""
        is_doorbell = header[wire.KIND_AT] in RUNG
        pipe = (self._bells if is_doorbell else self._pipes).get(process)
        record = b"" if len(body) > MOST_PIPED else header + body
        if pipe is None and opens:
            return self._open(process, is_doorbell, record) >= 0 and bool(record)
        if pipe is None or not record:
            return False
        try:
            os.write(pipe, record)
        except BlockingIOError:
            return False
        except OSError:
            # Without a reader: the process has died, which the event of its pipe shows.
            return True
        return True

    def connect(self, process: int) -> bool:
        """Opens the pipe of a socket thread, unless it is open; False: that failed, as `has_failed` shows."""
        if self._pipes.get(process, NO_READER) < 0:
            self._pipes[process] = self._open(process, is_doorbell=False)
        return not self.has_failed(process)

    def has_failed(self, process: int) -> bool:
        """Whether `connect` could not open the pipe of a process."""
        return self._pipes.get(process, 0) < 0

    def is_full(self, process: int) -> bool:
        """Whether that was because the process, which lives, has not read its pipe for long."""
        return self._pipes.get(process) == FULL

    def _open(self, process: int, is_doorbell: bool, first: bytes = b"") -> int:
        """Opens the doorbell or the pipe of a process, and writes a hello and the `first` record there.

        Returns the descriptor, or why there is none.
        """
        if (path := self._path_of(process, is_doorbell)) is None:
            return NO_READER
        pipe = -1
        try:
            pipe = os.open(path, WRITING)
            # HELLO must be the first message, also of a doorbell.
            records = [
                *(header + body for _, header, body in self._hello_messages(process, is_doorbell)),
                first,
            ]
            whole = b"".join(records)
            # All at once where the kernel does that: the reader wakes up once.
            for record in [whole] if len(whole) <= select.PIPE_BUF else records:
                os.write(pipe, record)
        except OSError as error:
            if pipe >= 0:
                os.close(pipe)
            return FULL if isinstance(error, BlockingIOError) else NO_READER
        # A pipe without a reader is an error, the only event here; it is reported once.
        self._epoll.register(pipe, select.EPOLLET)
        self._writes_to[pipe] = process
        (self._bells if is_doorbell else self._pipes)[process] = pipe
        self._record_hello(process)
        return pipe

    def reader_of(self, fd: int) -> int | None:
        """The process that reads an open pipe; None: the descriptor is no pipe of these."""
        return self._writes_to.get(fd)

    def end(self, process: int) -> None:
        """Closes the pipes of a process."""
        pipes = [self._bells.pop(process, -1), self._pipes.pop(process, -1)]
        for pipe in (fd for fd in pipes if fd >= 0):
            self._epoll.unregister(pipe)
            del self._writes_to[pipe]
            os.close(pipe)
