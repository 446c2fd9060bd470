"""Machines that agree on the last round, whoever was asked to stop and whoever is there."""

import signal

import pytest

from decentnode.communication.launcher_link.heartbeats import (
    NO_LAST_ROUND,
    UNDECIDED,
    Activity,
    HeartbeatBoard,
)
from decentnode.core.clock import AwakeClock
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.cluster.graceful_stop import GracefulStop
from decentnode.launcher.state.messages import Pause, StopRequest

DEADLINE = 40.0


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time that passes only when a test says so."""
    now = [100.0]
    monkeypatch.setattr(AwakeClock, "now", lambda self: now[0])
    return now


class Machines:
    """Launchers whose messages reach each other at once, unless one is gone; the first one decides."""

    def __init__(self, rounds):
        """`rounds`: for each machine the rounds that its nodes have announced."""
        self.gone, self.known_gone = set(), set()
        self.heartbeats, self.all = [], []
        for machine, announced in enumerate(rounds):
            heartbeats = HeartbeatBoard(range(len(announced)))
            for rank, round in enumerate(announced):
                heartbeats.of(rank).mark(round, Activity.TRAIN)
            self.heartbeats.append(heartbeats)
            stop = GracefulStop(
                heartbeats,
                machine,
                present=lambda: {*range(len(rounds))},
                coordinates=lambda machine=machine: machine == self.coordinator,
                send=self.sender(machine),
                deadline=DEADLINE,
            )
            self.all.append(stop)

    @property
    def coordinator(self):
        return min({*range(len(self.all))} - self.known_gone)

    def sender(self, machine):
        def send(note, to):
            others = [other for other in range(len(self.all)) if other != machine and to in (None, other)]
            coordinates = to is not None or machine == self.coordinator
            for target in others if coordinates else [self.coordinator]:
                if not {machine, target} & self.gone:
                    self.all[target].take(note)

        return send

    def advance(self):
        for machine in self.all:
            machine.advance()

    @property
    def last_rounds(self):
        return [heartbeats.last_round for heartbeats in self.heartbeats]


def stop_of(machine, heartbeats=None, send=lambda note, to: None):
    """Returns the part of one machine, without the others; machine 0 coordinates."""
    heartbeats = heartbeats or HeartbeatBoard([0])
    coordinates = lambda: machine == 0
    return GracefulStop(heartbeats, machine, lambda: {0, machine}, coordinates, send, DEADLINE)


def test_nothing_happens_before_somebody_asks():
    machines = Machines([[4], [5]])
    machines.advance()
    assert machines.last_rounds == [NO_LAST_ROUND, NO_LAST_ROUND]
    assert machines.all[0].signal is None


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_all_machines_stop_after_the_highest_round_that_any_node_has_begun(clock, asked):
    machines = Machines([[4, 5], [7, 3], [6]])
    machines.all[asked].request(signal.SIGINT)
    assert machines.last_rounds[asked] == UNDECIDED
    for _ in range(8):
        clock[0] += 0.1
        machines.advance()
    assert machines.last_rounds == [7, 7, 7]
    assert {machine.signal for machine in machines.all} == {signal.SIGINT}


def test_a_node_that_was_about_to_begin_is_counted(clock):
    """Nothing is read before every node has either announced its round or seen that it must wait."""
    machines = Machines([[4, 5]])
    machines.all[0].request(signal.SIGTERM)
    machines.advance()
    assert machines.last_rounds == [UNDECIDED]
    machines.heartbeats[0].of(1).mark(6, Activity.BEGIN)
    clock[0] += 2 * Timeouts.announced_round
    machines.advance()
    assert machines.last_rounds == [6]


def test_the_coordinator_does_not_wait_for_ever_for_another(clock):
    machines = Machines([[4], [9], [6]])
    machines.gone = {1}
    machines.all[0].request(signal.SIGTERM)
    for _ in range(8):
        clock[0] += Timeouts.announcements / 6
        machines.advance()
    assert machines.last_rounds == [6, NO_LAST_ROUND, 6]


def test_without_an_answer_a_machine_decides_for_its_own_nodes(clock):
    machines = Machines([[4], [9, 8]])
    machines.gone = {0}
    machines.all[1].request(signal.SIGTERM)
    clock[0] += 1.0
    machines.advance()
    assert machines.last_rounds == [NO_LAST_ROUND, UNDECIDED]
    clock[0] += Timeouts.decision
    machines.advance()
    assert machines.last_rounds == [NO_LAST_ROUND, 9]


def test_when_the_coordinator_has_gone_the_next_one_decides_for_all(clock):
    machines = Machines([[4], [7], [9]])
    machines.gone = {0}
    machines.all[2].request(signal.SIGTERM)
    for _ in range(40):
        clock[0] += Timeouts.decision / 30
        if clock[0] > 100.0 + Timeouts.machine_silent:
            machines.known_gone = {0}
        machines.advance()
    assert machines.last_rounds == [NO_LAST_ROUND, 9, 9]
    assert machines.all[1].signal is signal.SIGTERM


def test_who_was_asked_first_lets_the_coordinator_decide_while_a_third_is_silent(clock):
    """Else its nodes would end after a round of its own, and the coordinator name a later one."""
    machines = Machines([[6], [4], [5], [9]])
    machines.gone = {3}
    machines.all[1].request(signal.SIGTERM)
    for _ in range(40):
        clock[0] += Timeouts.announcements / 30
        machines.advance()
        assert set(machines.last_rounds[:3]) <= {NO_LAST_ROUND, UNDECIDED, 6}
    assert machines.last_rounds == [6, 6, 6, NO_LAST_ROUND]


def test_a_machine_that_was_not_counted_on_learns_with_what_the_run_was_stopped(clock):
    """It was silent and is heard again; else it would take its nodes for failed."""
    machines = Machines([[4], [6]])
    machines.all[0].present = lambda: {0}
    machines.all[0].request(signal.SIGTERM)
    clock[0] += 2 * Timeouts.announced_round
    machines.advance()
    assert machines.last_rounds == [4, 4]
    assert machines.all[1].signal is signal.SIGTERM


def test_a_machine_that_missed_the_decision_hears_it_again():
    sent = []
    heartbeats = HeartbeatBoard([0])
    heartbeats.of(0).mark(3, Activity.TRAIN)
    zero = stop_of(0, heartbeats, send=lambda note, to: sent.append((note, to)))
    zero.take(Pause(signal.SIGTERM, 8))
    zero.take(StopRequest(2, signal.SIGTERM, 5))
    assert sent == [(Pause(signal.SIGTERM, 8), 2)]


def test_a_word_from_elsewhere_names_the_signal():
    zero = stop_of(0)
    zero.take(StopRequest(1, 9, 4))
    assert zero.signal is signal.SIGTERM
    stop = stop_of(1)
    stop.take(Pause(int(signal.SIGINT)))
    assert stop.signal is signal.SIGINT
    two = stop_of(2)
    two.take(Pause(int(signal.SIGHUP)))
    assert two.signal is signal.SIGHUP


@pytest.mark.parametrize("signaled", [None, 0, 1])
def test_at_the_target_nodes_have_finished_unless_a_signal_came_before_the_decision(clock, signaled):
    machines = Machines([[4, 5], [7, 3], [6]])
    zero, *others = machines.all
    zero.finish(3)
    if signaled is not None:
        machines.all[signaled].request(signal.SIGTERM)
    for _ in range(8):
        clock[0] += 0.1
        machines.advance()
    assert machines.last_rounds == [7, 7, 7]
    assert {beats.completes for beats in machines.heartbeats} == {signaled is None}
    if signaled is None:
        assert [(stop.signal, stop.reached, stop.is_requested) for stop in others] == [(None, 3, True)] * 2
        # What is decided stays: a signal only limits the time of the nodes from here on.
        clock[0] += 2 * DEADLINE
        zero.request(signal.SIGINT)
        assert (machines.last_rounds[0], zero.is_overdue, machines.heartbeats[0].completes) == (
            7,
            False,
            True,
        )
        others[0].send(StopRequest(1, 0, 7), None)
        assert machines.heartbeats[1].completes


def test_nobody_is_overdue_before_somebody_asks():
    assert not Machines([[4]]).all[0].is_overdue


def test_nodes_have_the_stop_deadline(clock):
    stop = Machines([[4, 4]]).all[0]
    stop.request(signal.SIGTERM)
    clock[0] += DEADLINE
    assert not stop.is_overdue
    clock[0] += 0.1
    assert stop.is_overdue
