"""Reports of node processes to their launcher: one JSON line each, through an inherited pipe.

A line has at most PIPE_BUF bytes, so lines of many processes never interleave. A launcher that does not read
loses lines but never delays a round. The last report of a node waits longer than others, for a launcher that
was suspended for a while. What a node has done is no report: it stands beside its heartbeat.

Threads: any thread of a node's process, an evaluator or the fork server sends. The main thread of the
launcher reads.
"""

import os
from collections.abc import Mapping
from typing import Literal

import msgspec

from decentnode.core.clock import AwakeClock
from decentnode.core.polling import ready
from decentnode.core.timeouts import Timeouts

MOST_BYTES = 4096
"""PIPE_BUF on Linux: the kernel writes up to that many bytes in one piece."""


class NodeReport(msgspec.Struct, frozen=True):
    """A report about a node."""

    rank: int


class RoundReport(NodeReport, frozen=True):
    """A report about a node in a round, counted from 0."""

    round: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A host process has built its nodes and can be reached."""

    process: int
    pid: int


class RoundProgress(RoundReport, frozen=True, tag="progress"):
    """The last round that a node has done; its launcher, which reads it in memory, sends it to all."""

    loss: float | None
    bytes_sent: int
    epsilon: float | None = None
    """What its private steps have spent so far, where that is a claim."""


class Published(RoundReport, frozen=True, tag="published"):
    """A node has reached an evaluation after `round`."""

    train_loss: float | None
    bytes_sent: int
    seconds: float
    """Seconds since the start of the run."""
    published: bool
    """Whether its vector is there for the observer."""
    evaluation: Literal["here", "background", "none"] = "here"
    """Who evaluates the model and sends `Evaluated`: the node, an evaluator of its machine, or nobody."""
    wall_seconds: float | None = None
    """Real seconds since the start, where `seconds` are those of a simulation."""


class Evaluated(RoundReport, frozen=True, tag="evaluated"):
    """A node's model was tested after `round`."""

    metrics: Mapping[str, float | None]
    """The scores by name; None if not finite, which JSON cannot represent. Empty if the evaluation failed."""


class PooledPiece(RoundReport, frozen=True, tag="pooled"):
    """A piece of what metrics have taken of a node's own test samples; sent before `Evaluated`."""

    index: int
    pieces: int
    content: bytes


class PeerMissing(RoundReport, frozen=True, tag="missing"):
    """A node continues without a peer."""

    peer: int
    reason: str
    is_unmet: bool = False
    """Whether there never was a link between their processes."""


class Rejected(RoundReport, frozen=True, tag="refused"):
    """A node refused a payload of a peer for the first time."""

    peer: int
    reason: str


class FaultInjected(RoundReport, frozen=True, tag="injected"):
    """An injected fault acted on a node; for message faults the first message of a round."""

    fault: str
    what: str
    """The node's activity, or the message."""


class Waiting(RoundReport, frozen=True, tag="waiting"):
    """A node has waited for neighbors for a while; the launcher reports it, which reads all heartbeats."""

    peers: list[int]
    """The peers it waits for, as far as known."""
    seconds: float
    """How long it has waited."""
    why: str = ""
    """What the first of them is doing, if known."""
    lasts: float = 2.0
    """Seconds for which this stays valid unless a newer report arrives."""


class Stuck(RoundReport, frozen=True, tag="stuck"):
    """A node without progress for too long that does not wait for another; reported by its launcher."""

    doing: str
    seconds: float


class DiskProblem(NodeReport, frozen=True, tag="disk"):
    """A file of a node's results cannot be written; its lines wait in memory, or are lost."""

    text: str
    lost: bool = False


class Notice(NodeReport, frozen=True, tag="said"):
    """A line for the console about the transport of all nodes."""

    text: str


class Degraded(RoundReport, frozen=True, tag="degraded"):
    """Something beside the nodes has ended or does not answer, and what follows for the results."""

    part: str
    """The kind of the event that records it."""
    text: str


class PeerBack(RoundReport, frozen=True, tag="back"):
    """A node exchanges again with a peer that it had continued without."""

    peer: int


class Restarted(msgspec.Struct, frozen=True, tag="restarted"):
    """A host process exited with `status` and is started again; None: on request."""

    process: int
    status: int | None
    attempt: int
    """The new incarnation of the process."""


class Rejoined(RoundReport, frozen=True, tag="came-back"):
    """A restarted node takes part from `round` on; what it had done of that round is discarded."""


class Finished(NodeReport, frozen=True, tag="finished"):
    """A node has done its last round."""

    rounds: int
    digest: str
    """SHA-256 of the vector's bytes, hexadecimal."""
    bytes_sent: int
    bytes_received: int
    memory_mb: float
    metrics: Mapping[str, float | None] = {}
    """The scores by name, as in `Evaluated`; empty if this process did not evaluate the last round."""
    refused: dict[str, int] = {}
    """Messages that were refused, by reason."""
    epsilon: float | None = None
    """What its private steps have spent, where that is a claim."""
    doubts: tuple[str, ...] = ()
    """Why nothing is claimed."""
    attacker_weight: float | None = None
    """The weight that models of adversaries had in a mix, the mean over rounds; None without adversaries."""
    virtual_seconds: float | None = None
    """When it ended in a simulation; None: time is real."""


class Stopped(NodeReport, frozen=True, tag="stopped"):
    """A node ended before its last round, on request."""

    rounds: int


class Checkpointed(RoundReport, frozen=True, tag="checkpointed"):
    """A checkpoint of a node after `round` is on disk."""


class NotCheckpointed(RoundReport, frozen=True, tag="not-checkpointed"):
    """A node could not be saved after `round`; it continues, and earlier checkpoints are kept."""

    reason: str


class Failed(NodeReport, frozen=True, tag="failed"):
    """A node ended with an error; the traceback is in its log."""

    error: str
    out_of_memory: bool = False
    is_bad_input: bool = False
    """Whether the user has to change something, such as a port that another program has taken."""


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A host process has ended; `status` is its exit code, or minus the signal that killed it."""

    process: int
    status: int


Report = (
    Ready | RoundProgress | Published | Evaluated | PooledPiece | PeerMissing | PeerBack | Restarted
    | Rejoined | Rejected | FaultInjected | Waiting | Stuck | DiskProblem | Notice | Degraded | Finished
    | Stopped | Checkpointed | NotCheckpointed | Failed | Exited
)  # fmt: skip
_DECODER = msgspec.json.Decoder(Report)
CHECK_INTERVAL = 1.0
_LAST = (Finished, Stopped, Failed, Exited, Restarted, Rejoined, Ready)


class Reporter:
    """The writing end of the pipe, shared by all processes of a machine."""

    def __init__(self, fd: int, reading_end: int | None = None) -> None:
        """`reading_end`: the other end of the pipe, if this process has it open, too."""
        # A full pipe must never block a node, so `_write` waits with a limit of its own.
        os.set_blocking(fd, False)
        self.fd = fd
        self._reading_end = reading_end
        self._last_timeout = Timeouts.last_report

    def close_reading_end(self) -> None:
        """Closes the reading end after a fork; otherwise no write would fail after the launcher has died."""
        if self._reading_end is not None:
            os.close(self._reading_end)
            self._reading_end = None

    def send(self, report: Report) -> bool:
        """Writes one line; waits a bounded time for room."""
        line = msgspec.json.encode(report) + b"\n"
        if len(line) > MOST_BYTES:
            raise ValueError(
                f"a report of {len(line)} bytes; at most {MOST_BYTES} go through the pipe in one piece"
            )
        if not isinstance(report, _LAST):
            return self._write(line, Timeouts.report)
        sent = self._write(line, self._last_timeout)
        if not sent:
            # The launcher has not read for so long that one wait is enough for all nodes of this process.
            self._last_timeout = Timeouts.report
        return sent

    def _write(self, line: bytes, timeout: float) -> bool:
        clock = AwakeClock(CHECK_INTERVAL)
        deadline = clock.now() + timeout
        while True:
            try:
                os.write(self.fd, line)
                return True
            except BlockingIOError:
                # The pipe is full: the launcher is slow or suspended.
                left = deadline - clock.now()
                if left <= 0:
                    return False
                ready([], [self.fd], min(left, CHECK_INTERVAL))
            # The launcher is dead, and the fork server ends this process soon.
            except BrokenPipeError:
                return False


class ReportReader:
    """The reading end: returns complete reports, whatever pieces arrive."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.closed = False
        self._incomplete = b""

    def read(self) -> list[Report]:
        """All reports that are there now; never waits."""
        # Reads until the pipe is empty, so one wake-up serves all nodes.
        pieces = [self._incomplete]
        while not self.closed:
            try:
                pieces.append(os.read(self.fd, 1 << 16))
            except BlockingIOError:
                break
            self.closed = not pieces[-1]
        # A read may end within a line; the rest of that line is in the next one.
        *lines, self._incomplete = b"".join(pieces).split(b"\n")
        return [_DECODER.decode(line) for line in lines]
