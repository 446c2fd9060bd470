"""An observer's contributions on their way to other launchers: one vector at a time to each.

Over a slow link a vector takes longer than a round, and later ones would queue in memory. So a machine that
has not received the last vector has no part in the next observation. A vector that takes too long counts as
lost: the connection in which it may still wait is closed.
"""

import queue
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from decentnode.communication.wire import digest
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.cluster.messages import Join, MeanVector, Note, PartialSum, VectorAck, has_vector
from decentnode.launcher.observer.observer import Contribution

Send = Callable[[Note, int | None], int]


@dataclass(frozen=True)
class _Sent:
    """A vector that has not been acknowledged."""

    round: int
    digest: int
    limit: float
    """When it counts as lost, on the clock of `time.monotonic`."""


class VectorSender:
    """The contributions of one launcher."""

    def __init__(self, machine: int, send: Send, cut: Callable[[int], None]) -> None:
        """`send` sends a message to a machine and returns the bytes: 0 without a route; `cut` closes the
        connection for vectors to a machine.
        """
        self._machine = machine
        self._send = send
        self._cut = cut
        self.contributions: queue.SimpleQueue[Contribution] = queue.SimpleQueue()
        """What the next `exchange` sends; any thread may add to it."""
        self._under_way: dict[int, _Sent] = {}
        """By machine the vector that it has not acknowledged."""

    def exchange(self, notes: Iterable[Note], listening: Collection[int]) -> None:
        """Acknowledges received vectors, and sends queued contributions to machines that receive."""
        for note in notes:
            machine = getattr(note, "machine", 0)
            if has_vector(note):
                self._send(VectorAck(self._machine, note.round, digest(note.content)), machine)
            if isinstance(note, Join):
                # A new launcher must not receive vectors for the old one.
                self._give_up(machine)
            elif self._is_confirmed(machine, note):
                del self._under_way[machine]
        # After the messages: an acknowledgement that is here must not count as late.
        now = time.monotonic()
        for machine, sent in list(self._under_way.items()):
            if machine not in listening or now > sent.limit:
                self._give_up(machine)
        while not self.contributions.empty():
            contribution = self.contributions.get()
            for machine in listening:
                self._deliver(contribution, machine)

    def _is_confirmed(self, machine: int, note: Note) -> bool:
        sent = self._under_way.get(machine)
        if sent is None:
            return False
        if isinstance(note, VectorAck):
            return (note.round, note.digest) == (sent.round, sent.digest)
        # A mean that includes the sum may overtake the acknowledgement of the sum.
        return isinstance(note, MeanVector) and note.round == sent.round

    def _give_up(self, machine: int) -> None:
        if self._under_way.pop(machine, None) is not None:
            self._cut(machine)

    def _deliver(self, contribution: Contribution, machine: int) -> None:
        if not has_vector(contribution):
            self._send(contribution, machine)
            return
        if machine not in self._under_way and self._send(contribution, machine):
            content = contribution.content
            # A large vector on a slow link gets more time.
            limit = time.monotonic() + Timeouts.launcher_vector(len(content))
            self._under_way[machine] = _Sent(contribution.round, digest(content), limit)
        elif isinstance(contribution, PartialSum):
            # An empty sum, so machine 0 does not wait for this machine.
            self._send(replace(contribution, count=0, content=b""), machine)
