"""Who waits for whom on a machine, and who hangs there: seen from outside, in the nodes' heartbeats."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from decentnode.communication.launcher_link.heartbeats import UNDECIDED, Activity, Heartbeat, HeartbeatBoard
from decentnode.communication.launcher_link.reports import Report, Stuck, Waiting
from decentnode.core.timeouts import Timeouts
from decentnode.graph.base import Graph
from decentnode.launcher.monitoring.membership import MembershipTable

LOOK_INTERVAL = 0.5
QUIET_INTERVAL = 4.0
"""Seconds in which no node has got on, after which each look comes later than the one before."""
GROWTH, LONGEST_INTERVAL = 4.0, 60.0
"""How many times as late, and at the latest."""
REPORT_INTERVAL = 1.0
MOST_PEERS = 8
STAT_BYTES = 4096
NEVER = float("inf")
UNKNOWN_ROUND = 1 << 62
"""Later than any."""
DOING = {
    Activity.START: "starting",
    Activity.BEGIN: "between rounds",
    Activity.TRAIN: "training",
    Activity.SEND: "sending",
    Activity.RECEIVE: "waiting",
    Activity.MIX: "mixing",
    Activity.EVALUATE: "evaluating",
    Activity.CHECKPOINT: "saving",
    Activity.END: "ended",
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
    """Seconds without a mark, in which it did not wait for another node."""
    longest: float = 0.0
    """The longest silence so far."""
    condition: Condition = Condition.MOVING
    told: bool = False
    rounds_from: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By rank the earliest round that it was seen at work in, and when that was first."""
    stopped: bool = False


class Watchdog:
    """Looks at a machine's nodes twice a second while some get on, and knows their neighbors.

    Time is counted in looks: one that comes late counts for little, so that nobody is accused because the
    launcher itself stood still.
    """

    def __init__(
        self, graph: Graph, heartbeats: HeartbeatBoard, membership: MembershipTable,
        processes: Mapping[int, Sequence[int]], timeouts: Timeouts,
        pid_of: Callable[[int], int | None], overlap: bool = False,
    ) -> None:  # fmt: skip
        """`processes`: the ranks of each host process here, by its position; `pid_of` gives its number;
        `overlap`: who trains has sent."""
        self._graph = graph
        self._heartbeats = heartbeats
        self._membership = membership
        self._watched = {position: _Watched(ranks) for position, ranks in processes.items()}
        self._local = {rank: position for position, ranks in processes.items() for rank in ranks}
        self._timeouts = timeouts
        self._pid_of = pid_of
        self._after_sending = {Activity.RECEIVE, *([Activity.TRAIN] if overlap else [])}
        self.next_look = 0.0
        """When to look, as `time.monotonic` counts."""
        self._last_look: float | None = None
        self._looked_before = 0.0
        self._pause = LOOK_INTERVAL
        self._quiet = 0.0
        """Seconds in which no node here has got on."""
        self._last_told = 0.0
        self._peers: dict[int, list[int]] = {}
        """Whom nodes wait for, as long as no node here gets on."""
        self._active: set[int] = set()
        self._given_up: dict[int, set[int]] = {}

    def look(self, now: float) -> list[Report]:
        """What is new; called often, it looks when it is time for that."""
        if now < self.next_look:
            return []
        self._looked_before = now - LOOK_INTERVAL if self._last_look is None else self._last_look
        elapsed = min(now - self._looked_before, self._pause + Timeouts.late_look)
        self._last_look = now
        self._learn_who_counts()
        moved = [self._has_moved(watched, now) for watched in self._watched.values()]
        self._quiet = 0.0 if any(moved) else self._quiet + elapsed
        if any(moved):
            self._peers.clear()
        for (position, watched), has_moved in zip(self._watched.items(), moved, strict=True):
            if not has_moved:
                self._observe(position, watched, elapsed)
        self._pause = self._next_pause()
        self.next_look = now + self._pause
        found: list[Report] = [*self._newly_stuck()]
        if now - self._last_told >= REPORT_INTERVAL:
            self._last_told = now
            found += self._waits(now)
        return found

    def look_soon(self) -> None:
        """Some node has said something, so nodes may have got on."""
        self._peers.clear()
        if self._pause > LOOK_INTERVAL and self._last_look is not None:
            self._pause = LOOK_INTERVAL
            self.next_look = min(self.next_look, time.monotonic() + LOOK_INTERVAL)

    def _learn_who_counts(self) -> None:
        active = set(self._membership.active)
        given_up: dict[int, set[int]] = {}
        for edge in self._membership.missing_edges:
            given_up.setdefault(edge.rank, set()).add(edge.peer)
        if (active, given_up) != (self._active, self._given_up):
            self._active, self._given_up = active, given_up
            self._peers.clear()

    def _next_pause(self) -> float:
        """Longer while all wait, but no longer than until the next process would count as stuck."""
        if self._quiet < QUIET_INTERVAL:
            return LOOK_INTERVAL
        left = [
            self._left(watched)
            for watched in self._watched.values()
            if not self._active.isdisjoint(watched.ranks)
        ]
        return max(LOOK_INTERVAL, min([GROWTH * self._pause, LONGEST_INTERVAL, *left]))

    def _left(self, watched: _Watched) -> float:
        """Seconds until a process would count as stuck, or would be killed, if it stays silent."""
        limit = self._limit(watched)
        return min(
            (due - watched.silent for due in (limit, Timeouts.hung_process(limit)) if due > watched.silent),
            default=NEVER,
        )

    def hung(self) -> list[int]:
        """Positions of processes that are to be killed."""
        return [
            position
            for position, watched in self._watched.items()
            if watched.condition is Condition.STUCK
            and watched.silent >= Timeouts.hung_process(self._limit(watched))
        ]

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

    def sighting(self, rank: int) -> Heartbeat | None:
        """Where a node is; None where it belongs to another machine."""
        return self._heartbeats.of(rank).read() if rank in self._local else None

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
        return "is stopped" if stopped else DOING[self._heartbeats.of(rank).read().activity]

    def waits_for(self, rank: int) -> list[int]:
        """Whom a local node waits for at this moment; nobody, where it does something else."""
        seen = self._heartbeats.of(rank).read()
        return self.behind(rank, seen.round) if seen.activity is Activity.RECEIVE else []

    def _has_moved(self, watched: _Watched, now: float) -> bool:
        """Whether one of its nodes has made a mark since the last look; if so its silence begins anew."""
        marks = sum(self._heartbeats.of(rank).marks for rank in watched.ranks)
        if marks == watched.marks:
            return False
        sightings = {rank: self._heartbeats.of(rank).read() for rank in watched.ranks}
        for rank, sighting in sightings.items():
            first, _ = watched.rounds_from.get(rank, (UNKNOWN_ROUND, 0.0))
            if sighting.activity is not Activity.START and sighting.round < first:
                watched.rounds_from[rank] = sighting.round, now
        if watched.condition is not Condition.WAITING:
            # How long it was silent after the last look is known of the last of its marks since then alone.
            since = max(sighting.since for sighting in sightings.values()) - self._looked_before
            watched.longest = max(watched.longest, watched.silent + max(0.0, since) / (marks - watched.marks))
        watched.marks, watched.silent, watched.told = marks, 0.0, False
        watched.condition, watched.stopped = Condition.MOVING, False
        return True

    def _sightings(self, watched: _Watched) -> list[Heartbeat]:
        """Where its nodes are that may still report."""
        return [self._heartbeats.of(rank).read() for rank in watched.ranks if rank in self._active]

    def _observe(self, position: int, watched: _Watched, elapsed: float) -> None:
        """Judges a process that has made no mark since the last look."""
        if watched.condition is Condition.WAITING:
            # What passed while it waited for another node does not count.
            elapsed = min(elapsed, LOOK_INTERVAL)
        watched.condition = Condition.MOVING
        silent = watched.silent + elapsed
        if silent >= Timeouts.notice and not self._active.isdisjoint(watched.ranks):
            watched.stopped = thread_state(self._pid_of(position)) in ("T", "t")
            if not watched.stopped and self._is_blocked(watched):
                watched.condition = Condition.WAITING
                return
            if silent >= self._limit(watched):
                watched.condition = Condition.STUCK
        watched.silent = silent

    def _is_blocked(self, watched: _Watched) -> bool:
        """Whether all its nodes wait, and another node is behind one of them."""
        if any(seen.activity is not Activity.RECEIVE for seen in self._sightings(watched)):
            return False
        return any(self._behind_now(rank) for rank in self._active.intersection(watched.ranks))

    def _limit(self, watched: _Watched) -> float:
        """Seconds of silence after which a process counts as stuck."""
        activities = {seen.activity for seen in self._sightings(watched)}
        if Activity.BEGIN in activities and self._heartbeats.last_round == UNDECIDED:
            return NEVER  # bounded by the nodes themselves
        return self._timeouts.stuck_process(
            watched.longest, Activity.START in activities, Activity.EVALUATE in activities
        )

    def _newly_stuck(self) -> Iterable[Stuck]:
        for watched in self._watched.values():
            if watched.condition is Condition.STUCK and not watched.told:
                watched.told = True
                for rank in sorted(self._active.intersection(watched.ranks)):
                    seen = self._heartbeats.of(rank).read()
                    yield Stuck(rank, max(seen.round, 0), self.what(rank), watched.silent)

    def _waits(self, now: float) -> Iterable[Waiting]:
        """All that wait, once one of them waits for unusually long: else its cause would not be seen."""
        waiting = [rank for rank in sorted(self._active & self._local.keys()) if self._waits_since(rank)]
        if not any(self._is_unusual(rank, now) for rank in waiting):
            return
        for rank in waiting:
            round, since = self._heartbeats.of(rank).read().round, self._waits_since(rank)
            if now - since > Timeouts.notice / 2:
                peers = self._behind_now(rank)
                why = self.doing(peers[0], now) if peers else ""
                lasts = self._pause + Timeouts.reported_wait
                yield Waiting(rank, round, peers[:MOST_PEERS], _to_tenths(now - since), why, lasts)

    def _behind_now(self, rank: int) -> list[int]:
        """Whom a node that waits waits for, found once for as long as no node here gets on."""
        if rank not in self._peers:
            self._peers[rank] = self.behind(rank, self._heartbeats.of(rank).read().round)
        return self._peers[rank]

    def _waits_since(self, rank: int) -> float:
        """When a local node has begun to wait; 0 for one that does not."""
        seen = self._heartbeats.of(rank).read()
        stopped = self._watched[self._local[rank]].stopped
        return seen.since if seen.activity is Activity.RECEIVE and not stopped else 0.0

    def _is_unusual(self, rank: int, now: float) -> bool:
        seen = self._heartbeats.of(rank).read()
        first, began = self._watched[self._local[rank]].rounds_from.get(rank, (seen.round, now))
        usual = (seen.since - began) / max(1, seen.round - first + 1)
        return now - seen.since > Timeouts.unusual_wait(usual)

    def _neighbors(self, rank: int, round: int) -> list[int]:
        peers = {*self._graph.sources(rank, round), *self._graph.targets(rank, round)}
        return sorted((peers & self._active) - self._given_up.get(rank, set()))

    def _is_behind(self, peer: int, rank: int, round: int) -> bool | None:
        """Whether a node waits for this peer: true, false for perhaps, None for no."""
        if peer not in self._local:
            done = self._membership.members[peer].round
            return None if done >= round else 0 <= done < round - 1
        seen = self._heartbeats.of(peer).read()
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
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, STAT_BYTES).rsplit(b")", 1)[1].split(maxsplit=1)[0].decode()
    except (OSError, IndexError):
        return ""
    finally:
        os.close(fd)
