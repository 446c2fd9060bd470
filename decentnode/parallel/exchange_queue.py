"""One rank's exchanges: several in flight, in the order of their keys, none waited for without a limit."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.communication.base import Endpoint, Inbox
from decentnode.communication.exchange.handle import ExchangeHandle
from decentnode.core.payload import Layout, Payload, dense_layout
from decentnode.errors import PeerError, RunFailed

SLACK = 10.0
"""Seconds beyond the deadline after which a wait ends that the transport itself should have ended."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The exchange of one part, to be begun."""

    part: int
    payload: Payload
    targets: Sequence[int]
    sources: Sequence[int]


class ExchangeQueue:
    """Every rank makes the same exchanges in the same order, so their numbers agree.

    What is released says that all before it was read: they are collected in the order in which they began.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        size: int,
        parts: int,
        deadline: float,
        tolerant: bool = False,
        in_flight: int | None = None,
    ) -> None:
        """The last of the `parts` is for what concerns all ranks; `tolerant`: a loss is no error.

        `in_flight`: how many parts are exchanged at a time, which bounds the memory that waits for them.
        """
        self.endpoint = endpoint
        self.rank = endpoint.rank
        self.step = 0
        """What messages name as the step."""
        self.flying: dict[int, ExchangeHandle] = {}
        """By part what was begun and not collected, in the order in which it was."""
        self._others = [j for j in range(size) if j != self.rank]
        self._service = parts - 1
        self._deadline = deadline
        self._tolerant = tolerant
        self._most = in_flight or math.inf
        self._waiting: deque[Launch] = deque()
        """What was launched and is begun when fewer are in flight, in its order."""
        self._round, self._last_part = -1, self._service

    @property
    def is_full(self) -> bool:
        """Whether the next launch has to wait until something is collected and released."""
        return len(self.flying) >= self._most

    @property
    def launched(self) -> set[int]:
        """The parts that were launched and not collected."""
        return {*self.flying, *(launch.part for launch in self._waiting)}

    def launch(self, part: int, payload: Payload, targets: Sequence[int], sources: Sequence[int]) -> None:
        """Begins the exchange of one part, now or as soon as those before it leave room."""
        self._waiting.append(Launch(part, payload, targets, sources))
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and not self.is_full:
            launch = self._waiting.popleft()
            outgoing = dict.fromkeys(launch.targets, launch.payload)
            handle = self._exchange(outgoing, launch.sources, launch.part, launch.payload.layout)
            handle.hold()
            self.flying[launch.part] = handle

    def collect(self, part: int, layout: Layout) -> Inbox:
        """What a launched exchange has brought; to be given to `release` when it was read.

        Parts are collected in the order in which they were launched. Raises RunFailed.
        """
        self._wait(self.flying[part])
        inbox = self._opened(self.flying[part], layout)
        del self.flying[part]
        return inbox

    def release(self, inbox: Inbox) -> None:
        """Gives the memory back that was read, and has the next part make use of the room."""
        inbox.release()
        self._begin_waiting()

    def await_all(self) -> None:
        """Waits until everything in flight has come, and leaves it there."""
        for handle in self.flying.values():
            self._wait(handle)

    def drop(self, part: int) -> None:
        """Takes in the part that comes next and throws it away; does nothing where it was collected."""
        if part in self.flying:
            self._wait(self.flying[part])
            self.flying.pop(part).release()
            self._begin_waiting()

    def drop_all(self) -> None:
        """Takes in what is in flight and throws it away, so that its senders go on; forgets what waits."""
        self._waiting.clear()
        self.await_all()
        for part in list(self.flying):
            self.flying.pop(part).release()

    def release_arrived(self) -> None:
        """For the end: gives back what has come, and waits for nothing."""
        for part in list(self.flying):
            if self.flying[part].done:
                self.flying.pop(part).release()

    def with_all(
        self, outgoing: Mapping[int, Payload], sources: Iterable[int] | None, layout: Layout
    ) -> Inbox:
        """One exchange that concerns all ranks, waited for; `sources`: all others unless given."""
        awaited = self._others if sources is None else list(sources)
        handle = self._exchange(outgoing, awaited, self._service, layout)
        self._wait(handle)
        return self._opened(handle, layout)

    def to_others(self, content: Tensor) -> dict[int, Payload]:
        """The same flat tensor for everybody else."""
        return dict.fromkeys(self._others, Payload.dense(content))

    def living(self) -> list[int]:
        """Who takes part in what concerns all ranks: nobody whom any of them has lost.

        Ranks between which links are left, over others as it may be, find the same, unless more is lost
        meanwhile. Raises RunFailed on all of them if each has been lost by another.
        """
        if not self._tolerant:
            return sorted((*self._others, self.rank))
        present = torch.ones(len(self._others) + 1, dtype=torch.uint8, device=self.endpoint.device)
        layout = dense_layout(present.numel(), torch.uint8)
        # The first exchange tells whom i hears; the r-th after it leaves of these who hears every rank within
        # r links of i. A rank 3 links away hears nobody whom i hears: if there is one, r = 3 leaves nobody,
        # and else r = 2 reaches all. So 4 exchanges do, however many ranks there are.
        for _ in range(4):
            said = present.clone()
            inbox = self.with_all(self.to_others(said), None, layout)
            for j in self._others:
                if j not in inbox:
                    present[j] = 0
                else:
                    present &= inbox[j]["vector"]
            inbox.release()
        if not present.any():
            raise RunFailed(f"{self.here}: no average of all: every rank was lost by another one")
        return [j for j, is_there in enumerate(present.tolist()) if is_there]

    def settle(self, parts: Iterable[int]) -> None:
        """Waits until nobody reads anything any more that was sent in these parts."""
        nothing = dense_layout(0)
        for part in (*parts, self._service):
            empty = dict.fromkeys(self._others, Payload.empty(nothing))
            handle = self._exchange(empty, self._others, part, nothing)
            self._wait(handle)
            self._opened(handle, nothing).release()

    def _exchange(
        self, outgoing: Mapping[int, Payload], sources: Sequence[int], part: int, layout: Layout
    ) -> ExchangeHandle:
        if part <= self._last_part:  # keys ascend: parts in a round, then rounds
            self._round += 1
            self.endpoint.admit(self._round)
        self._last_part = part
        self.endpoint.expect(layout)
        return self.endpoint.exchange(outgoing, sources, (self._round, 0, part), self._deadline)

    def _wait(self, handle: ExchangeHandle) -> None:
        seconds = 2 * self._deadline + SLACK
        if not handle.finish_within(seconds):
            awaited = (
                ", ".join(f"rank {j}" for j in sorted(handle.awaited)) or "readers of an earlier exchange"
            )
            raise RunFailed(f"{self.here}: waited {seconds:.0f} s for {awaited}")

    def _opened(self, handle: ExchangeHandle, layout: Layout) -> Inbox:
        inbox = Inbox(handle, layout, self.endpoint)
        if inbox.missing and not self._tolerant:
            raise self.failure(inbox.missing[min(inbox.missing)])
        return inbox

    def failure(self, error: PeerError | ValueError) -> RunFailed:
        """The error with this rank and step in its words."""
        failed = RunFailed(f"{self.here}: {error}")
        failed.__cause__ = error
        return failed

    @property
    def here(self) -> str:
        """This rank and step, in words."""
        return f"rank {self.rank}, step {self.step}"
