"""Which node waits for which on a machine, and which hangs, from the nodes' heartbeats."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decentnode.communication.launcher_link.heartbeats import (
    MOST_AWAITED,
    NO_LAST_ROUND,
    UNDECIDED,
    Activity,
    Heartbeat,
    HeartbeatBoard,
    HeartbeatColumns,
)
from decentnode.communication.launcher_link.reports import Failed, Report, Restarted, Stuck, Waiting
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.membership import MembershipTable

CHECK_INTERVAL = 0.5
QUIET_INTERVAL = 4.0
"""Seconds without progress of any node, after which the pause between checks grows."""
GROWTH, LONGEST_INTERVAL = 4.0, 60.0
"""Factor of that growth, and the longest pause in seconds."""
REPORT_INTERVAL = 1.0
NEVER = float("inf")
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

Behind = dict[int, list[int]]
"""By round the nodes that have not done what one that waits in it needs."""


@dataclass
class _Watched:
    """The record of one host process."""

    ranks: Sequence[int]
    heartbeats: HeartbeatColumns
    marks: int = -1
    silent: float = 0.0
    """Seconds without a mark, not counting waits for another node."""
    longest: float = 0.0
    """The longest silence so far, in seconds."""
    waits: bool = False
    """All its nodes wait, and another node is behind one of them."""
    stuck: bool = False
    is_reported: bool = False
    """Whether it was reported as stuck since its last mark."""
    stopped: bool = False
    first_rounds: NDArray[np.int64] = field(init=False)
    """The first round that each node was seen in; NO_LAST_ROUND: none yet."""
    began: NDArray[np.float64] = field(init=False)
    """When that was."""
    index: dict[int, int] = field(init=False)
    """By rank the index of a node in these arrays."""

    def __post_init__(self) -> None:
        self.first_rounds = np.full(len(self.ranks), NO_LAST_ROUND)
        self.began = np.zeros(len(self.ranks))
        self.index = {rank: index for index, rank in enumerate(self.ranks)}


class Watchdog:
    """Checks a machine's nodes twice a second while some make progress.

    Time is counted per check, and a late check counts for little: no node counts as stuck because the
    launcher itself was suspended.
    """

    def __init__(
        self, heartbeats: HeartbeatBoard, membership: MembershipTable, timeouts: Timeouts,
        saved_bytes: int = 0, are_scripts: bool = False,
    ) -> None:  # fmt: skip
        """`saved_bytes`: at most so many are in the checkpoints of all nodes here.

        `are_scripts`: whether processes have work of their own after their last round, without a limit.
        """
        self._heartbeats = heartbeats
        self._membership = membership
        self._beats = membership.heartbeats
        self._watched = {
            position: _Watched(ranks, heartbeats.part(ranks)) for position, ranks in membership.here.items()
        }
        self._local = {rank: position for position, ranks in membership.here.items() for rank in ranks}
        self._timeouts = timeouts
        self._saved_bytes = saved_bytes
        self._are_scripts = are_scripts
        self.next_check = 0.0
        """Time of the next check, on the clock of `time.monotonic`."""
        self._last_check: float | None = None
        self._pause = CHECK_INTERVAL
        self._quiet = 0.0
        """Seconds without progress of any local node."""
        self._suspended = 0.0
        """Seconds in which the launcher was suspended."""
        self._last_reported = 0.0
        self._active: set[int] = set()
        self._stuck: set[int] = set()
        """Positions of processes that count as stuck since the last check."""
        self._idle_since: dict[int, float] = {}
        """By position since when a process has no active node and has not exited, without suspended time."""

    def register(self, dispatcher: Dispatcher[Report]) -> None:
        """Registers for processes that are started again."""
        dispatcher.register(Restarted, lambda report: self.restart(report.process))

    def check(self, now: float) -> list[Report]:
        """Returns new reports; does nothing before `next_check`."""
        if now < self.next_check:
            return []
        before = now - CHECK_INTERVAL if self._last_check is None else self._last_check
        # Bounded: time in which the launcher was suspended is no silence of the nodes.
        elapsed = min(now - before, self._pause + Timeouts.late_check)
        self._suspended += now - before - elapsed
        self._last_check = now
        self._active = set(self._membership.active)
        # All first: whether a process is blocked depends on the progress of others.
        moved = [self._has_moved(watched, before, now) for watched in self._watched.values()]
        self._quiet = 0.0 if any(moved) else self._quiet + elapsed
        for (position, watched), has_moved in zip(self._watched.items(), moved, strict=True):
            if not has_moved:
                self._observe(position, watched, elapsed)
        self._stuck = {position for position, watched in self._watched.items() if watched.stuck}
        self._pause = self._next_pause()
        self.next_check = now + self._pause
        reports: list[Report] = [*self._newly_stuck()]
        if now - self._last_reported >= REPORT_INTERVAL:
            self._last_reported = now
            reports += self._waits(now)
        return reports

    def check_soon(self) -> None:
        """Shortens the pause after a report, because nodes may have made progress."""
        if self._pause > CHECK_INTERVAL:
            self._pause = CHECK_INTERVAL
            self.next_check = min(self.next_check, time.monotonic() + CHECK_INTERVAL)

    def _next_pause(self) -> float:
        """Returns a longer pause while all wait, but at most until the next process would count as stuck."""
        if self._quiet < QUIET_INTERVAL:
            return CHECK_INTERVAL
        # Until a silent process counts as stuck, and until it is killed.
        left = [
            due - watched.silent
            for watched in self._watched.values()
            if not self._active.isdisjoint(watched.ranks)
            for limit in [self._limit(watched)]
            for due in (limit, Timeouts.hung_process(limit))
            if due > watched.silent
        ]
        # The launcher sleeps while nothing happens; any report wakes it earlier (`check_soon`).
        return max(CHECK_INTERVAL, min([GROWTH * self._pause, LONGEST_INTERVAL, *left]))

    def hung(self, now: float) -> dict[int, list[Failed]]:
        """Returns the reports about the active nodes of processes to be killed, by position of the process.

        It has made no progress for too long, or has outlived its nodes.
        """
        active, limits = self._membership.active, self._timeouts
        exits = self._exits(now).items()
        hung = {
            p for p, passed in exits
            if limits.process_exit <= passed < limits.process_lost and not self._are_scripts
        }  # fmt: skip
        stuck = [(position, self._watched[position]) for position in self._stuck]
        hung |= {p for p, watched in stuck if watched.silent >= Timeouts.hung_process(self._limit(watched))}
        return {
            position: [
                Failed(rank, f"hung ({self.doing(rank, now)}) and was killed")
                for rank in sorted(active.intersection(self._watched[position].ranks))
            ]
            for position in sorted(hung)
        }

    def exit_pause(self, now: float) -> float:
        """Returns seconds until the next process without active nodes is overdue, or no longer waited for.

        Its last reports may still be on their way, or the fork server may restart it. NEVER: all such
        processes have exited, or have outlived a kill.
        """
        if self._are_scripts:
            return LONGEST_INTERVAL if self._exits(now) else NEVER
        limits = self._timeouts.process_exit, self._timeouts.process_lost
        left = [limit - passed for passed in self._exits(now).values() for limit in limits]
        return min((seconds for seconds in left if seconds > 0.0), default=NEVER)

    def _exits(self, now: float) -> dict[int, float]:
        """Returns for how many seconds each process without active nodes has been seen, by position."""
        now -= self._suspended
        self._idle_since = {p: self._idle_since.get(p, now) for p in sorted(self._membership.idle)}
        return {position: now - since for position, since in self._idle_since.items()}

    def restart(self, position: int) -> None:
        """Forgets the record of a restarted process: the silence of the old one does not count."""
        if position in self._watched:
            watched = self._watched[position]
            self._watched[position] = _Watched(watched.ranks, watched.heartbeats)
            self._stuck.discard(position)

    def is_stuck(self, rank: int) -> bool:
        """Whether this node's process has made no progress for too long."""
        return rank in self._local and self._watched[self._local[rank]].stuck

    def doing(self, rank: int, now: float) -> str:
        """Returns what a node does, and for how long: `training for 12 s`; empty if unknown."""
        if rank not in self._beats:
            return ""
        # The node may have begun it after `now`.
        return f"{self.activity_of(rank)} for {max(0.0, now - self._beats[rank].read().since):.0f} s"

    def activity_of(self, rank: int) -> str:
        """Returns what a local node does, as text."""
        stopped = self._watched[self._local[rank]].stopped
        return "suspended" if stopped else DOING[self._beats[rank].read().activity]

    def waits_for(self, rank: int, behind: Behind | None = None) -> list[int]:
        """Returns the peers that a local node waits for, those first that are behind it; empty without any.

        If it does not say for whom, as in a collective operation: all that are behind. Of a wait that has
        just begun nobody knows, as a node tells only of one that lasts. `behind` has the answers of one pass
        over many nodes: all that wait in one round wait for the same ones.
        """
        seen = self._beats[rank].read()
        if seen.activity is not Activity.RECEIVE:
            return []
        if seen.awaited:
            late = [peer for peer in seen.awaited if self._is_behind(peer, seen.round)]
            return [*late, *(peer for peer in seen.awaited if peer not in late)]
        if time.monotonic() - seen.since < CHECK_INTERVAL:
            return []
        behind = {} if behind is None else behind
        if seen.round not in behind:
            behind[seen.round] = [p for p in sorted(self._active) if self._is_behind(p, seen.round)]
        return behind[seen.round]

    def _has_moved(self, watched: _Watched, before: float, now: float) -> bool:
        """Whether one of its nodes has made a mark since the check `before`; resets its silence."""
        marks = watched.heartbeats.marks
        if marks == watched.marks:
            return False
        rounds, activities, since = watched.heartbeats.read()
        are_first = (activities != Activity.START) & (rounds < watched.first_rounds)
        watched.first_rounds[are_first], watched.began[are_first] = rounds[are_first], now
        if not watched.waits:
            # Of several marks since the last check only the last time is known, so the silence is averaged.
            last = max(0.0, float(since.max()) - before)
            watched.longest = max(watched.longest, watched.silent + last / (marks - watched.marks))
        watched.marks, watched.silent = marks, 0.0
        watched.waits = watched.stuck = watched.is_reported = watched.stopped = False
        return True

    def _sightings(self, watched: _Watched) -> list[Heartbeat]:
        """Returns the heartbeats of its active nodes."""
        return [self._beats[rank].read() for rank in watched.ranks if rank in self._active]

    def _observe(self, position: int, watched: _Watched, elapsed: float) -> None:
        """Judges a process without a mark since the last check."""
        if watched.waits:
            # The time it waited for another node does not count.
            elapsed = min(elapsed, CHECK_INTERVAL)
        watched.waits = watched.stuck = False
        silent = watched.silent + elapsed
        if silent >= Timeouts.notice and not self._active.isdisjoint(watched.ranks):
            # Asked only now, because it reads a file of the kernel.
            watched.stopped = thread_state(self._membership.pids.get(position)) in ("T", "t")
            # A suspended process is not blocked by another node, even if its heartbeat shows a wait.
            watched.waits = not watched.stopped and self._is_blocked(watched)
            if watched.waits:
                return
            watched.stuck = silent >= self._limit(watched)
        watched.silent = silent

    def _is_blocked(self, watched: _Watched) -> bool:
        """Whether all its nodes wait, and another node is behind one of them."""
        if any(seen.activity is not Activity.RECEIVE for seen in self._sightings(watched)):
            return False
        behind: Behind = {}
        # In a circle of waiting nodes nobody is behind: that is no excuse for a silence without end.
        return any(
            self._is_behind(peer, self._beats[rank].read().round)
            for rank in self._active.intersection(watched.ranks)
            for peer in self.waits_for(rank, behind)[:1]
        )

    def _limit(self, watched: _Watched) -> float:
        """Returns the seconds of silence after which a process counts as stuck."""
        activities = {seen.activity for seen in self._sightings(watched)}
        if Activity.BEGIN in activities and self._heartbeats.last_round == UNDECIDED:
            return NEVER  # the nodes bound this wait themselves
        if self._are_scripts and activities == {Activity.END}:
            return NEVER
        return self._timeouts.stuck_process(
            watched.longest, Activity.START in activities, Activity.EVALUATE in activities,
            saved_bytes=self._saved_bytes * (Activity.CHECKPOINT in activities),
        )  # fmt: skip

    def _newly_stuck(self) -> Iterable[Stuck]:
        for watched in map(self._watched.__getitem__, sorted(self._stuck)):
            if not watched.is_reported:
                watched.is_reported = True
                for rank in sorted(self._active.intersection(watched.ranks)):
                    seen = self._beats[rank].read()
                    yield Stuck(rank, max(seen.round, 0), self.activity_of(rank), watched.silent)

    def _waits(self, now: float) -> Iterable[Waiting]:
        """Returns all waits, if one of them is unusually long: a shorter one may show its cause."""
        first, *others = self._watched.values()
        is_alone = not others and len(self._local) == len(self._membership.members) > 1
        if is_alone and first.silent < Timeouts.notice:
            # All nodes of the run take turns in one process.
            return
        seen = {rank: self._beats[rank].read() for rank in sorted(self._active & self._local.keys())}
        waiting = {
            rank: beat
            for rank, beat in seen.items()
            if beat.activity is Activity.RECEIVE and not self._watched[self._local[rank]].stopped
        }
        # Short waits are part of every round; only unusual ones are reported.
        if not any(self._is_unusual(rank, beat, now) for rank, beat in waiting.items()):
            return
        behind: Behind = {}
        for rank, beat in waiting.items():
            if now - beat.since > Timeouts.notice / 2:
                peers = self.waits_for(rank, behind)
                if peers and self._has_a_turn(peers[0]):
                    continue
                why = self.doing(peers[0], now) if peers else ""
                lasts = self._pause + Timeouts.reported_wait
                yield Waiting(rank, beat.round, peers[:MOST_AWAITED], round(now - beat.since, 1), why, lasts)

    def _has_a_turn(self, rank: int) -> bool:
        """Whether a node shares a process that makes progress: it waits for its turn, and is no straggler."""
        watched = self._watched.get(self._local.get(rank, -1))
        return watched is not None and len(watched.ranks) > 1 and watched.silent < Timeouts.notice

    def _is_unusual(self, rank: int, heartbeat: Heartbeat, now: float) -> bool:
        watched = self._watched[self._local[rank]]
        index = watched.index[rank]
        first, began = int(watched.first_rounds[index]), float(watched.began[index])
        if first == NO_LAST_ROUND:
            first, began = heartbeat.round, now
        usual = (heartbeat.since - began) / max(1, heartbeat.round - first + 1)
        return now - heartbeat.since > Timeouts.unusual_wait(usual)

    def _is_behind(self, peer: int, round: int) -> bool:
        """Whether a peer has not done yet what a node that waits for it in this round needs."""
        if peer not in self._local:
            # Of another machine's node only the last report is known.
            return self._membership.members[peer].round < round
        seen = self._beats[peer].read()
        is_there = seen.activity is Activity.RECEIVE or seen.activity > Activity.MIX
        return seen.round < round or (seen.round == round and not is_there)


def thread_state(pid: int | None) -> str:
    """Returns the kernel's state of a process's main thread (R, S, D, T, ...); empty if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # The name before it may contain spaces and parentheses.
        return stat.rsplit(b")", 1)[1].split(maxsplit=1)[0].decode()
    except (OSError, IndexError):
        return ""
