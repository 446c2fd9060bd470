"""Which round a node begins next: the following one, a later one where its peers are, or none any more."""

from decentnode.communication.base import Endpoint
from decentnode.communication.launcher_link.heartbeats import (
    UNDECIDED,
    Activity,
    HeartbeatBoard,
    HeartbeatSlot,
)
from decentnode.core.clock import Clock

LOOK_AGAIN = 0.002
MOST_SECONDS_UNDECIDED = 20.0
"""How long a node waits to hear which round is the last; a launcher that is gone decides nothing."""


class RoundScheduler:
    """One node's way through the rounds.

    A node announces a round before it begins it. So whoever asks the run to stop can first let all nodes
    pause, then see the highest round that any has announced, and name that as the last one: every neighbor
    gets there, and nobody needs anything beyond it.
    """

    def __init__(self, rounds: int, endpoint: Endpoint, beacons: HeartbeatBoard, clock: Clock) -> None:
        self.rounds = rounds
        self.beacon: HeartbeatSlot = beacons.of(endpoint.rank)
        self._endpoint = endpoint
        self._first = 0
        self._beacons = beacons
        self._clock = clock

    @property
    def is_cut_short(self) -> bool:
        """Whether the run was stopped before its last round."""
        return self._beacons.last_round < self.rounds - 1

    def start_at(self, round: int) -> None:
        """Begins no round before this one."""
        self._first = round

    async def after(self, round: int) -> int | None:
        """The round to begin after this one; None when there is none."""
        ahead = self._endpoint.ahead
        upcoming = max(round + 1, self._first, ahead if ahead < self.rounds else 0)
        if upcoming >= self.rounds:
            return None
        self.beacon.mark(upcoming, Activity.BEGIN)
        limit = self._clock.now() + MOST_SECONDS_UNDECIDED
        while (last := self._beacons.last_round) == UNDECIDED:
            if self._clock.now() > limit:
                return None
            await self._clock.sleep(LOOK_AGAIN)
        if upcoming > last:
            return None
        if upcoming > max(round + 1, self._first):
            self._endpoint.skip_to(upcoming)
        return upcoming
