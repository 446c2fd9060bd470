"""Who has said hello to a host process, and how long it waits for the others."""

import threading
import time
from collections.abc import Callable, Iterable

from decentnode.communication.base import ProcessDirectory
from decentnode.communication.zeromq.links import PeerLinks
from decentnode.errors import StartError

GREET_AGAIN = 1.0
"""Seconds after which those are greeted again that have not answered: a hello may have been lost."""


class HelloBarrier:
    """Waited for by the thread that opens the transport, and told by the one that serves the sockets."""

    def __init__(self, place: ProcessDirectory, links: PeerLinks) -> None:
        self._place = place
        self._links = links
        self._met: set[int] = set()
        self._lost: set[int] = set()
        self._changed = threading.Condition()

    def note(self, process: int) -> bool:
        """Notes that a process has said hello; true when it had done so before."""
        with self._changed:
            again = process in self._met
            self._met.add(process)
            self._changed.notify_all()
        return again

    def lose(self, process: int) -> None:
        """Notes that a process is gone, and that the mailboxes know."""
        with self._changed:
            self._lost.add(process)
            self._changed.notify_all()

    def end(self) -> None:
        """The transport broke, which the first exchange says: nobody is waited for."""
        for process in range(len(self._place.processes)):
            self.note(process)

    def wait(self, processes: set[int], timeout: float, greet: Callable[[Iterable[int]], None]) -> None:
        """Until all have said hello or are gone, with the others greeted again; raises StartError.

        A process that was started again goes on after the grace time without those that are silent.
        """
        began = time.monotonic()
        with self._changed:
            while True:
                left = max(0.0, began + timeout - time.monotonic())
                if self._changed.wait_for(lambda: not self._missing(processes), min(GREET_AGAIN, left)):
                    return
                waited, missing = time.monotonic() - began, self._missing(processes)
                if self._place.incarnation and waited >= self._place.grace and processes & self._met:
                    return
                if waited >= timeout:
                    silent = [rank for p in sorted(missing) for rank in self._place.processes[p].ranks]
                    own = self._place.process.ranks[0]
                    raise StartError(f"rank {own}: no hello from ranks {silent} within {timeout:.0f} s")
                greet(missing)

    def _missing(self, processes: set[int]) -> set[int]:
        return processes - self._met - (self._lost & self._links.gone)
