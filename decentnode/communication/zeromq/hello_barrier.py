"""Which processes have sent HELLO, and how long this one waits for the others.

Threads: the thread that opens the transport waits here; the socket thread reports what arrives.
"""

import threading
from collections.abc import Callable

from decentnode.communication.base import ProcessDirectory
from decentnode.communication.zeromq.links import PeerLinks
from decentnode.core.clock import AwakeClock
from decentnode.errors import StartError

HELLO_INTERVAL = 1.0
"""Seconds after which HELLO is resent to silent processes: one may have been lost."""


class HelloBarrier:
    """The opening thread waits here; the socket thread reports what arrives."""

    def __init__(self, directory: ProcessDirectory, links: PeerLinks) -> None:
        self._directory = directory
        self._links = links
        self.seen: set[int] = set()
        """The processes that have sent HELLO."""
        self._lost: set[int] = set()
        self._changed = threading.Condition()

    def note(self, process: int) -> bool:
        """Records a HELLO of a process; returns True if it is not the first."""
        with self._changed:
            again = process in self.seen
            self.seen.add(process)
            self._changed.notify_all()
        return again

    def note_lost(self, process: int) -> None:
        """Records that a process is lost and its ranks are marked so in all mailboxes."""
        with self._changed:
            self._lost.add(process)
            self._changed.notify_all()

    def end(self) -> None:
        """Ends the wait after an error of the transport, which the first exchange reports."""
        for process in range(len(self._directory.processes)):
            self.note(process)

    def wait(self, processes: set[int], timeout: float, send_hello: Callable[[int], None]) -> set[int]:
        """Waits until all have sent HELLO or are lost, and resends ours; returns the silent ones.

        Those are of other machines, where a packet filter may drop what they send. Raises StartError if one
        of this machine is silent. A restarted process stops waiting for silent peers after the grace time.
        """
        clock = AwakeClock(HELLO_INTERVAL)
        began = clock.now()
        with self._changed:
            while True:
                left = max(0.0, began + timeout - clock.now())
                if self._changed.wait_for(lambda: not self._missing(processes), min(HELLO_INTERVAL, left)):
                    return set()
                waited, missing = clock.now() - began, self._missing(processes)
                # The run is in progress: peers that are down now are lost nodes of it, not a failed start.
                if self._directory.incarnation and waited >= self._directory.grace and processes & self.seen:
                    return set()
                is_remote = missing.isdisjoint(self._directory.neighbors)
                if waited >= timeout and is_remote and not self._directory.incarnation:
                    return missing
                if waited >= timeout:
                    silent = [rank for p in sorted(missing) for rank in self._directory.processes[p].ranks]
                    own_rank = self._directory.process.ranks[0]
                    raise StartError(f"rank {own_rank}: no hello from ranks {silent} within {timeout:.0f} s")
                for process in missing:
                    send_hello(process)

    def _missing(self, processes: set[int]) -> set[int]:
        # A lost process may have been restarted since; then its link works again and is awaited.
        return processes - self.seen - (self._lost & self._links.lost)
