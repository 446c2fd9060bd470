"""Which round a node starts next: the following one, a later one where its peers are, or none."""

from decentnode.communication.base import Endpoint
from decentnode.communication.launcher_link.heartbeats import (
    UNDECIDED,
    Activity,
    HeartbeatBoard,
    HeartbeatSlot,
)
from decentnode.core.clock import AwakeClock, Clock
from decentnode.core.timeouts import Timeouts

POLL_INTERVAL = 0.002


class RoundScheduler:
    """The sequence of one node's rounds.

    A node announces a round before it starts it. For a graceful stop the launcher first makes all nodes wait.
    It then reads the highest announced round and makes that the last one. Every neighbor reaches it, and no
    node needs a later one.
    """

    def __init__(self, rounds: int, endpoint: Endpoint, heartbeats: HeartbeatBoard, clock: Clock) -> None:
        self.rounds = rounds
        self.heartbeat: HeartbeatSlot = heartbeats.of(endpoint.rank)
        endpoint.heartbeat = self.heartbeat
        self._endpoint = endpoint
        self._first = 0
        self._heartbeats = heartbeats
        self._clock = clock
        self._has_left = False

    @property
    def is_cut_short(self) -> bool:
        """Whether the run stops before its last round, and not because it has reached its target."""
        return self._heartbeats.last_round < self.rounds - 1 and not self._heartbeats.completes

    def is_last(self, round: int) -> bool:
        """Whether a node that ends after this round has finished."""
        ends_here = self._heartbeats.completes and round >= self._heartbeats.last_round
        ends_here |= self._has_left
        return round + 1 == self.rounds or ends_here

    @property
    def first_not_done(self) -> int:
        """The first round that no node here starts any more, because one has done its last; 0: none has."""
        return self._heartbeats.highest_round + 1 if self._heartbeats.any_has_ended else 0

    def start_at(self, round: int) -> None:
        """Starts no round before this one."""
        self._first = round

    def end(self) -> None:
        """Starts no further round; the participant has finished, although others may go on."""
        self._has_left = True

    async def after(self, round: int) -> int | None:
        """The round to start after this one; None if there is none."""
        if self._has_left:
            return None
        ahead = self._endpoint.ahead
        upcoming = max(round + 1, self._first, ahead if ahead < self.rounds else 0)
        if upcoming >= self.rounds:
            return None
        # Announced before `last_round` is read; in the other order the launcher could miss this round.
        self.heartbeat.mark(upcoming, Activity.BEGIN)
        last = self._heartbeats.last_round
        if last == UNDECIDED:
            awake = AwakeClock(POLL_INTERVAL)
            limit = awake.now() + Timeouts.undecided
            await self._clock.wait_outside(
                lambda: self._heartbeats.last_round != UNDECIDED or awake.now() > limit, POLL_INTERVAL
            )
            last = self._heartbeats.last_round
        # Without a launcher no decision comes: the node ends here and is saved.
        if last == UNDECIDED or upcoming > last:
            return None
        if upcoming > max(round + 1, self._first):
            # Peers must know at once: they would wait for payloads of the skipped rounds.
            self._endpoint.skip_to(upcoming)
        return upcoming
