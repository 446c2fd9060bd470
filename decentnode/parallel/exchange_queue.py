"""One rank's exchanges: several in flight, in the order of their keys, each with a timeout."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from decentnode.communication.base import Endpoint, Inbox, MeanOfAll
from decentnode.communication.exchange.handle import ExchangeHandle
from decentnode.core.payload import Layout, Payload, dense_layout
from decentnode.core.timeouts import Timeouts
from decentnode.errors import DecentnodeError, PeerLeft, ProtocolError, RunFailed

FLAG = dense_layout(1, torch.uint8)
"""Whether a rank has a batch for a step."""
UNEVEN = "where ranks have different numbers of batches, train inside join()"
Handle = ExchangeHandle | MeanOfAll
Launch = tuple[int, Callable[[], Handle]]
"""The part of an exchange or an average that is not started yet, and what starts it."""


class ExchangeQueue:
    """Every rank makes the same exchanges in the same order, so their numbers agree.

    A release acknowledges all earlier exchanges, so they are collected in the order in which they started.
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
        """The last of the `parts` is for collectives of all ranks; `tolerant`: a lost peer is no error.

        `in_flight`: the number of parts exchanged at a time, which bounds the memory that they hold.
        """
        self.endpoint = endpoint
        self.rank = endpoint.rank
        self.step = 0
        """The step in messages."""
        self.handles: dict[int, Handle] = {}
        """Exchanges and averages that were started and not collected, by part, in their order."""
        self.size = size
        self._others = [j for j in range(size) if j != self.rank]
        self._service = parts - 1
        self._deadline = deadline
        self._tolerant = tolerant
        self._most = in_flight or math.inf
        self._waiting: deque[Launch] = deque()
        """Launched exchanges that start when fewer are in flight, in their order."""
        self._round, self._last_part = -1, self._service
        self._announcement_handle: ExchangeHandle | None = None
        """The exchange of all ranks' flags, until it is released."""
        self._flags_inbox: Inbox | None = None
        """The inbox of the exchange of flags, once it was read."""
        self._has_timed_out = False
        """Whether a wait has exceeded its limit, so further ones would, too."""
        self._before: frozenset[int] = frozenset()
        """The parts that were in flight when that exchange started: they are released first."""

    @property
    def is_full(self) -> bool:
        """Whether the next launch must wait until an exchange is collected and released."""
        return len(self.handles) >= self._most

    @property
    def launched(self) -> set[int]:
        """The parts that were launched and not collected."""
        return {*self.handles, *(part for part, _ in self._waiting)}

    def launch(self, part: int, payload: Payload, targets: Sequence[int], sources: Sequence[int]) -> None:
        """Starts the exchange of one part, now or as soon as earlier ones leave room."""
        outgoing = dict.fromkeys(targets, payload)
        self._waiting.append((part, lambda: self._exchange(outgoing, sources, part, layout=payload.layout)))
        self._begin_waiting()

    def launch_mean(self, part: int, values: Tensor, out: Tensor) -> None:
        """Starts to write the mean of one part over all ranks to `out`, now or as soon as there is room."""
        collectives = self.endpoint.collectives
        assert collectives is not None, "all ranks have agreed on them"
        self._waiting.append((part, lambda: collectives.mean(values, out)))
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and not self.is_full:
            part, start = self._waiting.popleft()
            self.handles[part] = start()

    def collect(self, part: int, layout: Layout) -> Inbox:
        """Waits for a launched exchange and returns its payloads; pass them to `release` after reading.

        Parts are collected in the order in which they were launched. Raises RunFailed.
        """
        if part not in self._before:
            self.end_announcement()
        handle = self.handles[part]
        assert isinstance(handle, ExchangeHandle), "a part is always averaged or never"
        inbox = self._opened(handle, layout)
        del self.handles[part]
        return inbox

    def collect_mean(self, part: int) -> None:
        """Waits for a launched mean; raises RunFailed."""
        handle = self.handles[part]
        assert isinstance(handle, MeanOfAll), "a part is always averaged or never"
        self._wait(handle)
        if handle.error is not None:
            raise self.failure(handle.error)
        del self.handles[part]
        self._begin_waiting()

    def release(self, inbox: Inbox) -> bool:
        """Releases payloads as `Inbox.release` does, and starts waiting exchanges."""
        is_valid = inbox.release()
        self._begin_waiting()
        return is_valid

    def drop(self, part: int) -> None:
        """Receives the next part and discards it; does nothing where it was collected."""
        if part in self.handles:
            if part not in self._before:
                self.end_announcement()
            self._wait(self.handles[part])
            self.handles.pop(part).release()
            self._begin_waiting()

    def drop_all(self) -> None:
        """Receives and discards what is in flight, so that its senders continue; cancels waiting launches."""
        self._waiting.clear()
        for handle in self.handles.values():
            self._wait(handle)
        for part in list(self.handles):
            self.handles.pop(part).release()
        self.end_announcement()

    def announce(self, has_batch: bool) -> None:
        """Starts to send all ranks whether this one has a batch for the step; all do so in each step."""
        self.end_announcement()  # that of the step before: by now its flags have mostly arrived
        flag = torch.full((1,), has_batch, dtype=torch.uint8, device=self.endpoint.device)
        self._before = frozenset(self.handles)
        self._announcement_handle = self._exchange(
            self.to_others(flag), self._others, self._service, layout=FLAG
        )

    def any_has_batch(self) -> bool:
        """Whether another rank has a batch for the announced step; waits for all ranks. Raises RunFailed.

        Nothing is released: parts that were launched before may not have been collected.
        """
        assert self._announcement_handle is not None
        self._flags_inbox = self._opened(self._announcement_handle, FLAG)
        return any(bool(payload["vector"].item()) for payload in self._flags_inbox.values())

    def end_announcement(self) -> None:
        """Waits for the flags of all ranks and releases them, unless that is done; older parts come first."""
        if self._announcement_handle is None:
            return
        flags = (
            self._opened(self._announcement_handle, FLAG) if self._flags_inbox is None else self._flags_inbox
        )
        self._announcement_handle = self._flags_inbox = None
        self._before = frozenset()
        flags.release()

    def release_arrived(self, seconds: float) -> None:
        """Releases what has arrived; for the end. Waits for averages alone, so many seconds at most.

        Other ranks need this one until the last average that it has started.
        """
        limit = time.monotonic() + seconds
        for handle in self.handles.values():
            if isinstance(handle, MeanOfAll) and not self._has_timed_out:
                handle.finish_within(limit - time.monotonic())
        for part in list(self.handles):
            if self.handles[part].done:
                self.handles.pop(part).release()

    def with_all(
        self, outgoing: Mapping[int, Payload], sources: Iterable[int] | None, layout: Layout
    ) -> Inbox:
        """Makes one exchange of all ranks and waits for it; `sources`: all others by default."""
        awaited = self._others if sources is None else list(sources)
        return self._opened(self._exchange(outgoing, awaited, self._service, layout=layout), layout)

    def to_others(self, content: Tensor) -> dict[int, Payload]:
        """Returns one flat tensor as the payload for each of the other ranks."""
        return dict.fromkeys(self._others, Payload.dense(content))

    def all_agree(self, vote: bool) -> bool:
        """Whether every rank votes for something; all ranks ask at the same place."""
        flag = torch.full((1,), vote, dtype=torch.uint8, device=self.endpoint.device)
        inbox = self.with_all(self.to_others(flag), None, FLAG)
        votes = [bool(payload["vector"].item()) for payload in inbox.values()]
        inbox.release()
        return vote and all(votes)

    def living(self) -> list[int]:
        """The ranks that take part in collectives: those that no live rank has lost.

        Ranks that are connected, also through others, find the same ranks unless more are lost meanwhile.
        Raises RunFailed on all of them if each has been lost by another.
        """
        if not self._tolerant:
            return sorted((*self._others, self.rank))
        present = torch.ones(len(self._others) + 1, dtype=torch.uint8, device=self.endpoint.device)
        layout = dense_layout(present.numel(), torch.uint8)
        # The first exchange leaves the ranks that i receives from. The r-th after it leaves those of them
        # that receive from every rank within r links of i. A rank 3 links away receives from none of the
        # sources of i: if there is one, r = 3 leaves no rank; otherwise r = 2 covers all. So 4 exchanges
        # suffice for any number of ranks.
        for _ in range(4):
            views = present.clone()
            inbox = self.with_all(self.to_others(views), None, layout)
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
        """Waits until no rank reads any payload of these parts any more."""
        nothing = dense_layout(0)
        for part in (*parts, self._service):
            empty = dict.fromkeys(self._others, Payload.empty(nothing))
            handle = self._exchange(empty, self._others, part, layout=nothing)
            self._opened(handle, nothing).release()

    def _exchange(
        self, outgoing: Mapping[int, Payload], sources: Sequence[int], part: int, layout: Layout
    ) -> ExchangeHandle:
        if part <= self._last_part:  # keys ascend: parts in a round, then rounds
            self._round += 1
            self.endpoint.admit(self._round)
        self._last_part = part
        return self.endpoint.exchange(
            outgoing, sources, (self._round, 0, part), deadline=self._deadline, layout=layout
        )

    def _wait(self, handle: Handle) -> None:
        is_mean = isinstance(handle, MeanOfAll)
        # The transport ends an exchange with a silent peer, but no average.
        seconds = self._deadline if is_mean else Timeouts.exchange_queue(self._deadline)
        if not handle.finish_within(seconds):
            self._has_timed_out = True
            if isinstance(handle, MeanOfAll):
                awaited = "the average of all ranks: one of them is silent"
            else:
                awaited = ", ".join(f"rank {j}" for j in sorted(handle.awaited))
            raise RunFailed(
                f"{self.here}: waited {seconds:.0f} s for {awaited or 'readers of an earlier exchange'}"
            )

    def _opened(self, handle: ExchangeHandle, layout: Layout) -> Inbox:
        self._wait(handle)
        inbox = Inbox(handle, layout, self.endpoint)
        if inbox.missing and not self._tolerant:
            raise self.failure(inbox.missing[min(inbox.missing)])
        return inbox

    def failure(self, error: DecentnodeError | ValueError) -> RunFailed:
        """The error as RunFailed with this rank and step."""
        is_uneven = isinstance(error, PeerLeft)
        is_uneven = is_uneven or (isinstance(error, ProtocolError) and error.counted_as == "layout")
        failed = RunFailed(f"{self.here}: {error}" + f"; {UNEVEN}" * is_uneven)
        failed.__cause__ = error
        return failed

    @property
    def here(self) -> str:
        """Returns this rank and step, as text."""
        return f"rank {self.rank}, step {self.step}"
