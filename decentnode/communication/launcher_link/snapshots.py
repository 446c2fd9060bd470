"""Memory shared by a launcher and its nodes: each node's vector at evaluations.

The observer reads vectors here, whatever transport carries the models. Where models are evaluated in the
background, the evaluators have buffers of their own.

Threads: the node's thread publishes. The observer's thread, or the main thread of an evaluator, reads and
releases; the launcher's main thread releases what an evaluator leaves when it ends. Two flags order them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decentnode.communication.launcher_link.shared_array import SharedMemory
from decentnode.core.clock import AwakeClock, Clock
from decentnode.core.timeouts import Timeouts

_PUBLISHED, _READ = 0, 1
POLL_INTERVAL = 0.005


class SnapshotBuffers:
    """Slots for each local rank; made before the fork, so nothing must be opened or removed."""

    def __init__(
        self, ranks: Sequence[int], elements: int, dtype: torch.dtype = torch.float32,
        room: int = 0, slots: int = 1, fd: int | None = None,
    ) -> None:  # fmt: skip
        """`room`: the most bytes of what a model needs and its vector lacks; unused, it costs nothing.

        `slots`: how many vectors of a rank may wait for their reader; memory is used only where they do.
        `fd`: that of the memory of another process, which has made the buffers.
        """
        self.memory = memory = SharedMemory(fd)
        self.elements = elements
        self._timed_out: set[int] = set()
        self._waited_for = 0
        """The last flag that a node of this process has waited for in vain, another one being behind."""
        self._row = {rank: i for i, rank in enumerate(ranks)}
        self._flags = memory.array((2, slots, len(ranks)))
        # As bytes, because numpy has no bfloat16.
        vectors = memory.array((slots * len(ranks) * elements * dtype.itemsize,), "uint8")
        self._vectors = torch.from_numpy(vectors).view(dtype).view(slots, len(ranks), elements)
        self._module_states = memory.array((len(ranks), room), "uint8")
        self._lengths = memory.array((len(ranks),))

    async def publish(
        self, rank: int, round: int, vector: Tensor, clock: Clock, module_state: bytes = b"",
        timeout: float | None = None,
    ) -> bool:  # fmt: skip
        """Copies the vector for its reader; returns False if all slots are unread, or it lacks room.

        After a timeout the node does not wait for the reader again until that has read. `timeout`: None is
        `Timeouts.snapshot`.
        """
        timeout = Timeouts.snapshot if timeout is None else timeout
        row = self._row[rank]
        if len(module_state) > self._module_states.shape[1]:
            return False
        flags = self._flags[:, :, row]

        def is_free() -> bool:
            return bool((flags[_READ] >= flags[_PUBLISHED]).any())

        # The reader may need the oldest first.
        published, is_another_behind = int(flags[_PUBLISHED].min()), False
        if clock.is_virtual and not is_free() and (self._flags[_PUBLISHED].max(0) < published).any():
            # The reader needs a node that is behind, which cannot go on while virtual time stands: one of
            # thousands that are ahead waits, in case the reader waits for the other no more.
            is_another_behind = True
            timeout = min(timeout, Timeouts.snapshot_behind) if published > self._waited_for else 0.0
        awake = AwakeClock(POLL_INTERVAL)
        deadline = awake.now() + (0.0 if rank in self._timed_out else timeout)
        await clock.wait_outside(lambda: is_free() or awake.now() > deadline, POLL_INTERVAL)
        if not is_free():
            if is_another_behind:
                self._waited_for = max(self._waited_for, published)
            elif timeout > Timeouts.snapshot_behind:
                self._timed_out.add(rank)
            return False
        self._timed_out.discard(rank)
        # The first, so that the memory of the others stays unused where no vector waits.
        slot = int((flags[_READ] >= flags[_PUBLISHED]).argmax())
        # The flags order both sides: the node writes here only after the reader released the last vector.
        self._vectors[slot, row].copy_(vector)
        self._module_states[row, : len(module_state)] = np.frombuffer(module_state, np.uint8)
        self._lengths[row] = len(module_state)
        flags[_PUBLISHED, slot] = round + 1
        return True

    @property
    def has_pending(self) -> bool:
        """Whether a vector of any rank waits for its reader."""
        return bool((self._flags[_READ] < self._flags[_PUBLISHED]).any())

    def vector(self, rank: int, round: int) -> Tensor:
        """The vector that the rank published after a round, shape (d,); valid until it is released."""
        row = self._row[rank]
        return self._vectors[int((self._flags[_PUBLISHED, :, row] == round + 1).argmax()), row]

    def module_state(self, rank: int) -> bytes:
        """What the rank published last with its vector."""
        row = self._row[rank]
        return self._module_states[row, : self._lengths[row]].tobytes()

    def release(self, rank: int, round: int) -> None:
        """Lets the rank publish again in the slot of this round, if there is one."""
        flags = self._flags[:, :, self._row[rank]]
        # A late release of an earlier round must not take back a newer one.
        for slot in np.flatnonzero(flags[_PUBLISHED] == round + 1):
            flags[_READ, slot] = max(int(flags[_READ, slot]), round + 1)


class EvaluatorBoard:
    """The buffers and the progress of the evaluators of a machine."""

    def __init__(self, snapshots: SnapshotBuffers, count: int) -> None:
        self.snapshots = snapshots
        memory = SharedMemory()
        self._beats = memory.array((max(1, count),))
        self._alive = memory.array((1,))
        self._alive[0] = count

    @property
    def are_there(self) -> bool:
        """Whether an evaluator lives."""
        return bool(self._alive[0] > 0)

    def beats_of(self, index: int) -> int:
        """How often this evaluator has made progress."""
        return int(self._beats[index])

    def beat(self, index: int) -> None:
        """Marks progress of an evaluator."""
        self._beats[index] += 1

    def note_end(self) -> None:
        """Records the end of an evaluator."""
        self._alive[0] -= 1
