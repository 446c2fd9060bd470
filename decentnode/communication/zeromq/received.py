"""Received messages of the ZeroMQ transport, not read until the node takes them from its inbox."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import zmq
from torch import Tensor

from decentnode.communication import wire
from decentnode.communication.exchange.handle import Read, invalidated, parsed
from decentnode.core.payload import Layout, Payload, PayloadError


@dataclass
class PeerSegment:
    """A peer's shared memory; parsed payloads are kept, since slots are used in turn."""

    content: Tensor
    words: "memoryview[int]" = field(init=False)
    """One word per reader, counted from the end: the last number that is invalidated for it."""
    _known: dict[tuple[int, int, int], Payload] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The size is a whole number of pages, so the cast to 8-byte words always fits.
        self.words = self.content.numpy().data.cast("q")

    def payload(self, offset: int, length: int, layout: Layout) -> Payload:
        """The payload at this place; raises PayloadError."""
        place = (offset, length, layout.hash)
        payload = self._known.get(place)
        if payload is None:
            if offset + length > self.content.numel():
                raise PayloadError("reaches beyond the shared memory")
            payload = Payload.parse(layout, self.content[offset : offset + length])
            # A payload of variable size carries counts, so the same place has another one each time.
            if not layout.variable:
                self._known[place] = payload
        return payload


@dataclass(frozen=True, slots=True)
class SharedMessage:
    """A payload that lies in its sender's shared memory."""

    header: wire.Header
    segment: PeerSegment
    offset: int

    @property
    def seq(self) -> int:
        return self.header.seq

    @property
    def is_void(self) -> bool:
        """Whether the sender timed out on this reader, and may write there again."""
        return self.segment.words[-1 - self.header.receiver] >= self.header.seq

    def read(self, layout: Layout) -> Read:
        # Also checked after the mix (`is_sound`): the sender may invalidate the memory while it is read.
        if self.is_void:
            return invalidated(self.header.sender)
        place = self.offset, self.header.length
        return parsed(
            self.header.sender, self.header.layout, layout, lambda: self.segment.payload(*place, layout)
        )


@dataclass(frozen=True, slots=True)
class FramedMessage:
    """A payload in the body frame."""

    header: wire.Header
    body: zmq.Frame
    # The frame belongs to this process, so no sender can write it again.
    is_void: ClassVar[bool] = False

    @property
    def seq(self) -> int:
        return self.header.seq

    def read(self, layout: Layout) -> Read:
        content = self.body.buffer
        buffer = torch.frombuffer(content, dtype=torch.uint8) if len(content) else torch.empty(0).byte()
        return parsed(self.header.sender, self.header.layout, layout, lambda: Payload.parse(layout, buffer))


def header_bytes(frame: zmq.Frame) -> bytes:
    """The bytes of a header; a frame of another length is not copied."""
    if len(frame) != wire.HEADER_BYTES:
        raise wire.WireError("header length")
    return frame.bytes
