"""What a node has sent, and who still has to read it."""

import math


class SendWindow:
    """By part, and by the number of the exchange; guarded by the lock of the node's mailbox."""

    def __init__(self) -> None:
        self._lanes: dict[int, dict[int, set[int]]] = {}

    def add(self, part: int, seq: int, readers: set[int]) -> None:
        """Notes what was sent under a number, and to whom."""
        self._lanes.setdefault(part, {})[seq] = readers

    def awaits(self, reader: int, seq: int) -> bool:
        """Whether a reader still has to read what was sent under this number."""
        return any(reader in lane.get(seq, ()) for lane in self._lanes.values())

    def before(self, part: int, seq: int) -> set[int]:
        """Who still has to read what was sent under lower numbers."""
        found: set[int] = set()
        for number, readers in self._lanes[part].items():
            if readers and number < seq:
                found |= readers
        return found

    def is_empty(self) -> bool:
        """Whether everybody has read everything."""
        return not any(any(lane.values()) for lane in self._lanes.values())

    def strike(self, reader: int, seq: float = math.inf, part: int | None = None) -> None:
        """Expects no more of a reader up to a number, in that part or in any."""
        lanes = self._lanes.values() if part is None else [self._lanes.get(part, {})]
        for lane in lanes:
            for number, readers in lane.items():
                if number <= seq:
                    readers.discard(reader)

    def drop_before(self, part: int, seq: int) -> None:
        """Forgets lower numbers, which all have read."""
        lane = self._lanes[part]
        for number in [number for number in lane if number < seq]:
            del lane[number]
