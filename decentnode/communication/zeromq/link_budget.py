"""Which links a process needs, and which it closes first: the least recently used, beyond a bound.

A graph without a period may reach all nodes, but a round only a few. So links are opened a few rounds ahead,
and those that no coming round needs are closed when there are many. The bound follows from the degree, so
descriptors, sockets and memory do not grow with the number of nodes.

Threads: a node's thread says what its coming rounds need, any thread that a link is used; the socket thread
asks what to close.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable
from math import inf

from decentnode.communication.base import LINK_MULTIPLE, kept_links


class LinkBudget:
    """The links of one host process: nodes say what they need, the socket thread asks what to close.

    Without a need no link is ever closed: the peers of a static graph are all neighbors.
    """

    def __init__(self) -> None:
        self.most: float = inf
        """Links that the process keeps; more where all of them are needed."""
        self._needed: dict[int, frozenset[int]] = {}
        """By local rank the processes of its coming rounds."""
        self._count: Counter[int] = Counter()
        """By process how many local ranks need it."""
        self._used: dict[int, float] = {}

    def need(self, rank: int, processes: Iterable[int]) -> None:
        """Replaces the processes that a local rank exchanges with in its coming rounds."""
        new, old = frozenset(processes), self._needed.get(rank, frozenset())
        self._needed[rank] = new
        for process in new - old:
            self._count[process] += 1
        for process in old - new:
            self._count[process] -= 1
            if not self._count[process]:
                del self._count[process]
                self.use(process)
        # It never shrinks: a round with few neighbors must not close what the next one opens again.
        self.most = max(kept_links() if self.most == inf else self.most, LINK_MULTIPLE * len(self._count))

    def needs(self, process: int) -> bool:
        """Whether a coming round needs the link to a process; each one where nothing is foreseen."""
        return process in self._count or self.most == inf

    def use(self, process: int) -> None:
        """Records that a link is used now."""
        self._used[process] = time.monotonic()

    def surplus(self, linked: Collection[int]) -> list[int]:
        """Links that may be closed while there are too many, the least recently used first."""
        if len(linked) <= self.most:
            return []
        free = [process for process in linked if not self.needs(process)]
        return sorted(free, key=lambda process: self._used.get(process, 0.0))

    def forget(self, process: int) -> None:
        """Forgets when a closed link was used."""
        self._used.pop(process, None)
