"""Hand-written loops that the exchange is measured against: the shortest code that does the same work.

Same as in the product: who talks to whom, the bytes, the mixing, and for frames the checksums. Left out:
everything else (losses, deadlines, records, other graphs, other schemes).
"""

import mmap
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import xxhash
import zmq
from torch import Tensor

from decentnode.communication.security.curve import Credentials
from decentnode.sharing.blocks.weighted_sum import weighted_sum

HEADER = struct.Struct("<IIQ40x")
"""Rank, round, checksum, and the rest of 64 bytes."""


@dataclass(frozen=True)
class RawCase:
    """One raw run; made before the fork, so that all processes see the same memory and descriptors."""

    nodes: int
    elements: int
    rounds: int
    warm_up: int
    endpoints: tuple[str, ...]
    """Where each node listens."""
    credentials: Credentials | None = None
    """With them, links are encrypted, and nobody asks whose key it is."""
    slots: Tensor = field(init=False)
    """Shape (nodes, 2, elements), in memory that all processes share."""
    events: list[list[int]] = field(init=False)
    """Eventfd [i][j] counts what i has published for j."""

    def __post_init__(self) -> None:
        memory = mmap.mmap(-1, 4 * self.nodes * 2 * self.elements)
        slots = torch.frombuffer(memory, dtype=torch.float32).view(self.nodes, 2, self.elements)
        ranks = range(self.nodes)
        events = [[os.eventfd(0, os.EFD_SEMAPHORE) for _ in ranks] for _ in ranks]
        object.__setattr__(self, "slots", slots)
        object.__setattr__(self, "events", events)

    def others(self, rank: int) -> list[int]:
        """Everybody else, ascending."""
        return [j for j in range(self.nodes) if j != rank]

    def close(self) -> None:
        """Closes the descriptors; the memory goes with its last tensor."""
        for row in self.events:
            for fd in row:
                os.close(fd)


class Stopwatch:
    """When a node passed the warm-up and when it was through, comparable between processes."""

    def __init__(self, warm_up: int) -> None:
        self._warm_up = warm_up
        self._began = self._cpu = 0.0

    def round(self, number: int) -> None:
        """A round begins."""
        if number == self._warm_up:
            self._began, self._cpu = time.monotonic(), time.process_time()

    def stop(self, vector: Tensor) -> dict[str, float]:
        """Start, end, processor seconds between them, and two elements that show whether the mix is right."""
        return {
            "began": self._began,
            "ended": time.monotonic(),
            "cpu": time.process_time() - self._cpu,
            "first": float(vector[0]),
            "last": float(vector[-1]),
        }


def mix_all(models: list[Tensor], out: Tensor) -> None:
    """The mean of all models, with the product's own arithmetic."""
    weighted_sum([(1 / len(models), model) for model in models], out)


def eventfd_loop(case: RawCase, rank: int) -> dict[str, float]:
    """Shared memory; a kernel counter per pair says that a vector is there: the floor under transports."""
    watch, others, slots = Stopwatch(case.warm_up), case.others(rank), case.slots
    slots[rank, 0] = rank
    for round in range(case.rounds):
        watch.round(round)
        now, then = round % 2, 1 - round % 2
        for j in others:
            os.eventfd_write(case.events[rank][j], 1)
        for j in others:
            os.eventfd_read(case.events[j][rank])
        # j told of this round after it had read our other slot in the one before, so that slot is free.
        mix_all(list(slots[:, now]), slots[rank, then])
    return watch.stop(slots[rank, case.rounds % 2])


def shared_memory_loop(case: RawCase, rank: int) -> dict[str, float]:
    """Shared memory; ZeroMQ carries only the notice, so the same code would serve nodes elsewhere."""
    watch, slots = Stopwatch(case.warm_up), case.slots
    slots[rank, 0] = rank
    with Mesh(case, rank) as mesh:
        for round in range(case.rounds):
            watch.round(round)
            now, then = round % 2, 1 - round % 2
            header = HEADER.pack(rank, round, 0)
            for socket in mesh.outgoing:
                socket.send(header)
            mesh.gather(round)
            mix_all(list(slots[:, now]), slots[rank, then])
        return watch.stop(slots[rank, case.rounds % 2])


def frames_loop(case: RawCase, rank: int) -> dict[str, float]:
    """ZeroMQ carries header and payload without a copy at either end; checksums at both ends."""
    watch = Stopwatch(case.warm_up)
    slots = torch.empty(2, case.elements)
    slots[0] = rank
    with Mesh(case, rank) as mesh:
        for round in range(case.rounds):
            watch.round(round)
            now, then = round % 2, 1 - round % 2
            content = slots[now].view(torch.uint8).numpy().data
            header = HEADER.pack(rank, round, xxhash.xxh3_64_intdigest(content))
            for socket in mesh.outgoing:
                socket.send(header, zmq.SNDMORE)
                socket.send(content, copy=False)
            frames = mesh.gather(round)
            # Whoever sent this round has received all of the one before, so that slot is free.
            models = {j: torch.frombuffer(frame, dtype=torch.float32) for j, frame in frames.items()}
            models[rank] = slots[now]
            mix_all([models[j] for j in range(case.nodes)], slots[then])
        return watch.stop(slots[case.rounds % 2])


def batch_loop(case: RawCase, rank: int) -> dict[str, float]:
    """`batch_isend_irecv` over gloo, from the vector into memory that is kept: what torch itself offers."""
    watch, others = Stopwatch(case.warm_up), case.others(rank)
    store = dist.FileStore(case.endpoints[0].removeprefix("ipc://") + ".store", case.nodes)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.nodes)
    slots, received = torch.empty(2, case.elements), torch.empty(case.nodes, case.elements)
    slots[0] = rank
    for round in range(case.rounds):
        watch.round(round)
        now, then = round % 2, 1 - round % 2
        operations = [dist.P2POp(dist.irecv, received[j], j) for j in others]
        operations += [dist.P2POp(dist.isend, slots[now], j) for j in others]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        mix_all([slots[now] if j == rank else received[j] for j in range(case.nodes)], slots[then])
    return watch.stop(slots[case.rounds % 2])


class Mesh:
    """One node's sockets in a complete graph, and the messages that came too early."""

    def __init__(self, case: RawCase, rank: int) -> None:
        self._context = zmq.Context()
        self._incoming = self._context.socket(zmq.PULL)
        if case.credentials is not None:
            self._incoming.set(zmq.CURVE_SERVER, 1)
            self._incoming.set(zmq.CURVE_SECRETKEY, case.credentials.own_keys.secret)
        self._incoming.bind(case.endpoints[rank])
        self._early: dict[int, dict[int, Any]] = {}
        self._expected = case.nodes - 1
        self.outgoing = []
        for j in case.others(rank):
            socket = self._context.socket(zmq.PUSH)
            if case.credentials is not None:
                case.credentials.guard_client(socket, 0)
            socket.connect(case.endpoints[j])
            self.outgoing.append(socket)

    def gather(self, round: int) -> dict[int, Any]:
        """The body that each other node sent in this round, checked; empty where it sent only a header."""
        arrived = self._early.pop(round, {})
        while len(arrived) < self._expected:
            header, *body = self._incoming.recv_multipart(copy=False)
            sender, sent, checksum = HEADER.unpack(header.bytes)
            content = body[0].buffer if body else b""
            if body and xxhash.xxh3_64_intdigest(content) != checksum:
                raise ValueError(f"checksum of rank {sender} in round {sent}")
            (arrived if sent == round else self._early.setdefault(sent, {}))[sender] = content
        return arrived

    def __enter__(self) -> "Mesh":
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=2000)


RawLoop = Callable[[RawCase, int], dict[str, float]]
