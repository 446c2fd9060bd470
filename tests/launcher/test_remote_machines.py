"""What a launcher believes of the others, and what becomes of a machine that it does not hear."""

import io
import math
import os
import queue
import time
from types import SimpleNamespace

import pytest

from decentnode.communication.launcher_link.heartbeats import UNDECIDED
from decentnode.communication.launcher_link.reports import (
    Checkpointed,
    Evaluated,
    Exited,
    Failed,
    Finished,
    PeerMissing,
    Published,
    Ready,
    Restarted,
    RoundProgress,
    Waiting,
)
from decentnode.communication.wire import digest
from decentnode.core.timeouts import Timeouts
from decentnode.formats.reader import EvaluationRow
from decentnode.launcher import launcher as launcher_module
from decentnode.launcher.cluster.several_machines import RELAY_INTERVAL
from decentnode.launcher.cluster.vector_sender import VectorSender
from decentnode.launcher.launcher import Launcher
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.state.membership import MemberState
from decentnode.launcher.state.messages import (
    Arrived,
    CheckpointsCommitted,
    EvaluationRows,
    Join,
    MeanVector,
    PartialDistance,
    PartialSum,
    Pause,
    Presence,
    RelayedReports,
    Start,
    StopRequest,
    VectorAck,
    VectorPiece,
)
from decentnode.node.experiment import Experiment
from tests.integration.running import QUICKSTART

MACHINES = "mapping.machines=[{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 1}, "
MACHINES += "{address: 127.0.0.3, nodes: 3}]"
ROUNDS = 50
BIG = 10**6


def experiment(tmp_path, *more):
    settings = ["graph=ring", "graph.nodes=6", f"rounds={ROUNDS}", f"run_dir={tmp_path}/run", MACHINES, *more]
    return Experiment.from_yaml(QUICKSTART, settings)


class IdleLauncher:
    """A launcher after the start, without nodes and without sockets: others' notes are put into `inbox`."""

    def __init__(self, tmp_path, machine=0, *settings):
        self.machine, self.inbox, self.sent = machine, [], []
        self.launcher = Launcher(experiment(tmp_path, *settings), machine, LiveConsole(io.StringIO()))
        self.launcher._observer = SimpleNamespace(
            taken=[],
            error=None,
            is_alive=lambda: False,
            observations=queue.SimpleQueue(),
            expect=lambda *expected: vars(self.launcher._observer).update(
                zip(("machines", "coordinator"), expected, strict=True)
            ),
        )
        self.launcher._observer.take = self.launcher._observer.taken.append
        for kind in (PartialSum, PartialDistance, MeanVector, VectorAck):
            self.launcher._message_dispatcher.register(kind, self.launcher._observer.take)
        self.launcher.run_id = 1
        self.launcher.membership.start()
        self.launcher.membership.pids = {0: os.getpid()}
        self.launcher._cluster._presences = dict.fromkeys(range(3), Presence())
        self.rendezvous = self.launcher._cluster._rendezvous
        self.rendezvous.receive, self.rendezvous.send = self._receive, self._send
        self.launcher._cluster._vector_sender = VectorSender(
            machine, 8 * self.launcher.experiment.layout.numel, self._send
        )

    def _receive(self, timeout=0.0):
        notes, self.inbox = self.inbox, []
        for note in notes:
            self.rendezvous.last_received[note.machine] = time.monotonic()
        return notes

    def _send(self, note, *machines):
        self.sent += [(note, machine) for machine in machines]
        return len(machines)

    def receive(self, *notes):
        self.inbox += notes
        self.launcher._exchange_with_machines()

    def silence(self, machine, seconds=Timeouts.machine_silent + 1):
        self.rendezvous.last_received[machine] -= seconds
        self.receive()

    def state(self, rank):
        return self.launcher.membership.members[rank].state

    @property
    def events(self):
        self.launcher._event_log.close()
        return (self.launcher.run_dir / "events.jsonl").read_text()


@pytest.fixture
def idle(tmp_path):
    return IdleLauncher(tmp_path)


FALSE = {
    "no such rank": (RoundProgress(BIG, 1, None, 0), "identity"),
    "a negative rank": (RoundProgress(-1, 1, None, 0), "identity"),
    "machine 0's rank": (Failed(0, "dead"), "identity"),
    "another machine's rank": (Checkpointed(4, 10), "identity"),
    "machine 0's process": (Exited(0, 0), "identity"),
    "no such process": (Restarted(BIG, None, 1), "identity"),
    "a process to be signalled": (Ready(2, 1), "identity"),
    "no such peer": (PeerMissing(2, 1, BIG, ""), "range"),
    "no such peers": (Waiting(2, 1, [0, -1], 1.0), "range"),
    "no such round": (Checkpointed(2, 10**9), "range"),
    "a wait of no length": (Waiting(2, 1, [0], math.nan), "range"),
    "a wait without end": (Waiting(2, 1, [0], math.inf), "range"),
    "an accuracy that JSON cannot say": (Evaluated(2, 1, {"accuracy": math.nan}), "range"),
    "a time that JSON cannot say": (Published(2, 1, 0.5, 1, -math.inf, True), "range"),
    "more rounds than there are": (Finished(2, ROUNDS + 1, "", 0, 0, 0.0), "range"),
}


@pytest.mark.parametrize(("report", "reason"), FALSE.values(), ids=FALSE)
def test_a_launcher_reports_for_its_own_nodes_alone(idle, report, reason):
    before = dict(idle.launcher.membership.pids)
    idle.receive(RelayedReports(1, [report, report, RoundProgress(2, 3, 0.5, 10)]))
    assert idle.launcher.membership.active == set(range(6))
    assert idle.launcher.membership.pids == before
    assert idle.launcher.membership.members[2].round == 3, "what it says of its own node counts"
    assert idle.launcher._cluster.refused == {reason: 2}
    assert idle.launcher._run_state.retention.newest_round is None
    assert idle.events.count('"refused"') == 1


def test_the_coordinator_too_is_believed_about_its_own_nodes_alone(tmp_path):
    idle = IdleLauncher(tmp_path, machine=1)
    processes = idle.launcher.experiment.processes
    elsewhere = [i for i, process in enumerate(processes) if process.machine == 2]
    idle.launcher._incidents.lose([3, 4, 5], "gone")
    here = min(idle.launcher.membership.here)
    reports = [Restarted(elsewhere[0], None, 16), Exited(here, 0), RoundProgress(0, 7, None, 0)]
    idle.receive(RelayedReports(0, reports))
    assert (idle.state(2), idle.state(3)) == (MemberState.RUNNING, MemberState.LOST)
    assert idle.launcher.membership.members[0].round == 7
    assert idle.launcher._cluster.refused == {"identity": 2}


def test_every_machine_knows_of_all_checkpoints_and_the_coordinator_alone_lets_them_go(tmp_path):
    idle = IdleLauncher(tmp_path, machine=1)
    idle.receive(RelayedReports(0, [Checkpointed(0, 10), Checkpointed(1, 10)]))
    idle.receive(RelayedReports(2, [Checkpointed(rank, 10) for rank in (3, 4, 5)]))
    idle.launcher._report_dispatcher.dispatch(Checkpointed(2, 10))
    state, sent = idle.launcher._run_state, []
    assert state.retention.newest_round == 10
    state.tend([], False, sent.append)
    assert sent == []
    idle.silence(0)
    state.tend([], idle.launcher._cluster.coordinates, sent.append)
    assert sent == [CheckpointsCommitted(10, 10, 10, machine=1)]


def pieces(idle, machine, count):
    """The two halves of a vector, and what cannot be a piece of one."""
    whole = 8 * idle.launcher.experiment.layout.numel
    half = bytes(whole // 2)
    right = [VectorPiece(machine, 3, count, start, half) for start in (0, whole // 2)]
    wrong = [
        VectorPiece(machine, 3, count, 0, b""),
        VectorPiece(machine, 3, count, -1, b"\0"),
        VectorPiece(machine, 3, count, whole, b"\0"),
        VectorPiece(machine, 3, count, whole // 2 + 1, half),
        VectorPiece(machine, 3, BIG, 0, half),
        VectorPiece(machine, 3, -1, 0, half),
        VectorPiece(machine, ROUNDS, count, 0, half),
        VectorPiece(machine, -1, count, 0, half),
    ]
    return right, wrong


def test_what_cannot_be_part_of_an_observation_is_refused(idle):
    taken = idle.launcher._observer.taken
    right, wrong = pieces(idle, 1, 1)
    wrong += [
        PartialSum(1, 3, 1, right[0].content * 2),
        PartialSum(1, 3, 1, b""),
        PartialSum(1, 3, 0, b"\0"),
        PartialDistance(1, BIG, 1, 0.5),
        PartialDistance(1, 3, BIG, 0.5),
    ]
    none, distance = PartialSum(1, 4, 0, b""), PartialDistance(1, 3, 1, float("nan"))
    idle.receive(right[0], *wrong, right[1], none, distance)
    assert taken == [PartialSum(1, 3, 1, right[0].content * 2), none, distance]
    assert idle.launcher._cluster.refused == {"range": len(wrong)}


def test_a_mean_of_another_size_is_refused(tmp_path):
    idle = IdleLauncher(tmp_path, machine=1)
    right, wrong = pieces(idle, 0, 0)
    idle.receive(right[0], *wrong, right[1])
    assert idle.launcher._observer.taken == [MeanVector(3, right[0].content * 2)]
    assert idle.launcher._cluster.refused == {"range": len(wrong)}


MOST = (1 << 62) - 1
"""The highest round that a note can name, and what the heartbeats hold as long as nobody is to stop."""


@pytest.mark.parametrize("round", [ROUNDS, BIG, MOST])
def test_a_round_that_the_run_does_not_have_is_not_made_the_last_one(idle, round):
    stopping = idle.launcher._graceful_stop
    idle.receive(*(StopRequest(machine, 15, 4) for machine in (1, 2)), StopRequest(1, 15, round))
    stopping._requested_at -= 1.0
    stopping.advance()
    assert idle.launcher._heartbeats.last_round == 4
    assert idle.launcher._cluster.refused == {"range": 1}
    assert "ignored reports from machine 1 about what the run does not have" in idle.events


@pytest.mark.parametrize("round", [-1, 0, ROUNDS - 1])
def test_every_round_of_the_run_may_be_announced_also_none(idle, round):
    idle.receive(StopRequest(1, 15, round))
    assert idle.launcher._graceful_stop._announced == {1: round}
    assert not idle.launcher._cluster.refused


def test_the_coordinator_names_no_last_round_that_the_run_does_not_have(tmp_path):
    idle = IdleLauncher(tmp_path, machine=1)
    idle.receive(Pause(15), Pause(15, ROUNDS), Pause(15, MOST))
    assert idle.launcher._heartbeats.last_round == UNDECIDED
    assert idle.launcher._cluster.refused == {"range": 2}
    idle.receive(Pause(15, -1))
    assert idle.launcher._heartbeats.last_round == -1


def test_checkpoints_are_not_settled_by_rounds_that_the_run_does_not_have(tmp_path):
    idle = IdleLauncher(tmp_path, machine=1)
    retention = idle.launcher._run_state.retention
    idle.receive(CheckpointsCommitted(ROUNDS, 4), CheckpointsCommitted(9, MOST))
    assert (retention.settled, idle.launcher._cluster.refused) == (-1, {"range": 2})
    idle.receive(CheckpointsCommitted(9, -1))
    assert (retention.settled, retention.kept) == (9, -1)
    idle.receive(CheckpointsCommitted(ROUNDS - 1, 9))
    assert (retention.settled, retention.kept) == (ROUNDS - 1, 9)


def test_a_launcher_sleeps_until_a_relay_is_due_or_a_machine_counts_as_silent(idle):
    idle.receive()
    assert RELAY_INTERVAL - 1.0 < idle.launcher._cluster.pause <= RELAY_INTERVAL
    idle.rendezvous.last_received[2] -= Timeouts.machine_silent - 0.5
    assert 0.0 < idle.launcher._cluster.pause <= 0.5
    idle.rendezvous.last_received[2] -= 1.0
    assert idle.launcher._cluster.pause > 0.5, "it is silent already"


class TestSilence:
    def test_a_machine_that_was_only_silent_counts_again_with_the_nodes_that_it_had(self, idle):
        idle.receive(RelayedReports(2, [Failed(4, "ValueError: no")]))
        idle.silence(2)
        assert idle.launcher.membership.ranks(MemberState.LOST) == [3, 4, 5]
        assert idle.launcher._cluster.present() == {0, 1}
        idle.receive(RelayedReports(2, [RoundProgress(3, 7, 0.5, 10)]))
        assert idle.launcher.membership.ranks(MemberState.LOST) == [4], "this one had ended"
        assert idle.launcher.membership.members[4].error == "ValueError: no"
        assert idle.launcher.membership.members[3].restarts == 0
        assert idle.launcher._cluster.present() == {0, 1, 2}
        idle.silence(2)
        assert idle.launcher.membership.ranks(MemberState.LOST) == [3, 4, 5], "and it can fall silent again"
        assert "machine 2 reconnected" in idle.events

    def test_what_it_says_when_it_reports_again_counts(self, idle):
        idle.silence(1)
        idle.receive(RelayedReports(1, [Failed(2, "ValueError: no")]))
        assert idle.launcher.membership.members[2].error == "ValueError: no"
        idle.silence(2)
        idle.receive(RelayedReports(2, [Finished(3, ROUNDS, "", 0, 0, 0.0)]))
        assert idle.state(3) is MemberState.FINISHED
        assert idle.launcher.membership.active == {0, 1, 4, 5}

    def test_a_launcher_that_was_restarted_does_not_bring_the_nodes_of_the_old_one_back(self, idle):
        idle.silence(1)
        idle.launcher._cluster._take_back([Join(1, "", "", "")])
        assert idle.state(2) is MemberState.LOST

    def test_a_machine_whose_last_node_was_restarted_is_watched_again(self, idle):
        position = idle.launcher.experiment.home[2]
        idle.receive(RelayedReports(1, [Exited(position, -9)]))
        assert idle.launcher._cluster.present() == {0, 2}
        idle.receive(RelayedReports(1, [Restarted(position, -9, 1)]))
        idle.receive(RelayedReports(1, []))
        assert idle.launcher._cluster.present() == {0, 1, 2}

    def test_no_models_are_expected_of_a_machine_whose_nodes_are_all_lost_although_it_reports(self, idle):
        observer = idle.launcher._observer
        idle.receive(
            RelayedReports(1, [Failed(2, "ValueError: no")]), RelayedReports(2, [Failed(4, "ValueError: no")])
        )
        assert observer.machines == {0, 2}
        idle.receive(RelayedReports(2, [Finished(3, ROUNDS, "", 0, 0, 0.0), Failed(5, "no")]))
        assert observer.machines == {0, 2}, "what its last nodes have shown is still on its way"
        idle.silence(2)
        assert observer.machines == {0}

    def test_checkpoints_are_kept_for_who_is_silent_and_not_for_ever(self, idle, monkeypatch):
        idle.silence(1)
        assert idle.launcher._cluster.lost == set()
        idle.receive(RelayedReports(2, [Failed(4, "ValueError: no")]))
        assert idle.launcher._cluster.lost == {4}
        monkeypatch.setattr(Timeouts, "machine_lost", -1.0)
        assert idle.launcher._cluster.lost == {2, 4}

    def contribute(self, idle, content):
        """Who gets what the observer has made."""
        idle.launcher._cluster.contribute(MeanVector(3, content))
        idle.receive()
        piece = VectorPiece(idle.machine, 3, 0, 0, content)
        there = [to for note, to in idle.sent if note == piece]
        idle.receive(*(VectorAck(machine, 3, digest(content)) for machine in there))
        return there

    def test_no_vectors_are_kept_for_a_silent_machine(self, idle):
        idle.receive(RelayedReports(1, [Finished(2, ROUNDS, "", 0, 0, 0.0)]))
        assert self.contribute(idle, b"first") == [1, 2], "who has finished observes the last round, too"
        idle.silence(2)
        assert self.contribute(idle, b"second") == [1]
        idle.receive(RelayedReports(2, []))
        assert self.contribute(idle, b"third") == [1, 2]

    def test_vectors_are_sent_to_who_coordinates(self, tmp_path):
        idle = IdleLauncher(tmp_path, machine=2)
        assert self.contribute(idle, b"first") == [0]
        idle.silence(0)
        assert self.contribute(idle, b"second") == [1]
        idle.silence(1)
        assert self.contribute(idle, b"third") == []


class TestCoordinator:
    """The first machine in the order of arrival that is heard."""

    def test_it_is_the_next_one_when_it_is_silent_and_it_again_when_it_was_only_silent(self, tmp_path):
        idle = IdleLauncher(tmp_path, machine=2)
        cluster, observer = idle.launcher._cluster, idle.launcher._observer
        idle.receive()
        assert (cluster.coordinator, observer.coordinator, cluster.coordinates) == (0, 0, False)
        idle.silence(0)
        assert (cluster.coordinator, observer.coordinator, cluster.coordinates) == (1, 1, False)
        idle.silence(1)
        assert (cluster.coordinator, observer.coordinator, cluster.coordinates) == (2, 2, True)
        idle.receive(RelayedReports(0, []))
        assert cluster.coordinator == 0

    def test_a_machine_that_is_started_again_takes_nothing_over(self, tmp_path):
        idle = IdleLauncher(tmp_path, machine=1)
        idle.receive(Arrived(0, Presence(1, 1)), RelayedReports(0, []))
        assert idle.launcher._cluster.coordinates
        assert [*idle.launcher._cluster._presences] == [1, 2, 0]

    def test_a_machine_that_comes_again_loses_its_nodes_which_begin_again_and_learns_of_those_here(
        self, tmp_path
    ):
        idle = IdleLauncher(tmp_path, machine=1)
        idle.launcher._report_dispatcher.dispatch(RoundProgress(2, 7, 0.5, 10))
        idle.receive(Arrived(0, Presence(1, 1)))
        members = idle.launcher.membership.members
        assert [members[rank].restarts for rank in range(6)] == [1, 1, 0, 0, 0, 0]
        assert idle.launcher.membership.active == set(range(6))
        assert (RelayedReports(1, [RoundProgress(2, 7, 0.5, 10)]), 0) in idle.sent

    def test_an_arrival_that_is_said_twice_counts_once(self, idle):
        idle.receive(Arrived(1, Presence(1, 1)))
        idle.receive(Arrived(1, Presence(1, 1)))
        assert [*idle.launcher._cluster._presences] == [0, 2, 1]
        assert idle.launcher.membership.members[2].restarts == 1

    @pytest.mark.parametrize("grace", [0.5, 5.0, 60.0])
    def test_it_counts_as_silent_before_nodes_give_up_their_wait(self, tmp_path, monkeypatch, grace):
        """From the loss of its nodes on, others wait `snapshot` seconds for an observer that waits for it."""
        monkeypatch.setattr(Timeouts, "machine_silent", 8.0)
        idle = IdleLauncher(tmp_path, 1, f"failures.grace={grace}")
        idle.receive(RelayedReports(0, []))
        idle.silence(0, min(8.0, grace + Timeouts.snapshot) - 1.0)
        assert (idle.launcher._cluster.coordinator, idle.state(0)) == (0, MemberState.RUNNING)
        idle.silence(0, 1.0)
        assert idle.launcher._observer.coordinator == 1 and idle.launcher._observer.machines == {1, 2}
        assert idle.state(0) == MemberState.LOST

    def test_who_comes_late_does_not_take_a_silent_machine_for_the_coordinator(self, tmp_path, monkeypatch):
        idle = IdleLauncher(tmp_path, machine=2)
        start = Start(7, late=1, presences={0: Presence(), 1: Presence(), 2: Presence(1, 1)}, machine=1)
        monkeypatch.setattr(idle.rendezvous, "meet", lambda *_: start)
        idle.launcher._cluster.meet({}, 1.0, lambda: False)
        assert idle.sent == [(Arrived(2, Presence(1, 1)), 0), (Arrived(2, Presence(1, 1)), 1)]
        assert idle.launcher._cluster.coordinator == 1
        idle.receive()
        assert idle.launcher.membership.ranks(MemberState.LOST) == [0, 1]

    def test_it_alone_decides(self, tmp_path):
        idle = IdleLauncher(tmp_path, machine=2)
        retention, taken = idle.launcher._run_state.retention, idle.launcher._observer.taken
        piece = VectorPiece(1, 3, 0, 0, bytes(8 * idle.launcher.experiment.layout.numel))
        decisions = [
            Pause(15, 4, machine=1),
            CheckpointsCommitted(4, 4, machine=1),
            EvaluationRows(1, [row(4)], True),
            piece,
        ]
        idle.receive(*decisions)
        assert not idle.launcher._graceful_stop.is_requested and not taken
        assert (retention.settled, idle.launcher.evaluations.rows) == (-1, {})
        idle.silence(0)
        idle.receive(*decisions)
        assert idle.launcher._heartbeats.last_round == 4 and len(taken) == 1
        assert (retention.settled, [*idle.launcher.evaluations.rows]) == (4, [4])

    def test_a_machine_that_missed_the_last_one_a_moment_earlier_is_believed(self, tmp_path):
        idle = IdleLauncher(tmp_path, machine=2)
        idle.silence(0, Timeouts.machine_silent - 1.0)
        idle.receive(EvaluationRows(1, [row(4)]))
        assert idle.launcher._cluster.coordinator == 0
        assert [*idle.launcher.evaluations.rows] == [4]

    def test_what_it_decides_reaches_silent_machines_when_these_are_back(self, idle):
        idle.silence(2)
        idle.launcher._cluster.send(Pause(15, 4))
        assert [to for note, to in idle.sent if note == Pause(15, 4)] == [1, 2]


class TestRows:
    """Evaluations of all nodes, which the coordinator writes for all."""

    def evaluate(self, idle, round):
        for rank in range(6):
            idle.launcher.evaluations.add(Published(rank, round, 0.5, 1, 0.1, True))
            idle.launcher.evaluations.add(Evaluated(rank, round, {"accuracy": 0.5}))

    def rows_sent(self, idle):
        return [
            (to, [r.round for r in note.rows], note.is_last)
            for note, to in idle.sent
            if isinstance(note, EvaluationRows)
        ]

    def test_each_row_is_sent_to_all_and_the_last_word_also_without_one(self, idle):
        self.evaluate(idle, 4)
        idle.launcher._complete_rows(False)
        idle.launcher._show_progress(is_last=True)
        assert self.rows_sent(idle) == [(1, [4], False), (2, [4], False), (1, [], True), (2, [], True)]

    def test_others_write_what_they_are_sent_and_wait_for_the_last_word(self, tmp_path):
        idle = IdleLauncher(tmp_path, machine=1)
        self.evaluate(idle, 4)
        idle.launcher._complete_rows(False)
        assert not idle.launcher.evaluations.rows and idle.launcher._awaits_observations()
        idle.receive(EvaluationRows(0, [row(4)]), EvaluationRows(0, [row(4), row(9)], True))
        assert [*idle.launcher.evaluations.rows] == [4, 9]
        assert not idle.launcher.evaluations.reports and not idle.launcher._awaits_observations()

    def test_without_the_last_word_a_machine_writes_what_it_knows(self, tmp_path):
        idle = IdleLauncher(tmp_path, machine=1)
        self.evaluate(idle, 4)
        idle.launcher._show_progress(is_last=True)
        assert [*idle.launcher.evaluations.rows] == [4] and self.rows_sent(idle) == []

    def test_who_comes_late_gets_all_rows_in_several_messages(self, idle, monkeypatch):
        monkeypatch.setattr(launcher_module, "ROWS_TOGETHER", 12)
        idle.launcher.evaluations.adopt([row(round) for round in range(5)])
        idle.receive(Arrived(2, Presence(1, 1)))
        assert self.rows_sent(idle) == [(2, rounds, False) for rounds in ([0, 1], [2, 3], [4])]

    def test_rows_of_rounds_that_the_run_does_not_have_are_refused(self, tmp_path):
        idle = IdleLauncher(tmp_path, machine=1)
        idle.receive(EvaluationRows(0, [row(ROUNDS)]), EvaluationRows(0, [row(-1)]))
        assert not idle.launcher.evaluations.rows and idle.launcher._cluster.refused == {"range": 2}


def row(round):
    return EvaluationRow(round, 1.0, {"accuracy": {0: 0.5}}, {0: 0.5}, {0: 1})


def test_who_waits_itself_is_not_named_while_the_waits_of_a_look_come_in(idle):
    for rank, peers in ((0, [1]), (1, [3]), (2, [1])):
        idle.launcher._report_dispatcher.dispatch(Waiting(rank, 5, peers, 4.0, "training for 4 s"))
    idle.launcher._run_monitor.stragglers.report(idle.launcher._event_log, time.monotonic())
    lines = [line for line in idle.events.splitlines() if '"waiting"' in line]
    assert len(lines) == 1
    assert "ranks 1, 0 and 2 waiting for 4 s in round 6, for rank 3" in lines[0]


def test_what_the_observer_says_when_it_ends_is_sent(tmp_path):
    idle = IdleLauncher(tmp_path, machine=1)
    last, observer = PartialDistance(1, 3, 1, 0.5), idle.launcher._observer
    observer.finish = lambda: idle.launcher._cluster.contribute(last)
    idle.receive(EvaluationRows(0, [], is_last=True))
    idle.launcher._complete_observations()
    assert last in [note for note, _ in idle.sent]


def test_what_was_refused_is_in_the_summary(idle):
    idle.receive(RelayedReports(1, [Failed(0, "dead")]))
    assert idle.launcher._sum_up(0.0)["refused_messages"] == {"identity": 1}


def test_nodes_of_an_earlier_start_that_live_on_are_not_taken_for_those_of_this_one(idle, monkeypatch):
    """Their messages carry another id, while files carry that of the run."""
    there = idle.launcher
    start = Start(run_id=7, incarnation=2, absent=[1, 2])
    monkeypatch.setattr(there._cluster, "meet", lambda *_: start)
    there.server, there._start_signal = None, os.eventfd(0)
    there._meet()
    there._observer.finish()
    os.close(there._start_signal)
    assert there._run_state.identity.message_id == 9
    assert there.run_id == there._run_state.identity.stamp.run_id == 7
