"""What an observer contributes, on its way to the other machines' launchers: one vector at a time to each.

Over a slow link one takes longer than a round, and those of later rounds would wait in memory. So who has not
got the last one yet has no part in the next observation.
"""

import queue
import time
from collections.abc import Callable, Collection, Iterable

from msgspec.structs import replace

from decentnode.notes import Arrived, Join, MeanVector, Note, PartialDistance, PartialSum, has_vector
from decentnode.observer import Contribution

LEAST_SECONDS, LEAST_SPEED = 10.0, 1e5
"""How long a vector may take, or at how many bytes per second; it counts as lost when it takes longer."""
Send = Callable[[Note, int | None], int]


class Outbox:
    """One launcher's."""

    def __init__(self, machine: int, send: Send) -> None:
        """`send` gives a note to a machine and tells the bytes: 0 where no way leads there."""
        self._machine = machine
        self._send = send
        self._contributions: queue.SimpleQueue[Contribution] = queue.SimpleQueue()
        self._under_way: dict[int, tuple[int, float]] = {}
        """By machine the round of the vector that it has not got yet, and when that counts as lost."""

    def put(self, contribution: Contribution) -> None:
        """To be sent with the next exchange; from any thread."""
        self._contributions.put(contribution)

    def exchange(self, notes: Iterable[Note], listening: Collection[int]) -> None:
        """Learns and says what has come, and sends what there is to those that listen."""
        for note in notes:
            machine = getattr(note, "machine", 0)
            if has_vector(note):
                self._send(Arrived(self._machine, note.round), machine)
            # What answers to a vector may overtake the word that it has come.
            if isinstance(note, Arrived | MeanVector | PartialDistance):
                if self._under_way.get(machine, (-1,))[0] == note.round:
                    del self._under_way[machine]
            elif isinstance(note, Join):
                # A launcher that was started anew gets nothing of what was sent to the one before.
                self._under_way.pop(machine, None)
        self._under_way = {machine: one for machine, one in self._under_way.items() if machine in listening}
        while not self._contributions.empty():
            contribution = self._contributions.get()
            for machine in listening:
                self._deliver(contribution, machine)

    def _deliver(self, contribution: Contribution, machine: int) -> None:
        now = time.monotonic()
        if not has_vector(contribution):
            self._send(contribution, machine)
        elif now > self._under_way.get(machine, (-1, 0.0))[1]:
            if self._send(contribution, machine):
                limit = now + max(LEAST_SECONDS, len(contribution.content) / LEAST_SPEED)
                self._under_way[machine] = contribution.round, limit
        elif isinstance(contribution, PartialSum):
            self._send(replace(contribution, count=0, content=b""), machine)
