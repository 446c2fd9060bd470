"""A host process's end of the peer-sampling service: fetches blocks ahead, in a thread of its own.

Threads: nodes read blocks in their own thread; one thread of this module asks for them and adds them.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from decentnode.communication.peer_sampling.service import CHECK_INTERVAL, NUMBER, QUESTION
from decentnode.communication.security.curve import Credentials
from decentnode.core.clock import AwakeClock, Clock
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError

KEPT_BLOCKS = 4
REQUEST_INTERVAL = 0.5


@dataclass
class SamplingClient:
    """The blocks that one host process has fetched; its nodes read them, a thread adds them.

    Losses are told once, and so is the first block after them.
    """

    endpoint: str
    process: int
    """The position of this host process."""
    timeouts: Timeouts
    log: Callable[[str], object]
    credentials: Credentials | None = None
    clock: Clock = field(default_factory=Clock)
    """The clock of the nodes; virtual time stands while they wait for the service."""
    is_lost: bool = field(default=False, init=False)
    """Whether the service does not answer."""
    _blocks: dict[int, bytes] = field(default_factory=dict, init=False)
    _wanted: int = field(default=-1, init=False)
    _ended: bool = field(default=False, init=False)
    _repeats: bool = field(default=False, init=False)
    """Whether nodes repeat a block, which is told."""

    def start(self, first: int = 0) -> "SamplingClient":
        """Fetches a first block; raises StartError if the service does not answer in time."""
        self._thread = threading.Thread(target=self._run, name="peer sampling", daemon=True)
        self._thread.start()
        self.request(first)
        clock = AwakeClock(CHECK_INTERVAL)
        limit = clock.now() + self.timeouts.start_deadline
        while self.block(first) is None:
            if clock.now() > limit:
                raise StartError(f"no peer-sampling service answers at {self.endpoint}")
            time.sleep(CHECK_INTERVAL / 5)
        return self

    def close(self) -> None:
        """Ends the thread."""
        self._ended = True
        self._thread.join(Timeouts.connect)

    def request(self, number: int) -> None:
        """Has a block fetched; the thread sees it soon."""
        self._wanted = max(number, self._wanted)

    def block(self, number: int) -> bytes | None:
        """Returns the block of that number, or None if it is not here."""
        return self._blocks.get(number)

    async def wait(self, number: int) -> None:
        """Waits until the block is here or the service is lost, for half of a deadline at most."""
        awake = AwakeClock(CHECK_INTERVAL)
        limit = awake.now() + self.timeouts.sampled_view

        def is_over() -> bool:
            return self.block(number) is not None or self.is_lost or awake.now() >= limit

        await self.clock.wait_outside(is_over, CHECK_INTERVAL / 5)

    def repeats(self, first: int, instead: range) -> None:
        """Tells that nodes repeat the views of the rounds `instead` from round `first` on."""
        if not self._repeats:
            self._repeats = True
            views = f"the views of rounds {instead[0] + 1} to {instead[-1] + 1}"
            self.log(
                f"no answer of the peer-sampling service: from round {first + 1} on nodes repeat {views}"
            )

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.set(zmq.LINGER, 0)
        if self.credentials is not None and self.endpoint.startswith("tcp"):
            self.credentials.guard_client(dealer, 0)
        dealer.connect(self.endpoint)
        # While this process is suspended the service is not silent: nodes that repeat a block which others
        # have would wait for peers that exchange with others, in each of its rounds.
        clock = AwakeClock(CHECK_INTERVAL)
        last_answer, due, requested = clock.now(), 0.0, -1
        # Several questions within the grace: each answer that a block is not due yet is a sign of life.
        pause = min(REQUEST_INTERVAL, self.timeouts.grace / 3)
        while not self._ended:
            now, wanted = clock.now(), self._wanted
            if wanted in self._blocks or wanted != requested:
                last_answer, due, requested = now, 0.0, wanted
            if wanted not in self._blocks and wanted >= 0 and now >= due:
                due = now + pause
                # Without a connection, the queue of questions becomes full.
                with contextlib.suppress(zmq.Again):
                    dealer.send(QUESTION.pack(self.process, wanted), zmq.NOBLOCK)
            if dealer.poll(round(1000 * CHECK_INTERVAL)):
                last_answer, self.is_lost = clock.now(), False
                self._take(dealer.recv_multipart())
            elif clock.now() - last_answer > self.timeouts.grace:
                # Until it answers again: nodes wait for no further block.
                self.is_lost = True
        context.destroy(linger=0)

    def _take(self, frames: list[bytes]) -> None:
        if len(frames) == 2 and len(frames[0]) == NUMBER.size:
            (number,) = NUMBER.unpack(frames[0])
            kept = {k: block for k, block in self._blocks.items() if k > number - KEPT_BLOCKS}
            # Replaced as a whole: nodes read it in other threads.
            self._blocks = kept | {number: frames[1]}
            if self._repeats:
                self._repeats = False
                self.log("the peer-sampling service answers again")
