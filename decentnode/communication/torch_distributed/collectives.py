"""Averages over all ranks by the all-reduce of a process group.

Threads: the node's thread starts them and waits; a thread of torch computes them meanwhile.
"""

import math
import time
from typing import Any

import torch
from torch import Tensor

from decentnode.communication.base import Collectives, MeanOfAll
from decentnode.communication.peers.peers import Peers
from decentnode.communication.torch_distributed.group_membership import GroupMembership
from decentnode.communication.torch_distributed.process_group import Group, GroupBroken
from decentnode.core.byte_counters import ByteCounters
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerError, PeerLeft, RunFailed


class GroupMean(MeanOfAll):
    """One all-reduce in flight."""

    def __init__(self, values: Tensor, group: Group | None, peers: Peers) -> None:
        """`values`: this rank's share of the mean, x_i / n, which the mean replaces."""
        self.done = False
        self.error = None
        self._group = group
        self._peers = peers
        self._work: Any = None
        """Torch's handle; None: torch has failed."""
        self._failure = "the process group has ended"
        """Why, in that case."""
        self._fails_at = math.inf
        """When the wait ends with an error, on the clock of `time.monotonic`; infinite while all is well."""
        if group is not None and not group.is_broken:
            try:
                self._work = group.reduce_all(values)
            except GroupBroken as error:
                self._failure = str(error)

    def finish_within(self, seconds: float) -> bool:
        limit = time.monotonic() + seconds
        while not self.done:
            left = limit - time.monotonic()
            if left <= 0:
                return False
            self._wait(min(left, Timeouts.collective_check))
            if not self.done:
                self._look_for_losses()
        return True

    def _wait(self, seconds: float) -> None:
        """Waits for torch; where it has failed, for the reason, which may still arrive."""
        if self._group is None or self._work is None:
            time.sleep(seconds)
            return
        try:
            self._group.wait(self._work, seconds)
            self.done = True
        except GroupBroken as error:
            if self._work.is_completed():  # otherwise it only takes longer
                self._work, self._failure = None, str(error)

    def _look_for_losses(self) -> None:
        """Ends the wait with an error: at once if a rank is lost, otherwise a while after the first sign.

        Until then what a rank has sent before it left may be on the way between the others.
        """
        absence = next(filter(None, map(self._why_absent, tuple(self._peers))), None)
        is_broken = self._work is None or self._group is None or self._group.is_broken
        if absence is None and not is_broken:
            return
        self._fails_at = min(self._fails_at, time.monotonic() + Timeouts.collective_rest)
        is_lost = absence is not None and not isinstance(absence, PeerLeft)
        if is_lost or time.monotonic() >= self._fails_at:
            self.error = absence or RunFailed(f"the all-reduce failed: {self._failure}")
            self.done = True

    def _why_absent(self, rank: int) -> PeerError | None:
        """Why a rank takes part in no later collective; None: it does."""
        error = self._peers.error(rank)
        if error is None and self._peers.has_left(rank):
            peer = self._peers[rank]
            error = PeerLeft(rank, peer.last_exchange[0], peer.failed)
        return error


class GroupCollectives(Collectives):
    """Collectives of a group that joins all ranks and has an all-reduce, as gloo's."""

    def __init__(
        self, group_membership: GroupMembership, peers: Peers, size: int, counters: ByteCounters
    ) -> None:
        """`size`: the number of ranks of the run."""
        self._group_membership = group_membership
        self._peers = peers
        self._size = size
        self._counters = counters

    @property
    def are_open(self) -> bool:
        group = self._group_membership.group
        return group is not None and group.reduces and len(group.members) == self._size

    def mean(self, values: Tensor, out: Tensor) -> MeanOfAll:
        # Divided first: a sum of finite models may not be finite.
        torch.mul(values, 1 / self._size, out=out)
        # In a ring all-reduce each rank sends and receives 2 (n - 1) / n vectors.
        traffic = 2 * (self._size - 1) * values.nbytes // self._size
        self._counters.sent_payload += traffic
        self._counters.received_payload += traffic
        return GroupMean(out, self._group_membership.group, self._peers)
