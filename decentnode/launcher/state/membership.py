"""What is known of every node of a run, from the reports of its launcher and, here, from its heartbeat.

Every change of a state goes through the table, which keeps the ranks of each state. So no question of the
launcher, which asks whenever something arrives, goes over all nodes.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from decentnode.communication.launcher_link import reports
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard, NodeProgress
from decentnode.communication.launcher_link.reports import Finished, NodeReport, PeerMissing, Report, Stopped
from decentnode.formats.metrics import LOSS, Values
from decentnode.launcher.state.dispatcher import Dispatcher

SIGNS_OF_LIFE = (
    reports.RoundProgress, reports.Published, reports.PeerMissing, reports.PeerBack, reports.Rejected,
    reports.FaultInjected, reports.Rejoined, reports.Checkpointed, reports.NotCheckpointed, reports.Finished,
    reports.Stopped,
)  # fmt: skip
"""A node that sends one of these takes part."""


class MemberState(StrEnum):
    """The state of a node as this machine knows it."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """Ended before its last round, on request."""
    LOST = "lost"

    @property
    def is_active(self) -> bool:
        """Whether a node in this state may still report."""
        return self in (MemberState.STARTING, MemberState.RUNNING)


@dataclass
class Member:
    """One node as the launcher knows it; its state is changed by the table alone."""

    state: MemberState = MemberState.STARTING
    round: int = -1
    bytes_sent: int = 0
    loss: float | None = None
    """The last known training loss."""
    epsilon: float | None = None
    """What its private steps have spent, where that is a claim."""
    virtual_seconds: float | None = None
    """The time of a simulation at the end of its last round; None: time is real."""
    not_finite: int | None = None
    """The round since which every test loss was not finite; None if the last one was finite."""
    last_report: float = field(default_factory=time.monotonic)
    silent_since: float | None = None
    """When it was lost only because its machine was silent; None otherwise."""
    error: str = ""
    out_of_memory: bool = False
    is_bad_input: bool = False
    """Whether the user has to change something."""
    finished: Finished | None = None
    restarts: int = 0

    @property
    def is_active(self) -> bool:
        """Whether it may still report."""
        return self.state.is_active

    def note_test(self, metrics: Values, round: int) -> None:
        """Records whether the test loss after this round is a finite number; no metrics: not tested."""
        if not metrics:
            return
        if metrics.get(LOSS.name, 0.0) is not None:
            self.not_finite = None
        elif self.not_finite is None:
            self.not_finite = round


class MembershipTable:
    """State and progress of all nodes of a run."""

    def __init__(
        self,
        ranks: Iterable[int],
        home: Mapping[int, tuple[int, ...]],
        local: Iterable[int] | None = None,
        heartbeats: HeartbeatBoard | None = None,
    ) -> None:
        """`home`: the ranks of each host process, by its position; `local`: those of this machine, by default
        all; `heartbeats`: of the nodes here.
        """
        self.members = {rank: Member() for rank in ranks}
        self.active = set(self.members)
        """Ranks that may still report."""
        self.local = set(self.members if local is None else local)
        self.home = home
        self.here = {i: ranks for i, ranks in home.items() if self.local.issuperset(ranks)}
        """The ranks of each host process of this machine, by its position."""
        self.heartbeats = {rank: heartbeats.of(rank) for rank in self.local} if heartbeats else {}
        """The heartbeat of each node of this machine."""
        self.pids: dict[int, int] = {}
        """Process ids of those that are ready, by position."""
        self.missing_edges: dict[tuple[int, int], PeerMissing] = {}
        """By rank and the peer that it continues without the first report, which has the cause."""
        self.ended: set[int] = set()
        """Positions of host processes that have exited, usually after their nodes."""
        self._board = heartbeats
        self._progress: dict[int, NodeProgress] = {}
        """Progress that was read and not recorded yet."""
        self._ranks = {state: set[int]() for state in MemberState}
        self._ranks[MemberState.STARTING] |= self.active
        self._position = {rank: position for position, ranks in self.here.items() for rank in ranks}
        self._active_in = Counter({position: len(ranks) for position, ranks in self.here.items()})
        self._without_active: set[int] = set()
        """Positions here without an active node."""

    def register(self, dispatcher: Dispatcher[Report]) -> None:
        """Registers for what nodes report of themselves, but not for their losses (`Incidents`)."""
        for kind in SIGNS_OF_LIFE:
            dispatcher.register(kind, self._note_sign_of_life)
        dispatcher.register(reports.Ready, lambda ready: self.pids.update({ready.process: ready.pid}))
        dispatcher.register(reports.RoundProgress, self._note_relayed_progress)
        dispatcher.register(reports.Published, self._note_publication)
        dispatcher.register(reports.Evaluated, self._note_evaluation)
        dispatcher.register(reports.PeerMissing, self._note_missing_peer)
        dispatcher.register(reports.PeerBack, self._note_peer_back)
        dispatcher.register(reports.Rejoined, self._note_rejoined)
        dispatcher.register(reports.Finished, self._note_end)
        dispatcher.register(reports.Stopped, self._note_stop)
        dispatcher.register(reports.Exited, lambda exited: self.ended.add(exited.process))
        dispatcher.register(reports.Restarted, lambda restarted: self.restart(restarted.process))

    # States.

    def set_state(self, rank: int, state: MemberState) -> None:
        """Moves a node to a state."""
        member, position = self.members[rank], self._position.get(rank)
        was_active = member.is_active
        self._ranks[member.state].discard(rank)
        member.state = state
        self._ranks[state].add(rank)
        if was_active == member.is_active:
            return
        (self.active.add if member.is_active else self.active.discard)(rank)
        if position is not None:
            self._active_in[position] += 1 if member.is_active else -1
            is_idle = not self._active_in[position]
            (self._without_active.add if is_idle else self._without_active.discard)(position)

    def ranks(self, *states: MemberState) -> list[int]:
        """Returns the ranks in any of these states, in order."""
        return sorted(set[int]().union(*(self._ranks[state] for state in states)))

    @property
    def lost(self) -> set[int]:
        """The ranks of lost nodes."""
        return self._ranks[MemberState.LOST]

    @property
    def running(self) -> int:
        """How many nodes run."""
        return len(self._ranks[MemberState.RUNNING])

    @property
    def idle(self) -> set[int]:
        """Positions of host processes here that have no active node and have not exited."""
        return self._without_active - self.ended

    def lose(self, rank: int, error: str, out_of_memory: bool = False, is_bad_input: bool = False) -> bool:
        """Records a loss with its reason; returns False, and changes nothing, if the node had ended."""
        member = self.members[rank]
        if not member.is_active:
            return False
        self.set_state(rank, MemberState.LOST)
        member.error, member.out_of_memory, member.is_bad_input = error, out_of_memory, is_bad_input
        return True

    def count_as_running(self, rank: int) -> None:
        """Takes back a loss: the node was restarted, or only its machine was silent."""
        self.set_state(rank, MemberState.RUNNING)
        member = self.members[rank]
        member.error, member.silent_since, member.out_of_memory = "", None, False
        member.last_report = time.monotonic()

    def restart(self, process: int) -> None:
        """Marks the nodes of a restarted process as running; dropped edges of the old process are
        forgotten.
        """
        self.ended.discard(process)
        ranks = self.home.get(process, ())
        again = [rank for rank in ranks if self.members[rank].state is not MemberState.FINISHED]
        self.missing_edges = {ends: e for ends, e in self.missing_edges.items() if ends[0] not in again}
        for rank in again:
            self.count_as_running(rank)
            self.members[rank].restarts += 1

    def silent(self, seconds: float = inf) -> set[int]:
        """Returns nodes that are lost only because their machine has been silent, for at most `seconds`."""
        now = time.monotonic()
        lost = [(rank, self.members[rank].silent_since) for rank in self.lost]
        return {rank for rank, since in lost if since is not None and now - since <= seconds}

    def start(self, round: int = -1) -> None:
        """Records the start signal; the nodes have done `round` and continue after it."""
        for rank, member in self.members.items():
            member.round = round
            member.last_report = time.monotonic()
            if member.state is MemberState.STARTING:
                self.set_state(rank, MemberState.RUNNING)

    # Progress.

    def read_progress(self) -> None:
        """Reads the progress of the nodes here, before the reports that are there by now.

        A node reports a model to be evaluated before it does another round. `record_progress` follows when
        those reports are processed, so the table never shows a round whose earlier reports are still to come.
        """
        if self._board is not None:
            self._progress |= self._board.new_progress()

    def record_progress(self) -> list[int]:
        """Records what was read; returns the ranks that it is about."""
        progress, self._progress = self._progress, {}
        for rank, done in progress.items():
            member = self.members[rank]
            # The last report of a node says more.
            if member.is_active:
                member.round, member.loss, member.bytes_sent, member.epsilon = done[:4]
                member.virtual_seconds = done.virtual_seconds
        return [*progress]

    def progress_of(self, rank: int) -> reports.RoundProgress:
        """Returns the progress of a node as it is reported to other machines."""
        member = self.members[rank]
        return reports.RoundProgress(rank, member.round, member.loss, member.bytes_sent, member.epsilon)

    def reporting(self, among: Iterable[int] | None = None) -> dict[int, int]:
        """Returns the last round done, by rank, of nodes whose evaluations are awaited.

        These nodes run, and no peer misses them; a node that has ended has sent all its reports. `among`: by
        default all nodes. Any thread may ask.
        """
        # Copies, which are made at once, because the launcher may change the table meanwhile.
        running, missed = set(self._ranks[MemberState.RUNNING]), {peer for _, peer in [*self.missing_edges]}
        ranks = (running if among is None else running.intersection(among)) - missed
        return {rank: self.members[rank].round for rank in sorted(ranks)}

    # Reports.

    def _note_sign_of_life(self, report: NodeReport) -> None:
        self.members[report.rank].last_report = time.monotonic()

    def _note_relayed_progress(self, report: reports.RoundProgress) -> None:
        self._advance(report.rank, report.round, report.loss, report.bytes_sent)
        self.members[report.rank].epsilon = report.epsilon

    def _note_publication(self, report: reports.Published) -> None:
        self._advance(report.rank, report.round, report.train_loss, report.bytes_sent)

    def _advance(self, rank: int, round: int, loss: float | None, bytes_sent: int) -> None:
        member = self.members[rank]
        # Relayed reports may arrive late, so progress never decreases.
        member.round, member.loss = max(member.round, round), loss
        member.bytes_sent = max(member.bytes_sent, bytes_sent)

    def _note_evaluation(self, report: reports.Evaluated) -> None:
        self.members[report.rank].note_test(report.metrics, report.round)

    def _note_missing_peer(self, report: PeerMissing) -> None:
        self.missing_edges.setdefault((report.rank, report.peer), report)

    def _note_peer_back(self, report: reports.PeerBack) -> None:
        self.missing_edges.pop((report.rank, report.peer), None)

    def _note_rejoined(self, report: reports.Rejoined) -> None:
        # The exception: a rejoining node discards later rounds. It may have been read before it did.
        self.members[report.rank].round = report.round - 1
        self._progress.pop(report.rank, None)

    def _note_end(self, report: Finished) -> None:
        """Records the last report, also of a lost node: its machine may only have been silent."""
        self.set_state(report.rank, MemberState.FINISHED)
        member = self.members[report.rank]
        member.finished, member.round = report, report.rounds - 1
        member.bytes_sent = report.bytes_sent
        member.note_test(report.metrics, member.round)

    def _note_stop(self, report: Stopped) -> None:
        self.set_state(report.rank, MemberState.STOPPED)
        self.members[report.rank].round = report.rounds - 1

    # The end.

    def standing(self) -> list[Report]:
        """Returns the state of each node here as a report: how it ended, or its progress."""
        standing: list[Report] = []
        for rank in sorted(self.local):
            member = self.members[rank]
            if member.finished is not None:
                standing.append(member.finished)
            elif member.state is MemberState.STOPPED:
                standing.append(Stopped(rank, member.round + 1))
            elif member.state is MemberState.LOST:
                standing.append(reports.Failed(rank, member.error, member.out_of_memory, member.is_bad_input))
            else:
                standing.append(self.progress_of(rank))
        return standing

    def broken_edges(self) -> list[PeerMissing]:
        """Returns edges that were dropped although both ends finished."""
        finished = self._ranks[MemberState.FINISHED]
        return [edge for edge in self.missing_edges.values() if {edge.rank, edge.peer} <= finished]
