"""The shared memory that peers on this machine have announced."""

import errno
from collections.abc import Container, Iterable

from torch import Tensor

from decentnode.communication.shared_memory.segment import attach
from decentnode.communication.wire import SharedSegment, WireError
from decentnode.communication.zeromq.received import PeerSegment


class AttachedSegments:
    """Attaches each rank's memory once; refuses another one until the rank is forgotten."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[SharedSegment, PeerSegment]] = {}

    def learn(self, announced: Iterable[SharedSegment], ranks: Container[int]) -> None:
        """Attaches the segments that the process of `ranks` announced; raises WireError."""
        for segment in announced:
            if segment.rank not in ranks:
                raise WireError("hello")
            if segment.rank not in self._known:
                self._known[segment.rank] = segment, PeerSegment(_attached(segment))
            # HELLO may arrive twice, but a second segment is refused: payloads may still be read in the
            # first.
            elif self._known[segment.rank][0] != segment:
                raise WireError("hello")

    def of(self, rank: int) -> PeerSegment:
        """The memory of a rank; raises WireError if there is none."""
        if rank not in self._known:
            raise WireError("notice without shared memory")
        return self._known[rank][1]

    def forget(self, rank: int) -> None:
        """Forgets a lost rank; a new process of it may announce another segment."""
        self._known.pop(rank, None)


def _attached(segment: SharedSegment) -> Tensor:
    try:
        return attach(segment)
    except OSError as error:
        # Not the peer's mistake: this process is out of descriptors.
        if error.errno == errno.EMFILE:
            raise
        raise WireError("shared memory cannot be attached") from error
