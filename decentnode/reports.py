"""What node processes tell their launcher, one JSON line each, through a pipe they inherited.

A line is at most PIPE_BUF bytes, so lines of many processes never mix. A launcher that does not read
loses lines; it never holds up a node.
"""

import os
import select
import time

import msgspec

MOST_BYTES = 4096
"""PIPE_BUF on Linux: what the kernel writes in one piece."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A host process has built its nodes and can be reached."""

    process: int
    pid: int


class Progress(msgspec.Struct, frozen=True, tag="progress"):
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


class Injected(msgspec.Struct, frozen=True, tag="injected"):
    """A fault on purpose has struck a node; of messages, the first that it struck in a round."""

    rank: int
    round: int
    fault: str
    what: str
    """The activity of the node, or the message that was struck."""


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


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A node ended with an error; the traceback is in its log."""

    rank: int
    error: str
    out_of_memory: bool = False


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A host process has ended; `status` is its exit code, or minus the signal that killed it."""

    process: int
    status: int


Report = Ready | Progress | Evaluated | PeerMissing | Rejected | Injected | Finished | Failed | Exited
_DECODER = msgspec.json.Decoder(Report)
_DROPPABLE = (Progress,)


class Reporter:
    """The writing end of the pipe; the same in all processes of a machine."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    def send(self, report: Report) -> bool:
        """Writes one line; waits at most a second for room, and not at all for mere progress."""
        line = msgspec.json.encode(report) + b"\n"
        if len(line) > MOST_BYTES:
            raise ValueError(
                f"a report of {len(line)} bytes; at most {MOST_BYTES} go through the pipe in one piece"
            )
        deadline = time.monotonic() + (0.0 if isinstance(report, _DROPPABLE) else 1.0)
        while True:
            try:
                os.write(self._fd, line)
                return True
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                select.select([], [self._fd], [], left)
            except BrokenPipeError:
                return False


class Inflow:
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
