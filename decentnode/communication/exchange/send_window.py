"""What a node has sent and its readers have not acknowledged."""

import math


class SendWindow:
    """Readers by part and number of the exchange; guarded by the mailbox's lock."""

    def __init__(self) -> None:
        self._lanes: dict[int, dict[int, set[int]]] = {}

    def add(self, part: int, seq: int, readers: set[int]) -> None:
        """Records the readers of the payload with this number."""
        self._lanes.setdefault(part, {})[seq] = readers

    def awaits(self, reader: int, seq: int) -> bool:
        """Whether a reader has not acknowledged this number."""
        return any(reader in lane.get(seq, ()) for lane in self._lanes.values())

    def awaits_any(self, reader: int) -> bool:
        """Whether a reader has not acknowledged something."""
        return any(reader in readers for lane in self._lanes.values() for readers in lane.values())

    def before(self, part: int, seq: int) -> set[int]:
        """Readers that have not acknowledged lower numbers of this part."""
        found: set[int] = set()
        for number, readers in self._lanes[part].items():
            if readers and number < seq:
                found |= readers
        return found

    def is_empty(self) -> bool:
        """Whether all readers have acknowledged everything."""
        return not any(any(lane.values()) for lane in self._lanes.values())

    def strike(self, reader: int, seq: float = math.inf, part: int | None = None) -> None:
        """Removes a reader up to a number, in one part or in all."""
        lanes = self._lanes.values() if part is None else [self._lanes.get(part, {})]
        for lane in lanes:
            for number, readers in lane.items():
                if number <= seq:
                    readers.discard(reader)

    def drop_before(self, part: int, seq: int) -> None:
        """Forgets lower numbers, which all readers have acknowledged."""
        lane = self._lanes[part]
        for number in [number for number in lane if number < seq]:
            del lane[number]
