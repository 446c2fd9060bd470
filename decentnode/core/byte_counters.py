"""Bytes that nodes have sent and received, by the wire format."""

from dataclasses import dataclass

from decentnode.core.payload import Payload

HEADER_BYTES = 64


@dataclass
class ByteCounters:
    """Bytes of the wire format, counted once per receiver and equal over all transports."""

    sent_payload: int = 0
    sent_index: int = 0
    sent_header: int = 0
    received_payload: int = 0
    received_index: int = 0
    received_header: int = 0

    @property
    def sent(self) -> int:
        """All bytes sent so far."""
        return self.sent_payload + self.sent_index + self.sent_header

    @property
    def received(self) -> int:
        """All bytes received so far."""
        return self.received_payload + self.received_index + self.received_header

    def count_sent(self, payload: Payload, receivers: int) -> None:
        """Counts one message to each of several receivers."""
        index = payload.index_bytes
        self.sent_payload += receivers * (payload.nbytes - index)
        self.sent_index += receivers * index
        self.sent_header += receivers * HEADER_BYTES

    def count_repeated(self, size: int) -> None:
        """Counts bytes that the modelled network has sent again, because transmissions were lost."""
        self.sent_payload += size

    def count_received(self, payload: Payload) -> None:
        """Counts one message from one sender."""
        index = payload.index_bytes
        self.received_payload += payload.nbytes - index
        self.received_index += index
        self.received_header += HEADER_BYTES
