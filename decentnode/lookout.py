"""Who waits for whom on a machine, and who hangs there: seen from outside, in the nodes' beacons."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from decentnode import snapshots
from decentnode.beacons import UNDECIDED, Activity, Beacons, Sighting
from decentnode.graph.base import Graph
from decentnode.reports import Report, Stuck, Waiting
from decentnode.roster import Roster
from decentnode.settings import FailureSettings

LOOK_EVERY = 0.5
MOST_BETWEEN_LOOKS = 2.0
"""Whatever passes beyond this between two looks is time in which the launcher itself stood still."""
NOTICE = 2.0
"""Seconds of waiting before which nothing is said; or twice a usual round, where that is longer."""
TELL_EVERY = 1.0
MOST_PEERS = 8
BUSY = 0.1
"""How much of a silent second counts against a process that computes, or waits for a CPU or a disk."""
UNKNOWN_ROUND = 1 << 62
"""Later than any."""
PATIENCE_FACTOR = 5.0
NOBODY_FACTOR = 3.0
"""How many times the patience a node may wait while nobody is behind it."""
DOING = {
    Activity.START: "gets ready",
    Activity.BEGIN: "is about to begin",
    Activity.TRAIN: "trains",
    Activity.SEND: "sends",
    Activity.RECEIVE: "waits",
    Activity.MIX: "mixes",
    Activity.EVALUATE: "is tested",
    Activity.CHECKPOINT: "is saved",
    Activity.END: "has ended",
}


class Condition(Enum):
    """What a host process is up to."""

    MOVING = 0
    WAITING = 1
    STUCK = 2


@dataclass
class _Watched:
    """One host process, as the looks have found it."""

    ranks: Sequence[int]
    marks: int = -1
    silent: float = 0.0
    """Seconds without a mark."""
    idle: float = 0.0
    """The same, with busy seconds counted by a part."""
    longest: float = 0.0
    """The longest silence that was none of waiting."""
    condition: Condition = Condition.MOVING
    told: bool = False
    in_vain: float = 0.0
    """Seconds of waiting while nobody was behind it."""
    rounds_from: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By rank the earliest round that it was seen at work in, and when that was first."""
    waits_here: bool = True
    """While it waits: for nodes of this machine alone."""
    stopped: bool = False


class Lookout:
    """Looks at a machine's nodes twice a second, and knows their neighbors.

    Time is counted in looks: one that comes late counts for little, so that nobody is accused because the
    launcher itself stood still.
    """

    def __init__(
        self, graph: Graph, beacons: Beacons, roster: Roster, processes: Mapping[int, Sequence[int]],
        failures: FailureSettings, pid_of: Callable[[int], int | None], overlap: bool = False,
    ) -> None:  # fmt: skip
        """`processes`: the ranks of each host process here, by its position; `pid_of` gives its number;
        `overlap`: who trains has sent."""
        self._graph = graph
        self._beacons = beacons
        self._roster = roster
        self._watched = {position: _Watched(ranks) for position, ranks in processes.items()}
        self._local = {rank: position for position, ranks in processes.items() for rank in ranks}
        self._failures = failures
        self._pid_of = pid_of
        self._after_sending = {Activity.RECEIVE, *([Activity.TRAIN] if overlap else [])}
        self._last_look: float | None = None
        self._last_told = 0.0
        self._active: set[int] = set()
        self._given_up: dict[int, set[int]] = {}
        self._halted = 0.0
        """Seconds in which nobody here has got on, and somebody was stuck."""

    def look(self, now: float) -> list[Report]:
        """What is new; called often, it looks when it is time for that."""
        if self._last_look is None:
            self._last_look = now - LOOK_EVERY
        elapsed = now - self._last_look
        if elapsed < LOOK_EVERY:
            return []
        self._last_look = now
        self._active = set(self._roster.active)
        self._given_up = {}
        for edge in self._roster.missing_edges:
            self._given_up.setdefault(edge.rank, set()).add(edge.peer)
        for position, watched in self._watched.items():
            self._observe(position, watched, now, min(elapsed, MOST_BETWEEN_LOOKS))
        standstill = self._is_standstill()
        self._halted = self._halted + min(elapsed, MOST_BETWEEN_LOOKS) if standstill else 0.0
        found: list[Report] = [*self._newly_stuck()]
        if now - self._last_told >= TELL_EVERY:
            self._last_told = now
            found += self._waits(now)
        return found

    def hung(self) -> list[int]:
        """Positions of processes to be ended, because nobody here gets on any more unless they do."""
        stuck = [i for i, watched in self._watched.items() if watched.condition is Condition.STUCK]
        waits = any(watched.condition is Condition.WAITING for watched in self._watched.values())
        # Those that wait first have the time to give the others up.
        return stuck if self._halted > (self._failures.deadline / 2 if waits else 0.0) else []

    def begin_anew(self, position: int) -> None:
        """A host process was started again: what was seen of the one before does not count against it."""
        if position in self._watched:
            self._watched[position] = _Watched(self._watched[position].ranks)

    def behind(self, rank: int, round: int) -> list[int]:
        """Whom a node that waits in this round waits for: who surely has not sent, else who may not have."""
        surely: list[int] = []
        perhaps: list[int] = []
        for peer in self._neighbors(rank, round):
            sure = self._is_behind(peer, rank, round)
            if sure is not None:
                (surely if sure else perhaps).append(peer)
        return surely or perhaps

    def sighting(self, rank: int) -> Sighting | None:
        """Where a node is; None where it belongs to another machine."""
        return self._beacons.of(rank).read() if rank in self._local else None

    def is_stuck(self, rank: int) -> bool:
        """Whether this node's process has got on with nothing for too long."""
        return rank in self._local and self._watched[self._local[rank]].condition is Condition.STUCK

    def doing(self, rank: int, now: float) -> str:
        """What a node does, and for how long: `trains for 12 s`; empty where that is not known."""
        seen = self.sighting(rank)
        return f"{self.what(rank)} for {now - seen.since:.0f} s" if seen else ""

    def what(self, rank: int) -> str:
        """What a local node does, in words."""
        stopped = self._watched[self._local[rank]].stopped
        return "is stopped" if stopped else DOING[self._beacons.of(rank).read().activity]

    def waits_for(self, rank: int) -> list[int]:
        """Whom a local node waits for at this moment; nobody, where it does something else."""
        seen = self._beacons.of(rank).read()
        return self.behind(rank, seen.round) if seen.activity is Activity.RECEIVE else []

    def _observe(self, position: int, watched: _Watched, now: float, elapsed: float) -> None:
        seen = {rank: self._beacons.of(rank).read() for rank in watched.ranks}
        for rank, sighting in seen.items():
            first, _ = watched.rounds_from.get(rank, (UNKNOWN_ROUND, 0.0))
            if sighting.activity is not Activity.START and sighting.round < first:
                watched.rounds_from[rank] = sighting.round, now
        marks = sum(sighting.marks for sighting in seen.values())
        if marks != watched.marks:
            if watched.condition is not Condition.WAITING:
                watched.longest = max(watched.longest, watched.idle)
            watched.marks, watched.silent, watched.idle, watched.told = marks, 0.0, 0.0, False
            watched.condition, watched.stopped, watched.in_vain = Condition.MOVING, False, 0.0
            return
        watched.silent += elapsed
        sightings = [sighting for rank, sighting in seen.items() if rank in self._active]
        if watched.silent < NOTICE or not sightings:
            watched.idle += elapsed
            watched.condition = Condition.MOVING
            return
        state = thread_state(self._pid_of(position))
        watched.stopped = state in ("T", "t")
        watched.idle += elapsed * (BUSY if state in ("R", "D") else 1.0)
        watched.condition = self._judge(watched, sightings, elapsed)

    def _judge(self, watched: _Watched, sightings: list[Sighting], elapsed: float) -> Condition:
        patience = self._patience(watched, sightings)
        if watched.stopped or any(seen.activity is not Activity.RECEIVE for seen in sightings):
            return Condition.STUCK if watched.idle > patience else Condition.MOVING
        peers = {
            peer
            for rank in watched.ranks
            if rank in self._active
            for peer in self.behind(rank, self._beacons.of(rank).read().round)
        }
        watched.waits_here = peers <= self._local.keys()
        in_vain = not peers and self._failures.on_loss != "wait"
        watched.in_vain = watched.in_vain + elapsed if in_vain else 0.0
        hopeless = watched.in_vain > NOBODY_FACTOR * patience
        return Condition.STUCK if hopeless else Condition.WAITING

    def _patience(self, watched: _Watched, sightings: list[Sighting]) -> float:
        failures = self._failures
        patience = max(failures.deadline, PATIENCE_FACTOR * watched.longest)
        activities = {seen.activity for seen in sightings}
        if Activity.START in activities:
            patience += failures.start_deadline
        if Activity.EVALUATE in activities:
            patience += snapshots.PATIENCE
        if Activity.BEGIN in activities and self._beacons.last_round == UNDECIDED:
            return float("inf")  # bounded by the nodes themselves
        return patience

    def _is_standstill(self) -> bool:
        """Whether all that are still at work here are stuck, or wait for nodes of this machine alone."""
        found = [w for w in self._watched.values() if not self._active.isdisjoint(w.ranks)]
        return any(w.condition is Condition.STUCK for w in found) and all(
            w.condition is Condition.STUCK or (w.condition is Condition.WAITING and w.waits_here)
            for w in found
        )

    def _newly_stuck(self) -> Iterable[Stuck]:
        for watched in self._watched.values():
            if watched.condition is Condition.STUCK and not watched.told:
                watched.told = True
                for rank in sorted(self._active.intersection(watched.ranks)):
                    seen = self._beacons.of(rank).read()
                    yield Stuck(rank, max(seen.round, 0), self.what(rank), watched.silent)

    def _waits(self, now: float) -> Iterable[Waiting]:
        """All that wait, once one of them waits for unusually long: else its cause would not be seen."""
        waiting = [rank for rank in sorted(self._active & self._local.keys()) if self._waits_since(rank)]
        if not any(self._is_unusual(rank, now) for rank in waiting):
            return
        for rank in waiting:
            round, since = self._beacons.of(rank).read().round, self._waits_since(rank)
            if now - since > NOTICE / 2:
                peers = self.behind(rank, round)
                why = self.doing(peers[0], now) if peers else ""
                yield Waiting(rank, round, peers[:MOST_PEERS], _to_tenths(now - since), why)

    def _waits_since(self, rank: int) -> float:
        """When a local node has begun to wait; 0 for one that does not."""
        seen = self._beacons.of(rank).read()
        stopped = self._watched[self._local[rank]].stopped
        return seen.since if seen.activity is Activity.RECEIVE and not stopped else 0.0

    def _is_unusual(self, rank: int, now: float) -> bool:
        seen = self._beacons.of(rank).read()
        first, began = self._watched[self._local[rank]].rounds_from.get(rank, (seen.round, now))
        usual = (seen.since - began) / max(1, seen.round - first + 1)
        return now - seen.since > max(NOTICE, 2 * usual)

    def _neighbors(self, rank: int, round: int) -> list[int]:
        peers = {*self._graph.sources(rank, round), *self._graph.targets(rank, round)}
        return sorted((peers & self._active) - self._given_up.get(rank, set()))

    def _is_behind(self, peer: int, rank: int, round: int) -> bool | None:
        """Whether a node waits for this peer: true, false for perhaps, None for no."""
        if peer not in self._local:
            done = self._roster.members[peer].round
            return None if done >= round else 0 <= done < round - 1
        seen = self._beacons.of(peer).read()
        if peer in self._graph.sources(rank, round):
            if seen.round > round or (seen.round == round and seen.activity > Activity.MIX):
                return None
            if seen.round == round and seen.activity in self._after_sending:
                return None
            # Who is about to do so has sent, unless the scheme exchanges more than once in a round.
            return not (seen.round == round and seen.activity >= Activity.SEND)
        # It still has to read what was sent to it in the round before.
        unread = seen.round < round - 1 or (seen.round == round - 1 and seen.activity <= Activity.MIX)
        return True if unread else None


def _to_tenths(seconds: float) -> float:
    return round(seconds, 1)


def thread_state(pid: int | None) -> str:
    """The kernel's letter for what a process's main thread does (R, S, D, T, ...); empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return ""
