"""The shared memory that peers on this machine have announced, and payloads that lie there.

Threads: the thread that receives a HELLO or a NOTICE, as `Receiver` does; the socket thread forgets.
"""

import errno
from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass
from math import inf

from decentnode.communication.exchange.handle import Message
from decentnode.communication.shared_memory.segment import attach
from decentnode.communication.wire import SharedSegment, WireError
from decentnode.core.payload import Layout, Payload, PayloadError


class PeerSegment:
    """A peer's shared memory; parsed payloads are kept, since slots are used in turn."""

    def __init__(self, segment: SharedSegment) -> None:
        """Attaches it; raises WireError."""
        self.segment = segment
        try:
            self.content = attach(segment)
        except OSError as error:
            # Not the peer's mistake: this process is out of descriptors.
            if error.errno == errno.EMFILE:
                raise
            raise WireError("shared memory cannot be attached") from error
        # The size is a whole number of pages, so the cast to 8-byte words always fits.
        self.words: memoryview[int] = self.content.numpy().data.cast("q")
        """One word per reader, counted from the end: the last number that is invalidated for it."""
        self.parsed: dict[tuple[int, int, int], Payload] = {}
        """Payloads of fixed size by offset, length and layout."""


@dataclass(slots=True, eq=False)
class SharedMessage(Message):
    """A payload that lies in its sender's shared memory."""

    reader: int
    segment: PeerSegment
    offset: int
    length: int

    @property
    def is_invalidated(self) -> bool:
        return self.segment.words[-1 - self.reader] >= self.seq

    def _parse(self, layout: Layout) -> Payload:
        place, segment = (self.offset, self.length, layout.hash), self.segment
        payload = segment.parsed.get(place)
        if payload is None:
            end = self.offset + self.length
            if end > segment.content.numel():
                raise PayloadError("reaches beyond the shared memory")
            payload = Payload.parse(layout, segment.content[self.offset : end])
            # A payload of variable size carries counts, so the same place has another one each time.
            if not layout.variable:
                segment.parsed[place] = payload
        return payload


class AttachedSegments:
    """Attaches each rank's memory; refuses another one until the rank is forgotten.

    Announcements are kept, and so are the attachments used last: each costs a descriptor, and address space.
    One that is dropped lives as long as a message in it, and is attached again when the next one arrives.
    """

    def __init__(self) -> None:
        self.most: float = inf
        """Attachments that are kept."""
        self._segments: dict[int, SharedSegment] = {}
        self._known: OrderedDict[int, PeerSegment] = OrderedDict()

    def learn(self, segments: Iterable[SharedSegment], ranks: Container[int]) -> None:
        """Attaches the segments that the process of `ranks` announced; raises WireError."""
        for segment in segments:
            if segment.rank not in ranks:
                raise WireError("hello")
            if segment.rank not in self._segments:
                self._attach(segment)
                self._segments[segment.rank] = segment
            # HELLO may arrive twice, but a second segment is refused: payloads may still be read in the
            # first.
            elif self._segments[segment.rank] != segment:
                raise WireError("hello")

    def of(self, rank: int) -> PeerSegment:
        """The memory of a rank; raises WireError if there is none."""
        if rank not in self._segments:
            raise WireError("notice without shared memory")
        known = self._known.pop(rank, None)
        if known is None:
            return self._attach(self._segments[rank])
        # Now the one used last.
        self._known[rank] = known
        return known

    def _attach(self, segment: SharedSegment) -> PeerSegment:
        """Attaches a segment, and drops the one that was used least recently if there are too many."""
        self._known[segment.rank] = attached = PeerSegment(segment)
        while len(self._known) > self.most:
            self._known.popitem(last=False)
        return attached

    def forget(self, rank: int) -> None:
        """Forgets a lost rank; a new process of it may announce another segment."""
        self._segments.pop(rank, None)
        self._known.pop(rank, None)
