"""Which ranks are missing when a collective breaks: asked once, answered by a thread of every process.

The error of a collective only reports a broken connection or a timeout: first at the neighbors of the lost
rank, later at the others. So the first rank that notices starts a roll call in the store. The threads answer
with the progress of their nodes, even while those are blocked. A rank that does not answer, or is behind, is
the missing one.

Threads: the node's thread asks; a thread of this module answers, also while the node is blocked.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch.distributed import Store  # type: ignore[attr-defined]

from decentnode.communication.torch_distributed.torch_groups import MOST_NAMED
from decentnode.core.clock import AwakeClock
from decentnode.core.text import ranks_in_words
from decentnode.core.timeouts import Timeouts

POLL_INTERVAL = 0.2
_CALL, _VERDICT, _WORD = "call", "verdict", "answer/{}"


@dataclass(eq=False)
class MissingRanks:
    """One node's part."""

    store: Store
    """A separate connection, because a thread waits on it."""
    rank: int
    nodes: int
    timeout: float = Timeouts.baseline_answer
    progress: int = field(default=0, init=False)
    """The number of collectives that the node has started."""
    _verdict: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="roll call", daemon=True)
        self._thread.start()

    def verdict(self) -> str:
        """Why a collective failed, as text that follows `all-reduce failed`."""
        if self._verdict is None:
            try:
                self.store.set(_CALL, "y")
                self._verdict = self._agreed(self._judge(self._answers()))
            except RuntimeError:
                self._verdict = ": rank 0, which keeps the store, is lost or does not answer"
        return self._verdict

    def close(self) -> None:
        """Stops answering."""
        self._over.set()
        self._thread.join()

    def _attend(self) -> None:
        """Answers a roll call, and reads the verdict while its author keeps the store."""
        try:
            while not self._over.wait(POLL_INTERVAL) and not self.store.check([_CALL]):
                pass
            # A thread of its own answers, because the node itself may be blocked in the broken collective.
            self.store.set(_WORD.format(self.rank), str(self.progress))
            while not self._over.wait(POLL_INTERVAL):
                if self.store.check([_VERDICT]):
                    self._verdict = self.store.get(_VERDICT).decode()
                    return
        except RuntimeError:
            return

    def _answers(self) -> dict[int, int]:
        """The progress of all nodes that answer in time."""
        clock, answers = AwakeClock(POLL_INTERVAL), {self.rank: self.progress}
        limit = clock.now() + self.timeout
        while len(answers) < self.nodes and clock.now() < limit and self._verdict is None:
            for rank in set(range(self.nodes)) - answers.keys():
                if self.store.check([_WORD.format(rank)]):
                    answers[rank] = int(self.store.get(_WORD.format(rank)))
            time.sleep(POLL_INTERVAL / 4)
        return answers

    def _judge(self, progress: Mapping[int, int]) -> str:
        silent = sorted(set(range(self.nodes)) - progress.keys())
        if silent:
            are = "is lost or does not answer" if len(silent) == 1 else "are lost or do not answer"
            return f": {ranks_in_words(silent, MOST_NAMED)} {are}"
        behind = sorted(rank for rank, steps in progress.items() if steps < max(progress.values()))
        # All answered, so each process lives; the one that started fewer collectives blocks the others.
        if behind:
            lives = "is alive but makes no progress" if len(behind) == 1 else "are alive but make no progress"
            return f": {ranks_in_words(behind, MOST_NAMED)} {lives}"
        return ": every rank is there, but the links between them broke"

    def _agreed(self, verdict: str) -> str:
        """The first verdict, valid for all ranks; leaves the others time to read it."""
        # Atomic: several ranks may judge at the same time, with different answers.
        first = self.store.compare_set(_VERDICT, "", verdict).decode()
        # The store ends with the process of rank 0.
        time.sleep(3 * POLL_INTERVAL)
        return first or verdict
