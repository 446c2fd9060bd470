"""Which round a node begins next: the following one, or none when the run is to stop."""

from decentnode.beacons import UNDECIDED, Activity, Beacon, Beacons
from decentnode.clock import Clock

LOOK_AGAIN = 0.002
MOST_SECONDS_UNDECIDED = 20.0
"""How long a node waits to hear which round is the last; a launcher that is gone decides nothing."""


class Course:
    """One node's way through the rounds.

    A node announces a round before it begins it. So whoever asks the run to stop can first let all nodes
    pause, then see the highest round that any has announced, and name that as the last one: every neighbor
    gets there, and nobody needs anything beyond it.
    """

    def __init__(self, rounds: int, rank: int, beacons: Beacons, clock: Clock) -> None:
        self.rounds = rounds
        self.beacon: Beacon = beacons.of(rank)
        self._beacons = beacons
        self._clock = clock

    @property
    def is_cut_short(self) -> bool:
        """Whether the run was stopped before its last round."""
        return self._beacons.last_round < self.rounds - 1

    async def after(self, round: int) -> int | None:
        """The round to begin after this one; None when there is none."""
        upcoming = round + 1
        if upcoming >= self.rounds:
            return None
        self.beacon.mark(upcoming, Activity.BEGIN)
        limit = self._clock.now() + MOST_SECONDS_UNDECIDED
        while (last := self._beacons.last_round) == UNDECIDED:
            if self._clock.now() > limit:
                return None
            await self._clock.sleep(LOOK_AGAIN)
        return upcoming if upcoming <= last else None
