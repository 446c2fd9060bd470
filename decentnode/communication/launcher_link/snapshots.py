"""Memory shared by a launcher and its nodes: each node's vector at evaluations.

The observer reads vectors here, whatever transport carries the models.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from decentnode.communication.launcher_link.shared_array import shared_array
from decentnode.core.clock import Clock
from decentnode.core.timeouts import Timeouts

_PUBLISHED, _READ = 0, 1


class SnapshotBuffers:
    """One slot for each local rank; made before the fork, so nothing must be opened or removed."""

    def __init__(self, ranks: Sequence[int], elements: int, dtype: torch.dtype = torch.float32) -> None:
        self.elements = elements
        self._given_up: set[int] = set()
        self._row = {rank: i for i, rank in enumerate(ranks)}
        self._flags = shared_array((len(ranks), 2))
        # As bytes, because numpy has no bfloat16.
        vectors = shared_array((len(ranks) * elements * dtype.itemsize,), "uint8")
        self._vectors = torch.from_numpy(vectors).view(dtype).view(len(ranks), elements)

    async def publish(self, rank: int, round: int, vector: Tensor, clock: Clock) -> bool:
        """Copies the vector for the observer; returns False if that still reads the last one.

        After a timeout the node does not wait for the observer again until that has read.
        """
        flags = self._flags[self._row[rank]]
        deadline = clock.now() + (0.0 if rank in self._given_up else Timeouts.snapshot)
        while flags[_READ] < flags[_PUBLISHED]:
            if clock.now() > deadline:
                self._given_up.add(rank)
                return False
            await clock.sleep(0.005)
        self._given_up.discard(rank)
        # The flags order both sides: the node writes here only after the observer released the last vector.
        self._vectors[self._row[rank]].copy_(vector)
        flags[_PUBLISHED] = round + 1
        return True

    def vector(self, rank: int) -> Tensor:
        """The vector that the rank published last, shape (d,); valid until it is released."""
        return self._vectors[self._row[rank]]

    def release(self, rank: int, round: int) -> None:
        """Lets the rank publish again."""
        flags = self._flags[self._row[rank]]
        # A late release of an earlier round must not take back a newer one.
        flags[_READ] = max(int(flags[_READ]), round + 1)
