"""What node processes tell their launcher, one JSON line each, through a pipe they inherited.

A line is at most PIPE_BUF bytes, so lines of many processes never mix. A launcher that does not read
loses lines; it never holds up a node in its rounds. Mere progress leaves half of the pipe to what counts
more, and the last word of a node waits longer than others, for a launcher that was stopped for a while.
"""

import fcntl
import os
import struct
import termios
import time

import msgspec

from decentnode.core.polling import ready

MOST_BYTES = 4096
"""PIPE_BUF on Linux: what the kernel writes in one piece."""
PATIENCE = 1.0
LAST_PATIENCE = 30.0
"""Seconds that a report waits for room in the pipe: any, and the last one of a node."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A host process has built its nodes and can be reached."""

    process: int
    pid: int


class RoundProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Where a node is."""

    rank: int
    round: int
    loss: float | None
    bytes_sent: int


class Evaluated(msgspec.Struct, frozen=True, tag="evaluated"):
    """A node's model was tested after `round`; `published` says that its vector can be observed."""

    rank: int
    round: int
    accuracy: float
    test_loss: float | None
    """None where it is not a finite number, which JSON cannot say."""
    train_loss: float | None
    bytes_sent: int
    seconds: float
    published: bool


class PeerMissing(msgspec.Struct, frozen=True, tag="missing"):
    """A node goes on without a peer."""

    rank: int
    round: int
    peer: int
    reason: str


class Rejected(msgspec.Struct, frozen=True, tag="refused"):
    """A node did not use what a peer sent, here for the first time."""

    rank: int
    round: int
    peer: int
    reason: str


class FaultInjected(msgspec.Struct, frozen=True, tag="injected"):
    """A fault on purpose has struck a node; of messages, the first that it struck in a round."""

    rank: int
    round: int
    fault: str
    what: str
    """The activity of the node, or the message that was struck."""


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """A node has been waiting for neighbors for a while; told by its launcher, which sees where all are."""

    rank: int
    round: int
    peers: list[int]
    """Whom it waits for, as far as that is known."""
    seconds: float
    """For how long."""
    why: str = ""
    """What the first of them does meanwhile, where that is known."""
    lasts: float = 2.0
    """Seconds from now on for which that holds, unless something else is told."""


class Stuck(msgspec.Struct, frozen=True, tag="stuck"):
    """A node has got on with nothing for too long, and does not merely wait; told by its launcher."""

    rank: int
    round: int
    doing: str
    seconds: float


class DiskProblem(msgspec.Struct, frozen=True, tag="disk"):
    """A file of a node's results cannot be written; its lines wait in memory, or are lost."""

    rank: int
    text: str
    lost: bool = False


class Notice(msgspec.Struct, frozen=True, tag="said"):
    """A line for whoever watches, about the transport of all nodes."""

    rank: int
    text: str


class PeerBack(msgspec.Struct, frozen=True, tag="back"):
    """A node exchanges again with a peer that it had gone on without."""

    rank: int
    round: int
    peer: int


class Restarted(msgspec.Struct, frozen=True, tag="restarted"):
    """A host process has ended as `status` says, and is started again; None: because it was asked for."""

    process: int
    status: int | None
    attempt: int
    """Its new incarnation."""


class Rejoined(msgspec.Struct, frozen=True, tag="came-back"):
    """A node that was started again takes part from `round` on; what it had done of that round is undone."""

    rank: int
    round: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A node has done its last round."""

    rank: int
    rounds: int
    digest: str
    """SHA-256 of the vector's bytes, hexadecimal."""
    bytes_sent: int
    bytes_received: int
    memory_mb: float
    accuracy: float | None
    test_loss: float | None
    refused: dict[str, int] = {}
    """Messages that were not used, by reason."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """A node has ended before its last round, as it was asked to."""

    rank: int
    rounds: int


class Checkpointed(msgspec.Struct, frozen=True, tag="checkpointed"):
    """A node was saved after `round`, and that has reached the disk."""

    rank: int
    round: int


class NotCheckpointed(msgspec.Struct, frozen=True, tag="not-checkpointed"):
    """A node could not be saved after `round`; it goes on, and what was saved before is kept."""

    rank: int
    round: int
    reason: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A node ended with an error; the traceback is in its log."""

    rank: int
    error: str
    out_of_memory: bool = False


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A host process has ended; `status` is its exit code, or minus the signal that killed it."""

    process: int
    status: int


Report = (
    Ready | RoundProgress | Evaluated | PeerMissing | PeerBack | Restarted | Rejoined | Rejected
    | FaultInjected | Waiting | Stuck | DiskProblem | Notice | Finished | Stopped
    | Checkpointed | NotCheckpointed | Failed | Exited
)  # fmt: skip
_DECODER = msgspec.json.Decoder(Report)
_DROPPABLE = (RoundProgress,)
_LAST = (Finished, Stopped, Failed, Exited, Restarted, Rejoined, Ready)


class Reporter:
    """The writing end of the pipe; the same in all processes of a machine."""

    def __init__(self, fd: int, reading_end: int | None = None) -> None:
        """`reading_end`: the pipe's other end, where this process has it open, too."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._reading_end = reading_end
        self._half = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) // 2
        self._last_patience = LAST_PATIENCE

    def let_go_of_the_reading_end(self) -> None:
        """To be called after a fork: else nobody would notice that the launcher reads no more."""
        if self._reading_end is not None:
            os.close(self._reading_end)
            self._reading_end = None

    def send(self, report: Report) -> bool:
        """Writes one line; waits a bounded time for room, and not at all for mere progress."""
        line = msgspec.json.encode(report) + b"\n"
        if len(line) > MOST_BYTES:
            raise ValueError(
                f"a report of {len(line)} bytes; at most {MOST_BYTES} go through the pipe in one piece"
            )
        if isinstance(report, _DROPPABLE):
            return self._unread() < self._half and self._write(line, 0.0)
        if not isinstance(report, _LAST):
            return self._write(line, PATIENCE)
        sent = self._write(line, self._last_patience)
        if not sent:
            # Nobody has read for so long that one wait is enough for all nodes of this process.
            self._last_patience = PATIENCE
        return sent

    def _unread(self) -> int:
        count = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4))
        return int(struct.unpack("i", count)[0])

    def _write(self, line: bytes, patience: float) -> bool:
        deadline = time.monotonic() + patience
        while True:
            try:
                os.write(self._fd, line)
                return True
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                ready([], [self._fd], left)
            except BrokenPipeError:
                return False


class ReportReader:
    """The reading end: complete reports out of whatever pieces the pipe gives."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.closed = False
        self._rest = b""

    def read(self) -> list[Report]:
        """Every report that is there now; never waits."""
        pieces = [self._rest]
        while not self.closed:
            try:
                piece = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                break
            if not piece:
                self.closed = True
                break
            pieces.append(piece)
        *lines, self._rest = b"".join(pieces).split(b"\n")
        return [_DECODER.decode(line) for line in lines]
