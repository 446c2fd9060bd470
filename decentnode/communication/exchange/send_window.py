"""What a node has sent and its readers have not acknowledged.

Threads: any, with the lock of the mailbox.
"""

import math
from dataclasses import dataclass, field


@dataclass(slots=True)
class SendWindow:
    """The readers of what was sent of one part; guarded by the mailbox's lock."""

    readers: set[int] = field(default_factory=set)
    """The ranks that have not acknowledged the last payload."""
    unreleased: set[int] = field(default_factory=set)
    """The ranks that have not acknowledged an earlier payload, whose memory the next exchange writes."""
    _last: int = 0
    """The number of the last payload."""
    _before: int = 0

    def send(self, seq: int, readers: set[int]) -> set[int]:
        """Records a payload; returns the readers of earlier ones, a set that shrinks as they acknowledge."""
        self.unreleased = self.unreleased | self.readers
        self._before, self._last, self.readers = self._last, seq, readers
        return self.unreleased

    def awaits(self, reader: int, seq: int) -> bool:
        """Whether a reader has not acknowledged this number."""
        return reader in (self.readers if seq > self._before else self.unreleased)

    def remove_reader(self, reader: int, seq: float = math.inf) -> None:
        """Removes a reader up to a number."""
        if seq >= self._before:
            self.unreleased.discard(reader)
        if seq >= self._last:
            self.readers.discard(reader)
