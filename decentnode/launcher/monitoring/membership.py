"""What is known of every node of a run from its reports."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from decentnode.communication.launcher_link.reports import (  # fmt: skip
    Checkpointed,
    Evaluated,
    Exited,
    Failed,
    FaultInjected,
    Finished,
    NotCheckpointed,
    PeerBack,
    PeerMissing,
    Published,
    Rejected,
    Rejoined,
    Report,
    Restarted,
    RoundProgress,
    Stopped,
)
from decentnode.core.text import how_it_ended
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
    not_finite: int | None = None
    """The round since which every test loss was not finite; None if the last one was finite."""
    last_report: float = field(default_factory=time.monotonic)
    accused: bool = False
    """Whether a peer continued without it."""
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

    def __init__(self, ranks: Iterable[int], home: dict[int, tuple[int, ...]]) -> None:
        """`home`: the ranks of each host process, by its position."""
        self.members = {rank: Member() for rank in ranks}
        self._home = home
        self.missing_edges: list[PeerMissing] = []
        self.ended: set[int] = set()
        """Positions of host processes that have exited, usually after their nodes."""

    def take(self, report: Report) -> list[int]:
        """Processes a report; returns the ranks that it marks as lost."""
        match report:
            case RoundProgress() | Published():
                member = self._heard(report.rank)
                # Relayed reports may arrive late, so progress never decreases.
                member.round = max(member.round, report.round)
                member.bytes_sent = max(member.bytes_sent, report.bytes_sent)
                member.loss = report.loss if isinstance(report, RoundProgress) else report.train_loss
            case Evaluated():
                # Not heard from: an evaluator may have sent it, long after the node.
                self.members[report.rank].note_test(report.metrics, report.round)
            case PeerMissing():
                self._heard(report.rank)
                # Each edge once: its first reason is the cause.
                if (report.rank, report.peer) not in {(edge.rank, edge.peer) for edge in self.missing_edges}:
                    self.missing_edges.append(report)
                self.members[report.peer].accused = True
            case PeerBack():
                self._heard(report.rank)
                edge = (report.rank, report.peer)
                self._drop_edges(lambda missing: (missing.rank, missing.peer) == edge)
            case Restarted():
                self.ended.discard(report.process)
                self.revive(self._home.get(report.process, ()))
            case Rejoined():
                # The exception: a rejoining node discards later rounds.
                self._heard(report.rank).round = report.round - 1
            case Rejected() | FaultInjected() | Checkpointed() | NotCheckpointed():
                self._heard(report.rank)
            case Finished():
                member = self._heard(report.rank)
                # Also for a lost node: its machine may only have been silent.
                member.state, member.finished = MemberState.FINISHED, report
                member.round, member.bytes_sent = report.rounds - 1, report.bytes_sent
                member.note_test(report.metrics, member.round)
            case Stopped():
                member = self._heard(report.rank)
                member.state, member.round = MemberState.STOPPED, report.rounds - 1
            case Failed():
                if lost := self.lose([report.rank], report.error):
                    self.members[report.rank].out_of_memory = report.out_of_memory
                return lost
            case Exited():
                self.ended.add(report.process)
                return self.lose(self._home.get(report.process, ()), how_it_ended(report.status))
        return []

    def lose(self, ranks: Iterable[int], error: str) -> list[int]:
        """Marks nodes as lost unless they have ended; returns the newly lost ones. The first reason stays."""
        lost = []
        for rank in ranks:
            member = self.members[rank]
            if member.state not in (MemberState.FINISHED, MemberState.STOPPED, MemberState.LOST):
                member.state, member.error = MemberState.LOST, error
                lost.append(rank)
        return lost

    def revive(self, ranks: Iterable[int]) -> None:
        """Marks the nodes of a restarted process as running; dropped edges of the old process are
        forgotten.
        """
        again = [rank for rank in ranks if self.members[rank].state is not MemberState.FINISHED]
        self._drop_edges(lambda edge: edge.rank in again)
        for rank in again:
            self._count_as_running(rank)
            self.members[rank].restarts += 1

    def silence(self, ranks: Iterable[int]) -> None:
        """Marks nodes whose machine is silent; the caller marks them as lost next."""
        for rank in ranks:
            self.members[rank].silent_since = time.monotonic()

    def hear_again(self, ranks: Iterable[int]) -> list[int]:
        """Marks nodes of a machine that reports again as running; returns those that were only silent."""
        found = sorted(self.silent() & set(ranks))
        for rank in found:
            self._count_as_running(rank)
        return found

    def silent(self, seconds: float = inf) -> set[int]:
        """Nodes that are lost only because their machine has been silent, for at most `seconds`."""
        now = time.monotonic()
        return {
            rank
            for rank, member in self.members.items()
            if member.state is MemberState.LOST
            and member.silent_since is not None
            and now - member.silent_since <= seconds
        }

    def _count_as_running(self, rank: int) -> None:
        member = self.members[rank]
        member.state, member.error, member.silent_since = MemberState.RUNNING, "", None
        member.out_of_memory = False
        member.last_report = time.monotonic()

    def _drop_edges(self, is_over: Callable[[PeerMissing], bool]) -> None:
        self.missing_edges = [edge for edge in self.missing_edges if not is_over(edge)]
        accused = {edge.peer for edge in self.missing_edges}
        for rank, member in self.members.items():
            member.accused = rank in accused

    def start(self, round: int = -1, heard: Iterable[int] | None = None) -> None:
        """Records the start signal; the nodes have done `round` and continue after it.

        `heard`: the ranks whose progress is reported here, by default all; of the others it is unknown.
        """
        for rank in self.members if heard is None else heard:
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

    def last_words(self, ranks: Iterable[int]) -> list[Report]:
        """The last reports of those of these nodes that finished or stopped."""
        said: list[Report] = []
        for rank in ranks:
            member = self.members[rank]
            if member.state is MemberState.STOPPED:
                said.append(Stopped(rank, member.round + 1))
            elif member.finished is not None:
                said.append(member.finished)
        return said

    def broken_edges(self) -> list[PeerMissing]:
        """Edges that were dropped although both ends finished."""
        return [e for e in self.missing_edges if self.members[e.peer].state is MemberState.FINISHED]

    def not_finite(self) -> dict[int, int]:
        """By rank of finished nodes with a test loss that is not finite: since which round."""
        return {
            rank: member.not_finite
            for rank, member in sorted(self.members.items())
            if member.finished is not None and member.not_finite is not None
        }

    def reporting(self, among: Iterable[int] | None = None) -> dict[int, int]:
        """By rank the last round done of nodes whose evaluations are awaited: running, and not accused.

        A node that has ended has sent all its reports. `among`: by default all nodes.
        """
        members = {rank: self.members[rank] for rank in (self.members if among is None else among)}
        return {
            rank: member.round
            for rank, member in members.items()
            if member.state is MemberState.RUNNING and not member.accused
        }

    def _heard(self, rank: int) -> Member:
        member = self.members[rank]
        member.last_report = time.monotonic()
        return member
