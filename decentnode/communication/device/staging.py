"""A node whose vector is on an accelerator, over any transport that carries host memory.

A vector is sent by one copy into the inner endpoint's slot of the same number; peers on this machine read it
there, if that is shared memory. Each received payload is copied once into device memory that is kept for its
source, and is mixed there.

Threads: the node's thread alone.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from decentnode.communication.base import BufferSpec, Endpoint
from decentnode.communication.device.copies import CudaCopies, HostCopies, same_place
from decentnode.communication.exchange.handle import ExchangeHandle, Key
from decentnode.communication.launcher_link.heartbeats import HeartbeatSlot
from decentnode.communication.shared_memory.attached import SharedMessage
from decentnode.core.payload import HOST, Layout, Payload
from decentnode.errors import BadInput

OF_INNER = (
    "rank", "counters", "refused", "messages", "foresee", "why_lost", "admit", "skip_to", "offer",
)  # fmt: skip
"""What is that of the endpoint inside: attributes that a node reads, and methods."""


class DeviceStaging(Endpoint):
    """Wraps an endpoint: copies payloads to host memory before sending, and to the device after receiving.

    Host memory for payloads other than vectors is kept, too: two sets per part, in turn. The memory of an
    exchange is free when the next one is done.
    """

    def __init__(self, endpoint: Endpoint, buffer_spec: BufferSpec, copies: HostCopies | None = None) -> None:
        for name in OF_INNER:
            if hasattr(endpoint, name):
                setattr(self, name, getattr(endpoint, name))
        self.device = buffer_spec.device
        self._endpoint = endpoint
        self._copies = copies or (CudaCopies(self.device) if self.device.type == "cuda" else HostCopies())
        self.slots = buffer_spec.slots(self.device)
        for slot in endpoint.slots:
            self._copies.lock(slot)
        self._turns: Counter[int] = Counter()
        self._kept: dict[tuple[int, ...], Tensor] = {}
        """Buffers on the host by (part, turn, number), for sending; on the device by (source, part)."""
        self._read: dict[int, Tensor] = {}
        """By source the shared memory that is locked."""

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Sequence[int], key: Key, deadline: float,
        layout: Layout,
    ) -> ExchangeHandle:  # fmt: skip
        part, on_host = key[2], dict[int, Payload]()
        self._turns[part] ^= 1
        for payload in outgoing.values():
            if id(payload) not in on_host:
                place = part, self._turns[part], len(on_host)
                on_host[id(payload)] = self._taken_out(payload, place)
        moved = {target: on_host[id(payload)] for target, payload in outgoing.items()}
        # Peers read the host memory as soon as they are notified.
        self._copies.finish()
        return self._endpoint.exchange(moved, sources, key, deadline, layout)

    def landed(self, payloads: Mapping[int, Payload], handle: ExchangeHandle) -> dict[int, Payload]:
        staged, on_device = {}, partial(torch.empty, dtype=torch.uint8, device=self.device)
        for source, payload in payloads.items():
            message = handle.messages[source]
            if isinstance(message, SharedMessage):
                self._lock(source, message.segment.content)
            landing = self._room((source, handle.key[2]), payload, on_device)
            self._copies.begin(landing, payload.buffer)
            staged[source] = Payload(payload.layout, landing, payload.counts)
        # The device runs the mix after the copies; the host does not wait.
        self._copies.join()
        return staged

    def _lock(self, source: int, content: Tensor) -> None:
        """Locks a source's memory, and unlocks the memory of its process before a restart."""
        before = self._read.get(source)
        if before is not content:
            if before is not None:
                self._copies.unlock(before)
            self._copies.lock(content, read_only=True)
            self._read[source] = content

    def finish_reading(self) -> None:
        self._copies.finish()

    def _taken_out(self, payload: Payload, place: tuple[int, int, int]) -> Payload:
        """The payload in host memory; itself if it is there already. `place`: (part, turn, number)."""
        if payload.buffer.device != self.device:
            return payload
        target = same_place(payload.buffer, self.slots, self._endpoint.slots)
        if target is None:
            target = self._room(place, payload, self._copies.host_memory)
        self._copies.begin(target, payload.buffer)
        return Payload(payload.layout, target, payload.counts)

    def send(self, target: int, payload: Payload, window: int, tag: int, number: int) -> None:
        self._endpoint.send(target, payload.to(HOST), window, tag, number)

    def leave(self, failed: bool = False) -> None:
        self._endpoint.leave(failed)

    @property
    def ahead(self) -> int:
        return self._endpoint.ahead

    @property
    def heartbeat(self) -> HeartbeatSlot | None:
        """The mailbox of the inner endpoint shows there for whom the node waits."""
        return self._endpoint.heartbeat

    @heartbeat.setter
    def heartbeat(self, slot: HeartbeatSlot | None) -> None:
        self._endpoint.heartbeat = slot

    def _room(self, place: tuple[int, ...], payload: Payload, made: Callable[[int], Tensor]) -> Tensor:
        """Room for a payload in memory that is kept for its place; replaced if it is too small."""
        if place not in self._kept or self._kept[place].numel() < payload.nbytes:
            self._kept[place] = made(max(payload.nbytes, payload.layout.max_bytes))
        return self._kept[place][: payload.nbytes]


def device_for(name: str, local_rank: int) -> torch.device:
    """The device of a node: `cpu`, or the GPUs of this machine in turn; call it after the fork.

    `auto` uses GPUs if there are any; `cuda` was checked before the fork.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def check_device(name: str) -> None:
    """Raises BadInput if GPUs are required and there are none; counting them creates no CUDA context."""
    if name == "cuda" and not torch.cuda.device_count():
        raise BadInput.at("device", "cuda is asked for, but torch finds no GPU here; use cpu or auto")
