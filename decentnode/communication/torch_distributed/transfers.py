"""Carries one node's payloads through its process group, in the thread that waits for an exchange.

Threads: the node's thread begins exchanges, waits for transfers and delivers them; the socket thread reports
sizes, which may post transfers. One lock orders the posts.
"""

import math
import queue
import threading
import time
from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from decentnode.communication.exchange.handle import ExchangeHandle, Key
from decentnode.communication.huge_pages import new_bytes
from decentnode.communication.torch_distributed.messages import Size
from decentnode.communication.torch_distributed.process_group import Group, GroupBroken, Pending, Transfer
from decentnode.core.timeouts import Timeouts

MOST_EARLY = 4096
"""Sizes of payloads of later exchanges; a correct peer is at most one exchange ahead."""


@dataclass
class GroupExchange:
    """The part of one exchange that goes through the group."""

    group: Group
    key: Key
    sends: dict[int, Tensor]
    sizes: dict[int, Size | None]
    """By source the expected size; None: not announced yet."""
    timeout: float
    """Seconds of waiting after which the group is ended, so ZeroMQ can resend its payloads."""
    has_sent: bool = False
    under_way: set[int] = field(default_factory=set)
    """Sources with a posted receive."""

    @property
    def is_ready(self) -> bool:
        """Whether all sizes are known, or the group has failed."""
        return self.group.is_broken or None not in self.sizes.values()

    @cached_property
    def limit(self) -> float:
        """When `timeout` ends, on the clock of `time.monotonic`; the first use starts it."""
        return time.monotonic() + self.timeout


Task = tuple[GroupExchange, Pending, GroupExchange]
"""One wait of the thread: an exchange, transfers of it, and the exchange whose timeout counts."""


class Customer(Protocol):
    """Receives results, in the thread that waits for them."""

    def brought(self, group: Group, transfer: Transfer, key: Key, layout: int) -> None:
        """A payload has arrived."""

    def fell_through(self, group: Group, peers: set[int], why: str) -> None:
        """The group failed in a transfer with these peers; empty if it cannot be used with any other."""

    def reads_nothing(self, peer: int) -> bool:
        """Whether no payload sent to that peer will be read."""


class Pool:
    """Memory for received payloads, as much as was ever in use at a time."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        """Ascending in length."""
        self._lock = threading.Lock()

    def take(self, length: int, device: torch.device) -> Tensor:
        """Lends so many bytes, until they are given back."""
        with self._lock:
            for i, free in enumerate(self._free):
                if free.numel() >= length and free.device == device:
                    return self._free.pop(i)[:length]
            if self._free:
                # Too small for now: replaced by a larger one, so the pool does not grow with the number of
                # sizes.
                self._free.pop()
        return new_bytes(length, device)

    def return_buffer(self, buffer: Tensor) -> None:
        """Returns memory from `take` that is not read any more."""
        whole = buffer.new_empty(0).set_(buffer.untyped_storage())
        with self._lock:
            insort(self._free, whole, key=Tensor.numel)

    def clear(self) -> None:
        """Frees all unused memory."""
        with self._lock:
            self._free.clear()


class TransferQueue:
    """Posts transfers in any thread, and delivers arrived payloads in the thread that waits.

    What arrives while no thread waits already lies in its final place; it is delivered later.
    """

    def __init__(self, customer: Customer) -> None:
        self._customer = customer
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._exchanges: dict[int, GroupExchange] = {}
        """The last exchange of each part."""
        self._unreaped: dict[int, list[tuple[GroupExchange, Pending]]] = {}
        """Its sends; the next exchange of that part waits for them, because it needs their memory."""
        self._held_exchanges: deque[GroupExchange] = deque()
        """Exchanges that wait for sizes, in the order of their keys, for a group that gathers.

        It matches one exchange after the other, so both ends must post them in the same order.
        """
        self._early_sizes: dict[tuple[int, Key], Size] = {}
        self.pool = Pool()

    def begin(self, exchange: GroupExchange) -> None:
        """Starts an exchange; the payloads of the previous one were released."""
        with self._lock:
            part = exchange.key[2]
            self._exchanges[part] = exchange
            for source, size in exchange.sizes.items():
                exchange.sizes[source] = size or self._early_sizes.pop((source, exchange.key), None)
            self._early_sizes = {
                at: size for at, size in self._early_sizes.items() if at[1] > exchange.key or at[1][2] != part
            }
            unreaped = self._unreaped.pop(part, [])
            # Held until all sizes are known: such a group posts an exchange as a whole.
            if exchange.group.gathers:
                self._held_exchanges.append(exchange)
            failed = self._post(exchange)
            for before, pending in unreaped:
                self._tasks.put((before, pending, exchange))
        self._report(exchange, failed)

    def receive_size(self, source: int, key: Key, size: Size) -> bool:
        """Processes an announced size; returns False if the source is too far ahead."""
        failed: GroupBroken | None = None
        with self._lock:
            exchange = self._exchanges.get(key[2])
            if exchange is not None and exchange.key == key and source in exchange.sizes:
                exchange.sizes[source] = exchange.sizes[source] or size
                failed = self._post(exchange)
            elif (exchange is None or key > exchange.key) and len(self._early_sizes) < MOST_EARLY:
                self._early_sizes[source, key] = size
            else:
                return exchange is not None and key <= exchange.key
        if exchange is not None:
            self._report(exchange, failed)
        return True

    def awaits(self, peer: int) -> bool:
        """Whether a transfer of that peer is posted or held; in a group that gathers, of any peer."""
        with self._lock:
            return bool(self._held_exchanges) or any(
                peer in exchange.under_way or (exchange.group.gathers and exchange.under_way)
                for exchange in self._exchanges.values()
            )

    def clear(self) -> None:
        """Drops everything; nothing is in progress any more, or the group has ended."""
        with self._lock:
            self._exchanges, self._unreaped, self._early_sizes = {}, {}, {}
            self._held_exchanges.clear()
            self.pool.clear()

    def _post(self, exchange: GroupExchange) -> GroupBroken | None:
        """Posts, with the lock held, the transfers that are known, and those held back until now."""
        if not exchange.group.gathers:
            return self._post_known(exchange)
        failed: GroupBroken | None = None
        while failed is None and self._held_exchanges and self._held_exchanges[0].is_ready:
            failed = self._post_known(self._held_exchanges.popleft())
        return failed

    def _post_known(self, exchange: GroupExchange) -> GroupBroken | None:
        if exchange.group.is_broken:
            return None
        known = {
            s: size
            for s, size in sorted(exchange.sizes.items())
            if size is not None and s not in exchange.under_way
        }
        device = exchange.group.device
        transfers = [
            Transfer(source, self.pool.take(size.length, device), False) for source, size in known.items()
        ]
        if not exchange.has_sent:
            transfers += [Transfer(target, exchange.sends[target], True) for target in sorted(exchange.sends)]
        exchange.has_sent = True
        exchange.under_way |= known.keys()
        transfers.sort(key=lambda transfer: transfer.peer)
        try:
            posted = exchange.group.post(exchange.key, transfers) if transfers else []
        except GroupBroken as error:
            return error
        for pending in posted:
            if any(not transfer.sends for transfer in pending.transfers):
                self._tasks.put((exchange, pending, exchange))
            else:
                self._unreaped.setdefault(exchange.key[2], []).append((exchange, pending))
        return None

    def attend(self, handle: ExchangeHandle, timeout: float) -> bool:
        """Waits for an exchange, one transfer after the other; returns False after `timeout` seconds.

        The wait for a single transfer ends only at its own limit, or when its group is ended.
        """
        own_thread, limit = threading.get_ident(), time.monotonic() + timeout
        # None wakes the loop below when another thread finishes the exchange.
        handle.call_when_done(lambda: None if threading.get_ident() == own_thread else self._tasks.put(None))
        while not handle.done:
            try:
                left = max(0.0, limit - time.monotonic())
                task = self._tasks.get(timeout=None if left == math.inf else left)
            except queue.Empty:
                break
            if task is not None:
                self._wait(*task)
        return handle.done

    def _wait(self, exchange: GroupExchange, pending: Pending, timed_exchange: GroupExchange) -> None:
        # A send to a lost peer would wait for its timeout, and then end the group.
        in_vain = all(t.sends and self._customer.reads_nothing(t.peer) for t in pending.transfers)
        if exchange.group.is_broken or in_vain:
            return
        limit = timed_exchange.limit
        try:
            exchange.group.wait(pending.work, max(Timeouts.least_transfer, limit - time.monotonic()))
        except GroupBroken as error:
            took_too_long = time.monotonic() >= limit  # after a timeout no backend's group is usable
            peers = set() if took_too_long else {transfer.peer for transfer in pending.transfers}
            self._customer.fell_through(exchange.group, peers, str(error))
            return
        for transfer in pending.transfers:
            if transfer.sends:
                continue  # sent is not received: the group may still fail
            size = exchange.sizes[transfer.peer]
            assert size is not None, "it was known when the transfer was posted"
            with self._lock:
                exchange.under_way.discard(transfer.peer)
                del exchange.sizes[transfer.peer]
            self._customer.brought(exchange.group, transfer, exchange.key, size.layout)

    def _report(self, exchange: GroupExchange, broken: GroupBroken | None) -> None:
        if broken is not None:
            self._customer.fell_through(exchange.group, set(), str(broken))
