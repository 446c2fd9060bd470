"""What is known of every node of a run from its reports."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

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

    def progress(self, round: int, bytes_sent: int, loss: float | None) -> None:
        """Records a round done."""
        # Relayed reports may arrive late, so progress never decreases.
        self.round = max(self.round, round)
        self.bytes_sent = max(self.bytes_sent, bytes_sent)
        self.loss = loss

    def finish(self, report: Finished) -> None:
        """Records the last report, also of a lost node: its machine may only have been silent."""
        self.state, self.finished = MemberState.FINISHED, report
        self.round, self.bytes_sent = report.rounds - 1, report.bytes_sent
        self.note_test(report.metrics, self.round)

    def stop(self, rounds: int) -> None:
        """Records an end on request after this many rounds."""
        self.state, self.round = MemberState.STOPPED, rounds - 1

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

    def miss(self, edge: PeerMissing) -> None:
        """Records that a node continues without a peer; of an edge only the first reason, the cause."""
        self.heard(edge.rank)
        if (edge.rank, edge.peer) not in {(known.rank, known.peer) for known in self.missing_edges}:
            self.missing_edges.append(edge)
        self.members[edge.peer].accused = True

    def regain(self, rank: int, peer: int) -> None:
        """Records that a node exchanges with a peer again."""
        self.heard(rank)
        self._drop_edges(lambda missing: (missing.rank, missing.peer) == (rank, peer))

    def exit(self, process: int) -> tuple[int, ...]:
        """Records the end of a host process; returns its ranks."""
        self.ended.add(process)
        return self._home.get(process, ())

    def lose(self, ranks: Iterable[int], error: str, out_of_memory: bool = False) -> list[int]:
        """Marks nodes as lost unless they have ended; returns the newly lost ones. The first reason stays."""
        lost = []
        for rank in ranks:
            member = self.members[rank]
            if member.state not in (MemberState.FINISHED, MemberState.STOPPED, MemberState.LOST):
                member.state, member.error, member.out_of_memory = MemberState.LOST, error, out_of_memory
                lost.append(rank)
        return lost

    def restart(self, process: int) -> None:
        """Marks the nodes of a restarted process as running; dropped edges of the old process are
        forgotten.
        """
        self.ended.discard(process)
        ranks = self._home.get(process, ())
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

    def heard(self, rank: int) -> Member:
        """Records that a node has reported; returns it."""
        member = self.members[rank]
        member.last_report = time.monotonic()
        return member

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
