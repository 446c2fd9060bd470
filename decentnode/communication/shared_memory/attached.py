"""The shared memory that peers on this machine have announced."""

import errno
from collections.abc import Container, Iterable

from torch import Tensor

from decentnode.communication.shared_memory.segment import attach
from decentnode.communication.wire import SharedSegment, WireError
from decentnode.communication.zeromq.received import PeerSegment


class AttachedSegments:
    """Each rank's memory is attached once; another one is refused until the rank is forgotten."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[SharedSegment, PeerSegment]] = {}

    def learn(self, announced: Iterable[SharedSegment], ranks: Container[int]) -> None:
        """Attaches what a process has announced, whose ranks those are; raises WireError."""
        for segment in announced:
            if segment.rank not in ranks:
                raise WireError("hello")
            if segment.rank not in self._known:
                self._known[segment.rank] = segment, PeerSegment(_attached(segment))
            elif self._known[segment.rank][0] != segment:
                raise WireError("hello")

    def of(self, rank: int) -> PeerSegment:
        """The memory of a rank; raises WireError when there is none."""
        if rank not in self._known:
            raise WireError("notice without shared memory")
        return self._known[rank][1]

    def forget(self, rank: int) -> None:
        """The rank is gone; a new process of it may announce other memory."""
        self._known.pop(rank, None)


def _attached(segment: SharedSegment) -> Tensor:
    try:
        return attach(segment)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise
        raise WireError("shared memory cannot be attached") from error
