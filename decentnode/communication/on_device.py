"""A node whose vector lives on an accelerator, behind any transport that carries host memory.

Going out, a vector is copied once, into the inner endpoint's slot of the same number: peers on this machine
read it there, where that is shared memory. Coming in, each payload is copied once, into memory of the device
that is kept for its source, and is mixed there.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from decentnode.communication.base import Endpoint, Memory
from decentnode.communication.copies import Copies, copies_for
from decentnode.communication.handles import Handle, Key, Message
from decentnode.communication.messages import SharedMessage
from decentnode.errors import BadInput
from decentnode.payload import Payload, as_bytes


class OnDevice(Endpoint):
    """Wraps an endpoint: payloads are copied to host memory going out, to the device coming in.

    Host memory for payloads that are no vectors is kept, too: two sets that take turns, because the memory of
    an exchange is free again when the one after it is done.
    """

    def __init__(
        self, inner: Endpoint, memory: Memory, device: torch.device, copies: Copies | None = None
    ) -> None:
        self.rank = inner.rank
        self.counters = inner.counters
        self.refused = inner.refused
        self.device = device
        self._inner = inner
        self._copies = copies or copies_for(device)
        shape = (2, memory.vector_elements)
        first, second = torch.zeros(shape, dtype=memory.vector_dtype, device=device)
        self.slots = (first, second)
        for slot in inner.slots:
            self._copies.lock(slot)
        self._exchanges = 0
        self._outboxes: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._landings: dict[int, Tensor] = {}

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Sequence[int], key: Key, timeout: float
    ) -> Handle:
        on_host: dict[int, Payload] = {}
        for payload in outgoing.values():
            if id(payload) not in on_host:
                on_host[id(payload)] = self._taken_out(payload, len(on_host))
        self._exchanges += 1
        moved = {target: on_host[id(payload)] for target, payload in outgoing.items()}
        self._copies.finish()
        return self._inner.exchange(moved, sources, key, timeout)

    def landed(self, payloads: Mapping[int, Payload], messages: Mapping[int, Message]) -> dict[int, Payload]:
        found = {}
        for source, payload in payloads.items():
            message = messages[source]
            if isinstance(message, SharedMessage):
                self._copies.lock(message.segment.content, read_only=True)
            landing = self._landing(source, payload)
            self._copies.begin(landing, payload.buffer)
            found[source] = Payload(payload.layout, landing, payload.counts)
        self._copies.join()
        return found

    def finish_reading(self) -> None:
        self._copies.finish()

    def _taken_out(self, payload: Payload, number: int) -> Payload:
        """The `number`-th payload of this exchange in host memory; itself if it lies there already."""
        if payload.buffer.device != self.device:
            return payload
        target = self._slot_of(payload.buffer)
        if target is None:
            outboxes, most = self._outboxes[self._exchanges % 2], payload.layout.max_bytes
            if number == len(outboxes):
                outboxes.append(self._copies.host_memory(most))
            elif outboxes[number].numel() < most:
                outboxes[number] = self._copies.host_memory(most)
            target = outboxes[number][: payload.nbytes]
        self._copies.begin(target, payload.buffer)
        return Payload(payload.layout, target, payload.counts)

    def _slot_of(self, buffer: Tensor) -> Tensor | None:
        """Where in the inner endpoint's slots memory of the own ones belongs; None: it is none of them."""
        for own, inner in zip(self.slots, self._inner.slots, strict=True):
            start = buffer.data_ptr() - own.data_ptr()
            if buffer.numel() and 0 <= start < own.nbytes:
                return as_bytes(inner)[start : start + buffer.numel()]
        return None

    def _landing(self, source: int, payload: Payload) -> Tensor:
        """The memory of the device that is kept for a source."""
        kept = self._landings.get(source)
        if kept is None or kept.numel() < payload.nbytes:
            most = max(payload.nbytes, payload.layout.max_bytes)
            kept = self._landings[source] = torch.empty(most, dtype=torch.uint8, device=self.device)
        return kept[: payload.nbytes]

    def leave(self) -> None:
        self._inner.leave()

    def admit(self, round: int) -> list[int]:
        return self._inner.admit(round)

    @property
    def ahead(self) -> int:
        return self._inner.ahead

    def skip_to(self, round: int) -> None:
        self._inner.skip_to(round)

    def offer(self, vector: Tensor) -> None:
        self._inner.offer(vector)


def device_for(name: str, local_rank: int) -> torch.device:
    """The device of a node: `cpu`, or one GPU of this machine after the other; to be asked after the fork.

    `auto` takes GPUs where there are any; `cuda` was checked before the fork.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def check_device(name: str) -> None:
    """Raises BadInput when GPUs are asked for and there are none; counting them makes no CUDA context."""
    if name == "cuda" and not torch.cuda.device_count():
        raise BadInput("device: cuda is asked for, but torch finds no GPU here; use cpu or auto")
