"""Received messages of the ZeroMQ transport, not read until the node takes them from its inbox."""

from dataclasses import dataclass

import torch
import zmq
from torch import Tensor

from decentnode.communication import wire
from decentnode.communication.exchange.handle import Message
from decentnode.core.payload import Layout, Payload, PayloadError


class PeerSegment:
    """A peer's shared memory; parsed payloads are kept, since slots are used in turn."""

    def __init__(self, content: Tensor) -> None:
        self.content = content
        # The size is a whole number of pages, so the cast to 8-byte words always fits.
        self.words: memoryview[int] = content.numpy().data.cast("q")
        """One word per reader, counted from the end: the last number that is invalidated for it."""
        self._known: dict[tuple[int, int, int], Payload] = {}

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


@dataclass(slots=True, eq=False)
class SharedMessage(Message):
    """A payload that lies in its sender's shared memory."""

    reader: int
    segment: PeerSegment
    offset: int
    length: int

    @property
    def is_void(self) -> bool:
        return self.segment.words[-1 - self.reader] >= self.seq

    def _parse(self, layout: Layout) -> Payload:
        return self.segment.payload(self.offset, self.length, layout)


@dataclass(slots=True, eq=False)
class FramedMessage(Message):
    """A payload in the body frame, which belongs to this process: no sender can write it again."""

    body: zmq.Frame

    def _parse(self, layout: Layout) -> Payload:
        content = self.body.buffer
        buffer = torch.frombuffer(content, dtype=torch.uint8) if len(content) else torch.empty(0).byte()
        return Payload.parse(layout, buffer)


def header_bytes(frame: zmq.Frame) -> bytes:
    """The bytes of a header; a frame of another length is not copied."""
    if len(frame) != wire.HEADER_BYTES:
        raise wire.WireError("header length")
    return frame.bytes
