"""What nodes announce before the first round, in memory made before the fork.

Each node writes its own slot; its launcher exchanges them with the other machines and fills all slots.

Threads: the main thread of a host process writes the slots of its nodes, that of the launcher the slots of
other machines. There is no lock: both are done before the first round.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np

from decentnode.communication.launcher_link.shared_array import SharedMemory

MOST_BYTES = 64
Handshake = Annotated[bytes, msgspec.Meta(max_length=MOST_BYTES)]
"""The handshake of one node."""


class HandshakeBoard:
    """One slot for each rank of the run; an empty slot has no handshake."""

    def __init__(self, ranks: int, fd: int | None = None) -> None:
        """`fd`: that of the memory of another process, which has made the board."""
        self.memory = SharedMemory(fd)
        self._lengths = self.memory.array((ranks,), "uint8")
        self._slots = self.memory.array((ranks, MOST_BYTES), "uint8")

    def fill(self, handshakes: Mapping[int, bytes]) -> None:
        """Writes the slots of some ranks; raises ValueError if one is too long or its rank does not exist."""
        for rank, handshake in handshakes.items():
            if not 0 <= rank < len(self._lengths):
                raise ValueError(f"there is no rank {rank} to introduce")
            if len(handshake) > MOST_BYTES:
                raise ValueError(f"a handshake has at most {MOST_BYTES} bytes, not {len(handshake)}")
            self._slots[rank, : len(handshake)] = np.frombuffer(handshake, np.uint8)
            # The length last: a slot counts as written only when its bytes are there.
            self._lengths[rank] = len(handshake)

    def contents(self) -> dict[int, bytes]:
        """The contents of all slots in use, by rank."""
        ranks = np.flatnonzero(self._lengths).tolist()
        return {rank: self._slots[rank, : self._lengths[rank]].tobytes() for rank in ranks}
