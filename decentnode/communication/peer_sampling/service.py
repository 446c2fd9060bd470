"""The peer-sampling service: one process that answers all host processes with the edges of coming rounds.

Threads: a process of its own, with one thread.
"""

import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import zmq

from decentnode.communication.security.curve import Credentials, ZapAuthenticator
from decentnode.communication.zmq_poll import Poller, has_input
from decentnode.core.clock import AwakeClock
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError
from decentnode.mapping.base import Mapping, tcp_endpoint

QUESTION = struct.Struct("<qq")
"""The position of the host process, and the number of the block."""
NUMBER = struct.Struct("<q")
"""Begins an answer: the number of the block, which follows, or which is not due yet."""
MOST_QUESTION_BYTES = 1024
CHECK_INTERVAL = 0.05
MOST_WAITING = 4
"""Different blocks that processes may wait for at a time."""


def endpoint_of(mapping: Mapping, address: str, port: int, socket_dir: str, host: str = "") -> str:
    """Where the service of a run is: at `address`; else in the directory of the sockets, if all that ask are
    on one machine; else at machine 0, which `host` names where it does so in another way than the others.
    """
    if not address and socket_dir and len(mapping.machines) == 1:
        return f"ipc://{socket_dir}/peers"
    return tcp_endpoint(address or host or mapping.address(0), port)


@dataclass
class SamplingService:
    """Sends each block to all processes at the same time, so that they lose the service alike.

    A block is due when all processes that got the one before have asked for it, or `timeout` after the first
    of them. Later questions are answered at once.
    """

    answer: Callable[[int], bytes]
    """The block of that number."""
    endpoint: str
    processes: int
    timeout: float
    credentials: Credentials | None = None
    _newest: int = field(default=-1, init=False)
    """The newest block that was sent."""
    _expected: set[int] = field(default_factory=set, init=False)
    """The processes that asked for it; all of them before the first one."""
    _waiting: dict[int, dict[int, bytes]] = field(default_factory=dict, init=False)
    """For each block the routing ids of those that wait for it, by process."""
    _since: dict[int, float] = field(default_factory=dict, init=False)
    """When a block was first asked for."""
    _clock: AwakeClock = field(default_factory=lambda: AwakeClock(CHECK_INTERVAL), init=False)

    def serve(self) -> None:
        """Answers until the process ends; raises StartError if the endpoint cannot be bound."""
        # All processes get the same one.
        self._drawn = lru_cache(2)(self.answer)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = context.socket(zmq.ROUTER)
        self._router.set(zmq.MAXMSGSIZE, MOST_QUESTION_BYTES)
        self._router.set(zmq.LINGER, 0)
        poller = Poller()
        poller.add(self._router, self._take)
        if self.credentials is not None and self.endpoint.startswith("tcp"):
            refuse = partial(print, "refused a connection:", flush=True)
            gate = ZapAuthenticator(self._router, self.credentials, refuse)
            poller.add(gate.questions, gate.serve)
            poller.add(gate.monitor, gate.serve)
        self._bind()
        print(f"peer sampling at {self.endpoint}, process {os.getpid()}", flush=True)
        while True:
            self._clock.now()
            poller.serve(time.monotonic() + CHECK_INTERVAL)
            for number in sorted(self._waiting):
                self._send_if_due(number, self._clock.now())

    def _bind(self) -> None:
        folder = Path(self.endpoint.removeprefix("ipc://")).parent
        limit = time.monotonic() + Timeouts.server_end
        # The directory of the sockets is made by the process that starts the nodes.
        while self.endpoint.startswith("ipc") and not folder.is_dir() and time.monotonic() < limit:
            time.sleep(CHECK_INTERVAL)
        try:
            self._router.bind(self.endpoint)
        except zmq.ZMQError as error:
            why = zmq.strerror(error.errno or 0)
            raise StartError(
                f"{self.endpoint} cannot be bound: {why}; graph.address is that of this machine"
            ) from error

    def _take(self) -> None:
        while has_input(self._router):
            peer, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            if len(frames) != 1 or len(frames[0]) != QUESTION.size:
                continue
            process, number = QUESTION.unpack(frames[0])
            if 0 <= number <= self._newest:
                self._expected.add(process)
                self._send(peer, number)
            elif number >= 0 and (number in self._waiting or len(self._waiting) < MOST_WAITING):
                self._waiting.setdefault(number, {})[process] = peer
                self._since.setdefault(number, self._clock.now())
                # A sign of life: the block is not due yet.
                self._router.send_multipart([peer, NUMBER.pack(number)])

    def _send_if_due(self, number: int, now: float) -> None:
        questions = self._waiting[number]
        is_complete = (
            questions.keys() >= self._expected if self._expected else len(questions) >= self.processes
        )
        if not is_complete and now < self._since[number] + self.timeout:
            return
        del self._waiting[number], self._since[number]
        self._newest, self._expected = max(self._newest, number), {*questions}
        for peer in questions.values():
            self._send(peer, number)

    def _send(self, peer: bytes, number: int) -> None:
        self._router.send_multipart([peer, NUMBER.pack(number), self._drawn(number)])
