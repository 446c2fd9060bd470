"""Processes that compute the local steps of the nodes of a host process, on vectors in shared memory.

They are forked when the nodes are ready for their first round, so each has all that the nodes have. A node
belongs to one of them for the whole run: its optimizer, its minibatches and its module state
live there from then on. The host process keeps the vector, the mix and the order of all events. It
blocks where it needs the result of a step, so the models are those of a run without workers.

Threads: the thread of the event loop sends orders and reads replies. Each worker has one thread.
"""

import contextlib
import math
import os
import struct
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch

from decentnode.communication.arena import Arena
from decentnode.core.polling import ready
from decentnode.core.process_setup import ForkedProcess, die_with, end_thread_pools
from decentnode.core.timeouts import Timeouts
from decentnode.errors import (
    DecentnodeError,
    ErrorElsewhere,
    RunFailed,
    StartError,
    WorkerLost,
    explained,
    is_out_of_memory,
)
from decentnode.formats.records import private_megabytes
from decentnode.models.module_state import keeps_only_tensors
from decentnode.models.state_encoding import UnknownKind
from decentnode.node.checkpoint.packed_state import packed, unpacked
from decentnode.node.checkpoint.safetensors_io import BadTensors
from decentnode.training.training import StepExecutor, StepResult, SubmittedStep, Training

_ORDER = struct.Struct("<QIqqdBBB")
"""Number, rank, round, step, loss, kind, and the place of the vector: its slot, and whether it is aside."""
_REPLY = struct.Struct("<QdddBBQ")
"""Number, loss, count, samples, kind, a flag, and the bytes that follow."""
_CHUNK = 1 << 16
REPLY_INTERVAL = 0.005
"""Real seconds for which a worker keeps a reply at most, once it has orders enough to go on, plus a step."""
LOOK_INTERVAL = 1.0
"""Real seconds between two looks for a sign of life, while the host process waits for a worker."""


class _OrderKind(IntEnum):
    """What a worker is to do."""

    STEP = 0
    SCHEDULE = 1
    """A step of the learning rate schedule, without a reply."""
    STATE = 2
    NETWORK_STATE = 3


class _ReplyKind(IntEnum):
    """What a reply is; the flag says whether a step was skipped, or the memory was used up."""

    RESULT = 0
    STATE = 1
    REFUSED = 2
    """An error of this package; its text follows."""
    FAILED = 3
    """An unexpected error."""
    NOT_ENCODABLE = 4
    """A state that no checkpoint can hold."""


class _Reply(NamedTuple):
    number: int
    loss: float
    terms: float
    samples: float
    kind: int
    flag: int
    body: bytes


@dataclass(eq=False)
class _Worker:
    """The host process's end."""

    process: ForkedProcess
    orders: int
    replies: int
    received: bytearray = field(default_factory=bytearray)
    awaited: deque[tuple[int, int]] = field(default_factory=deque)
    """Numbers and ranks of the orders without a reply, in their order."""


class StepWorkers(StepExecutor):
    """Has each step computed by the worker of its node."""

    def __init__(self, workers: int, arena: Arena, timeout: float, marks: Callable[[int], int]) -> None:
        """`arena`: where the vectors of the nodes are; `marks`: the marks of a node's heartbeat, by rank.

        `timeout`: seconds without a sign of life after which a worker counts as hung.
        """
        self._count = workers
        self.arena = arena
        self._memory_mb = 0.0
        self._measured = -math.inf
        self._timeout = timeout
        self._marks = marks
        self._workers: list[_Worker] = []
        self._worker_of: dict[int, _Worker] = {}
        self._replies: dict[int, _Reply] = {}
        self._number = 0
        self._changed: set[int] = set()
        """Nodes whose network state here is older than that of their last step."""
        self._has_network_state = True
        self._worker_lost: WorkerLost | None = None
        """Why no step can be computed any more: a part of the nodes is no run."""

    def start(self, trainings: Sequence[Training]) -> None:
        """Forks the workers; raises StartError. No thread may run but those of torch, which end here."""
        network = trainings[0].module
        trainings[0].vector.attach()
        state = trainings[0].network_state()
        kept = [*state["module"].values(), *state["loss_module"].values()]
        self._has_network_state = any(kept) or not keeps_only_tensors(network)
        end_thread_pools()
        for index in range(self._count):
            # Round robin: nodes that are due at one time are next to each other.
            own = {training.shard.rank: training for training in trainings[index :: self._count]}
            worker = _forked(own)
            self._workers.append(worker)
            self._worker_of |= dict.fromkeys(own, worker)

    def submit(self, training: Training, round: int, step: int) -> SubmittedStep:
        self._changed.add(training.shard.rank)
        number = self._send(training, _OrderKind.STEP, round, step)
        return partial(self._result, training, number)

    def follow_schedule(self, training: Training, loss: float | None) -> None:
        self._send(training, _OrderKind.SCHEDULE, loss=math.nan if loss is None else loss)

    def bring_network_state(self, training: Training) -> None:
        if self._has_network_state and training.shard.rank in self._changed:
            self._changed.discard(training.shard.rank)
            training.load_network_state(self._state(training, _OrderKind.NETWORK_STATE))

    def state_of(self, training: Training) -> dict[str, Any]:
        state: dict[str, Any] = self._state(training, _OrderKind.STATE)
        return state

    def memory_mb(self) -> float:
        # Every node asks at its end, and reading takes milliseconds.
        if time.monotonic() > self._measured + LOOK_INTERVAL:
            own = sum(private_megabytes(worker.process.pid) for worker in self._workers)
            self._memory_mb, self._measured = own + self.arena.nbytes / 2**20, time.monotonic()
        return self._memory_mb

    def close(self) -> None:
        """Ends the workers."""
        for worker in self._workers:
            # The end of its orders ends a worker, also one that writes a reply that nobody will read.
            worker.process.close_ends()
        limit = time.monotonic() + Timeouts.killed
        for worker in self._workers:
            if not worker.process.has_ended(limit - time.monotonic()):
                worker.process.kill()
            worker.process.reap()
        self._workers = []

    def _state(self, training: Training, kind: _OrderKind) -> Any:
        return unpacked(self._reply(training, self._send(training, kind)).body)

    def _result(self, training: Training, number: int) -> StepResult:
        reply = self._reply(training, number)
        # A double holds the loss of every format.
        loss = torch.tensor(reply.loss, dtype=torch.float64)
        return StepResult(loss, bool(reply.flag), count=reply.terms, samples=int(reply.samples))

    def _send(
        self, training: Training, kind: _OrderKind, round: int = 0, step: int = 0, loss: float = 0.0
    ) -> int:
        """Sends an order to the worker of a node; returns its number."""
        if self._worker_lost is not None:
            raise self._worker_lost
        rank, (slot, is_aside) = training.shard.rank, training.vector.active
        worker = self._worker_of[rank]
        self._number += 1
        order = _ORDER.pack(self._number, rank, round, step, loss, kind, slot, is_aside)
        if kind is not _OrderKind.SCHEDULE:
            worker.awaited.append((self._number, rank))
        limit = self._limit(worker)
        while True:
            try:
                # Less than a pipe writes at once: all of it, or nothing.
                os.write(worker.orders, order)
                return self._number
            except BlockingIOError:
                # Its replies are taken meanwhile, so that the worker never waits for this process.
                self._receive(worker, limit, writers=[worker.orders])
            except BrokenPipeError:
                self._lose(worker)

    def _reply(self, training: Training, number: int) -> _Reply:
        """Waits for a reply; raises the error that it tells, or RunFailed when the worker has ended."""
        worker = self._worker_of[training.shard.rank]
        limit = self._limit(worker)
        while (reply := self._replies.pop(number, None)) is None:
            if self._worker_lost is not None:
                raise self._worker_lost
            self._receive(worker, limit)
        if reply.kind in (_ReplyKind.RESULT, _ReplyKind.STATE):
            return reply
        text = reply.body.decode()
        if reply.kind == _ReplyKind.NOT_ENCODABLE:
            raise UnknownKind(text)
        raise RunFailed(text) if reply.kind == _ReplyKind.REFUSED else ErrorElsewhere(text, bool(reply.flag))

    def _limit(self, worker: _Worker) -> Callable[[], bool]:
        """Returns what tells whether the worker has shown no sign of life for too long since it was asked."""
        seen, last = None, time.monotonic()

        def is_over() -> bool:
            nonlocal seen, last
            # Minibatches of a long step beat, too.
            marks = self._marks(worker.awaited[0][1]) if worker.awaited else 0
            sign = len(worker.received), len(worker.awaited), marks
            if sign != seen:
                seen, last = sign, time.monotonic()
            return time.monotonic() > last + self._timeout

        return is_over

    def _receive(self, worker: _Worker, is_over: Callable[[], bool], writers: Sequence[int] = ()) -> None:
        """Takes the replies that have come, or waits for a while until one does."""
        readable = ready([worker.replies], writers, LOOK_INTERVAL)
        if worker.replies not in readable:
            if not readable and is_over():
                self._lose(worker, f"has shown no sign of life for {self._timeout:.0f} s")
            return
        content = os.read(worker.replies, _CHUNK)
        if not content:
            self._lose(worker)
        worker.received += content
        for reply in _replies(worker.received):
            self._replies[reply.number] = reply
            while worker.awaited and worker.awaited[0][0] <= reply.number:
                worker.awaited.popleft()

    def _lose(self, worker: _Worker, how: str = "") -> NoReturn:
        """Fails all nodes: a part of them would be another run, and none of them has left by itself."""
        number = self._workers.index(worker) + 1
        if not how and not worker.process.has_ended(Timeouts.killed):
            how = "has closed its pipe"
        how = how or self._end_of(worker)
        whole = f"{number} of {len(self._workers)}" if len(self._workers) > 1 else "alone"
        self._worker_lost = WorkerLost(
            f"training.execution: the process {worker.process.pid} that computes steps ({whole}) {how}"
        )
        # Once, and not for each of its nodes.
        print(self._worker_lost, flush=True)
        raise self._worker_lost

    def _end_of(self, worker: _Worker) -> str:
        """Waits for the end of a worker that is near, and returns it as text."""
        code, _ = worker.process.reap()
        if code is None:
            return "ended"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _replies(received: bytearray) -> Iterator[_Reply]:
    """Yields whole replies, and takes them out of what was received."""
    start = 0
    while len(received) >= start + _REPLY.size:
        number, loss, terms, samples, kind, flag, length = _REPLY.unpack_from(received, start)
        begin = start + _REPLY.size
        if len(received) < begin + length:
            break
        start = begin + length
        yield _Reply(number, loss, terms, samples, kind, flag, bytes(received[begin:start]))
    del received[:start]


def _forked(trainings: dict[int, Training]) -> _Worker:
    """Forks a worker for these nodes, by rank; raises StartError."""
    try:
        process = ForkedProcess(partial(_work, trainings, os.getpid()), down=1, up=1)
    except OSError as error:
        raise StartError(f"a process that computes steps cannot be started: {error.strerror}") from error
    for fd in process.ends:
        os.set_blocking(fd, False)
    orders, replies = process.ends
    return _Worker(process, orders, replies)


def _work(trainings: dict[int, Training], host: int, orders: int, replies: int) -> int:
    """Computes what is ordered until the orders end."""
    # First: it must not outlive a host process that dies now.
    die_with(host)
    # The host process may be at its end.
    with contextlib.suppress(BrokenPipeError):
        received = bytearray()
        while content := os.read(orders, _CHUNK):
            received += content
            whole = len(received) // _ORDER.size * _ORDER.size
            unsent, sent = b"", time.monotonic()
            for number, rank, *order in _ORDER.iter_unpack(received[:whole]):
                unsent += _answer(trainings[rank], number, *order)
                # Several at once, because each write may wake the host process.
                if time.monotonic() > sent + REPLY_INTERVAL:
                    unsent, sent = _written(replies, unsent), time.monotonic()
            _written(replies, unsent)
            del received[:whole]
    return 0


def _written(fd: int, content: bytes) -> bytes:
    """Writes all of it; returns what is left, which is nothing."""
    while content:
        content = content[os.write(fd, content) :]
    return content


def _answer(
    training: Training, number: int, round: int, step: int, loss: float, kind: int, slot: int, is_aside: int
) -> bytes:
    """Carries out an order; returns the reply, which is empty where none is wanted."""
    loss_out, count, samples, flag, body, reply_kind = 0.0, 0.0, 0, False, b"", _ReplyKind.RESULT
    try:
        training.vector.activate(slot, bool(is_aside))
        match kind:
            case _OrderKind.STEP:
                if not step:
                    training.minibatches.begin_round()
                result = training.compute(round, step)
                training.beat()
                loss_out, count, samples = float(result.loss), result.count, result.samples
                flag = result.is_skipped
            case _OrderKind.SCHEDULE:
                training.step_scheduler(None if math.isnan(loss) else loss)
                return b""
            case _OrderKind.STATE:
                reply_kind, body = _ReplyKind.STATE, packed(training.local_state())
            case _OrderKind.NETWORK_STATE:
                training.vector.attach()
                reply_kind, body = _ReplyKind.STATE, packed(training.network_state())
    except (UnknownKind, BadTensors) as error:
        reply_kind, body = _ReplyKind.NOT_ENCODABLE, str(error).encode()
    except DecentnodeError as error:
        reply_kind, body = _ReplyKind.REFUSED, str(error).encode()
    except Exception as error:
        traceback.print_exception(error)
        sys.stderr.flush()
        reply_kind, flag, body = _ReplyKind.FAILED, is_out_of_memory(error), explained(error).encode()
    return _REPLY.pack(number, loss_out, count, samples, reply_kind, flag, len(body)) + body
