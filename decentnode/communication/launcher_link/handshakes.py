"""What nodes say of themselves before the first round, in memory made before the fork.

Each node writes its own slot; its launcher exchanges them with the other machines and fills in all slots.
"""

import mmap
from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np

MOST_BYTES = 64
Introduction = Annotated[bytes, msgspec.Meta(max_length=MOST_BYTES)]
"""What one node says."""


class HandshakeBoard:
    """One slot for each rank of the run; an empty one says nothing."""

    def __init__(self, ranks: int) -> None:
        content = np.frombuffer(mmap.mmap(-1, max(1, ranks) * (MOST_BYTES + 1)), np.uint8)
        self._lengths, self._slots = content[:ranks], content[ranks : ranks * (MOST_BYTES + 1)]

    def put(self, rank: int, introduction: bytes) -> None:
        """Writes a rank's slot; raises ValueError when it is too long, or there is no such rank."""
        if not 0 <= rank < len(self._lengths):
            raise ValueError(f"there is no rank {rank} to introduce")
        if len(introduction) > MOST_BYTES:
            raise ValueError(f"an introduction has at most {MOST_BYTES} bytes, not {len(introduction)}")
        start = rank * MOST_BYTES
        self._slots[start : start + len(introduction)] = np.frombuffer(introduction, np.uint8)
        self._lengths[rank] = len(introduction)

    def fill(self, introductions: Mapping[int, bytes]) -> None:
        """Writes the slots of several ranks."""
        for rank, introduction in introductions.items():
            self.put(rank, introduction)

    def said(self) -> dict[int, bytes]:
        """By rank what is in the slots that are not empty."""
        starts = {int(rank): int(rank) * MOST_BYTES for rank in np.flatnonzero(self._lengths)}
        return {
            rank: self._slots[start : start + int(self._lengths[rank])].tobytes()
            for rank, start in starts.items()
        }
