"""What is known of every node of a run from its reports."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import Finished, PeerMissing, Report, Stopped
from decentnode.results.metrics import LOSS, Values


class MemberState(StrEnum):
    """The state of a node as this machine knows it."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """Ended before its last round, on request."""
    LOST = "lost"


@dataclass
class Member:
    """One node as the launcher knows it."""

    state: MemberState = MemberState.STARTING
    round: int = -1
    bytes_sent: int = 0
    loss: float | None = None
    """The last reported training loss."""
    epsilon: float | None = None
    """What its private steps have spent, where that is a claim."""
    not_finite: int | None = None
    """The round since which every test loss was not finite; None if the last one was finite."""
    last_report: float = field(default_factory=time.monotonic)
    silent_since: float | None = None
    """When it was lost only because its machine was silent; None otherwise."""
    error: str = ""
    out_of_memory: bool = False
    finished: Finished | None = None
    restarts: int = 0

    @property
    def is_active(self) -> bool:
        """Whether it may still report."""
        return self.state in (MemberState.STARTING, MemberState.RUNNING)

    def finish(self, report: Finished) -> None:
        """Records the last report, also of a lost node: its machine may only have been silent."""
        self.state, self.finished = MemberState.FINISHED, report
        self.round, self.bytes_sent = report.rounds - 1, report.bytes_sent
        self.note_test(report.metrics, self.round)

    def count_as_running(self) -> None:
        """Takes back a loss: it was restarted, or only its machine was silent."""
        self.state, self.error, self.silent_since = MemberState.RUNNING, "", None
        self.out_of_memory = False
        self.last_report = time.monotonic()

    def note_test(self, metrics: Values, round: int) -> None:
        """Records whether the test loss after this round is a finite number; no metrics: not tested."""
        if not metrics:
            return
        if metrics.get(LOSS.name, 0.0) is not None:
            self.not_finite = None
        elif self.not_finite is None:
            self.not_finite = round


class MembershipTable:
    """State and progress of all nodes, from the reports received."""

    def __init__(
        self, ranks: Iterable[int], home: dict[int, tuple[int, ...]], local: Iterable[int] | None = None,
        learns_all: bool = True, heartbeats: HeartbeatBoard | None = None,
    ) -> None:  # fmt: skip
        """`home`: the ranks of each host process, by its position; `local`: those of this machine, by default
        all; `learns_all`: whether this launcher learns of the others how they end, as machine 0 does;
        `heartbeats`: of the nodes here.
        """
        self.members = {rank: Member() for rank in ranks}
        self.local = set(self.members if local is None else local)
        self.known = set(self.members) if learns_all else self.local
        """Ranks whose end this launcher learns."""
        self.here = {i: ranks for i, ranks in home.items() if self.local.issuperset(ranks)}
        """The ranks of each host process of this machine, by its position."""
        self.heartbeats = {rank: heartbeats.of(rank) for rank in self.local} if heartbeats else {}
        """The heartbeat of each node of this machine."""
        self.pids: dict[int, int] = {}
        """Process ids of those that are ready, by position."""
        self.home = home
        self.missing_edges: dict[tuple[int, int], PeerMissing] = {}
        """By rank and the peer that it continues without the first report, which has the cause."""
        self.ended: set[int] = set()
        """Positions of host processes that have exited, usually after their nodes."""

    def restart(self, process: int) -> None:
        """Marks the nodes of a restarted process as running; dropped edges of the old process are
        forgotten.
        """
        self.ended.discard(process)
        ranks = self.home.get(process, ())
        again = [rank for rank in ranks if self.members[rank].state is not MemberState.FINISHED]
        self.missing_edges = {ends: e for ends, e in self.missing_edges.items() if ends[0] not in again}
        for rank in again:
            self.members[rank].count_as_running()
            self.members[rank].restarts += 1

    def silent(self, seconds: float = inf) -> set[int]:
        """Nodes that are lost only because their machine has been silent, for at most `seconds`."""
        now = time.monotonic()
        lost = [(rank, self.members[rank].silent_since) for rank in self.ranks(MemberState.LOST)]
        return {rank for rank, since in lost if since is not None and now - since <= seconds}

    def start(self, round: int = -1) -> None:
        """Records the start signal; the nodes have done `round` and continue after it."""
        # The progress of the others is not reported here, so it stays unknown.
        for rank in self.known:
            self.members[rank].round = round
        for member in self.members.values():
            member.last_report = time.monotonic()
            if member.state is MemberState.STARTING:
                member.state = MemberState.RUNNING

    def ranks(self, *states: MemberState) -> list[int]:
        """The ranks in any of these states."""
        return [rank for rank, member in self.members.items() if member.state in states]

    @property
    def active(self) -> list[int]:
        """Ranks that may still report."""
        return [rank for rank, member in self.members.items() if member.is_active]

    def last_words(self) -> list[Report]:
        """The last reports of the nodes here that finished or stopped."""
        members = [(rank, self.members[rank]) for rank in sorted(self.local)]
        reports = (
            Stopped(rank, member.round + 1) if member.state is MemberState.STOPPED else member.finished
            for rank, member in members
        )
        return [report for report in reports if report is not None]

    def broken_edges(self) -> list[PeerMissing]:
        """Edges that were dropped although both ends finished."""
        finished = {*self.ranks(MemberState.FINISHED)}
        return [edge for edge in self.missing_edges.values() if {edge.rank, edge.peer} <= finished]

    def reporting(self, among: Iterable[int] | None = None) -> dict[int, int]:
        """By rank the last round done of nodes whose evaluations are awaited: running, and missed by no peer.

        A node that has ended has sent all its reports. `among`: by default all nodes. Any thread may ask.
        """
        # A copy, because the launcher may change the table meanwhile.
        missed = {peer for _, peer in [*self.missing_edges]}
        members = [(rank, self.members[rank]) for rank in (self.members if among is None else among)]
        running = [(rank, member.round) for rank, member in members if member.state is MemberState.RUNNING]
        return {rank: round for rank, round in running if rank not in missed}
