"""Vectors between launchers, in pieces: to each machine one vector at a time, one piece of it on the way.

Over a slow link a whole vector would delay every other message by seconds. So the next piece follows when the
last one is acknowledged. A machine that has not received the last vector has no part in the next observation.
A vector that takes too long counts as lost, and the rest of it is not sent.
"""

import queue
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from decentnode.communication.wire import digest
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.state.messages import (
    Contribution,
    Join,
    LauncherMessage,
    MeanVector,
    PartialDistance,
    PartialSum,
    VectorAck,
    VectorPiece,
)

PIECE_BYTES = 1 << 18
"""A compromise: another message waits as long as this takes, and each piece takes a round trip."""
Send = Callable[[LauncherMessage, int], int]


@dataclass
class _Outgoing:
    """A vector on its way to one machine."""

    vector: PartialSum | MeanVector
    limit: float
    """When it counts as lost, on the clock of `time.monotonic`."""
    start: int = 0
    """Where the piece starts that is on its way."""
    awaited_ack: VectorAck | None = None
    """The acknowledgement of that piece."""


@dataclass
class VectorSender:
    """The vectors and other contributions of one launcher, and the vectors that it receives."""

    machine: int
    nbytes: int
    """Bytes of a vector."""
    send: Send
    """Sends to a machine and returns the bytes: 0 without a route."""
    contributions: queue.SimpleQueue[Contribution] = field(default_factory=queue.SimpleQueue)
    """What the next `exchange` sends; any thread may add to it."""
    _outgoing: dict[int, _Outgoing] = field(default_factory=dict)
    """By machine the vector that it has not received."""
    _incoming: dict[int, bytearray] = field(default_factory=dict)
    """By machine what has arrived of its vector."""

    def exchange(
        self, messages: Iterable[LauncherMessage], listening: Collection[int]
    ) -> list[LauncherMessage | MeanVector]:
        """Acknowledges pieces, and sends further ones and queued contributions to machines that receive.

        Returns the messages with each whole vector, and the acknowledgement of each, in place of its pieces.
        """
        vectors = [whole for message in messages if (whole := self._take(message)) is not None]
        # After the messages: an acknowledgement that is here must not count as late.
        now = time.monotonic()
        for machine, vector in list(self._outgoing.items()):
            if machine not in listening or now > vector.limit:
                del self._outgoing[machine]
        while not self.contributions.empty():
            contribution = self.contributions.get()
            for machine in listening:
                match contribution:
                    case PartialDistance() | PartialSum(content=b""):
                        self.send(contribution, machine)
                    case _:
                        self._begin(contribution, machine)
        return vectors

    def _take(self, message: LauncherMessage) -> LauncherMessage | MeanVector | None:
        match message:
            case VectorPiece():
                return self._assemble(message)
            case VectorAck():
                return self._continue(message)
            case Join():
                # A new launcher must not receive the rest of a vector for the old one.
                self._outgoing.pop(message.machine, None)
        return message

    def _assemble(self, piece: VectorPiece) -> PartialSum | MeanVector | None:
        """Acknowledges a piece; returns the vector if it is the last one."""
        self.send(VectorAck(self.machine, piece.round, digest(piece.content)), piece.machine)
        content = self._incoming.pop(piece.machine, bytearray())
        # The first piece of another vector: the rest of the last one does not come.
        if piece.start == 0:
            content.clear()
        if piece.start != len(content):
            return None
        content += piece.content
        if len(content) < self.nbytes:
            self._incoming[piece.machine] = content
            return None
        if not piece.count:
            return MeanVector(piece.round, bytes(content))
        return PartialSum(piece.machine, piece.round, piece.count, bytes(content))

    def _continue(self, ack: VectorAck) -> VectorAck | None:
        """Sends the next piece; returns the acknowledgement if it is that of the last one."""
        vector = self._outgoing.get(ack.machine)
        if vector is None or ack != vector.awaited_ack:
            return None
        vector.start += PIECE_BYTES
        if vector.start < len(vector.vector.content):
            self._send_piece(vector, ack.machine)
            return None
        del self._outgoing[ack.machine]
        return ack

    def _send_piece(self, outgoing: _Outgoing, machine: int) -> bool:
        """Sends the piece that is due; returns False, and sends no more of the vector, if it was dropped."""
        vector, content = (
            outgoing.vector,
            outgoing.vector.content[outgoing.start : outgoing.start + PIECE_BYTES],
        )
        outgoing.awaited_ack = VectorAck(machine, vector.round, digest(content))
        count = vector.count if isinstance(vector, PartialSum) else 0
        if not self.send(VectorPiece(self.machine, vector.round, count, outgoing.start, content), machine):
            del self._outgoing[machine]
            return False
        return True

    def _begin(self, vector: PartialSum | MeanVector, machine: int) -> None:
        if machine not in self._outgoing:
            # A large vector on a slow link gets more time.
            limit = time.monotonic() + Timeouts.launcher_vector(len(vector.content))
            self._outgoing[machine] = _Outgoing(vector, limit)
            if self._send_piece(self._outgoing[machine], machine):
                return
        if isinstance(vector, PartialSum):
            # An empty sum, so the coordinator does not wait for this machine.
            self.send(replace(vector, count=0, content=b""), machine)
