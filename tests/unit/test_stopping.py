"""Machines that agree on the last round, whoever was asked to stop and whoever is there."""

import signal
import time

import pytest

from decentnode.communication.launcher_link.heartbeats import GO_ON, UNDECIDED, Activity, HeartbeatBoard
from decentnode.launcher import graceful_stop as stopping
from decentnode.launcher.cluster.messages import HighestRound, LastRound, Pause, StopRequest
from decentnode.launcher.graceful_stop import MOST_SECONDS, GracefulStop

PATIENCE = 4 * MOST_SECONDS


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time that passes only when a test says so."""
    now = [100.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
    yield now
    monkeypatch.setattr(stopping.time, "monotonic", time.monotonic)


class Machines:
    """Launchers whose notes reach each other at once, by way of machine 0, unless one is gone."""

    def __init__(self, rounds):
        """`rounds`: for each machine the rounds that its nodes have announced."""
        self.gone = set()
        self.beacons, self.all = [], []
        for machine, announced in enumerate(rounds):
            beacons = HeartbeatBoard(range(len(announced)))
            for rank, round in enumerate(announced):
                beacons.of(rank).mark(round, Activity.TRAIN)
            self.beacons.append(beacons)
            there = set(range(len(rounds)))
            self.all.append(GracefulStop(beacons, machine, there, self.sender(machine), PATIENCE))

    def sender(self, machine):
        def send(note, to):
            targets = [0] if machine else [m for m in range(1, len(self.all)) if to in (None, m)]
            for target in targets:
                if not {machine, target} & self.gone:
                    self.all[target].take(note)

        return send

    def advance(self):
        for machine in self.all:
            machine.advance()

    @property
    def last_rounds(self):
        return [beacons.last_round for beacons in self.beacons]


def test_nothing_happens_before_somebody_asks():
    machines = Machines([[4], [5]])
    machines.advance()
    assert machines.last_rounds == [GO_ON, GO_ON]
    assert machines.all[0].signal is None


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_all_machines_stop_after_the_highest_round_that_any_node_has_begun(clock, asked):
    machines = Machines([[4, 5], [7, 3], [6]])
    machines.all[asked].ask(signal.SIGINT)
    assert machines.last_rounds[asked] == UNDECIDED
    for _ in range(8):
        clock[0] += 0.1
        machines.advance()
    assert machines.last_rounds == [7, 7, 7]
    assert {machine.signal for machine in machines.all} == {signal.SIGINT}


def test_a_node_that_was_about_to_begin_is_counted(clock):
    """Nothing is read before every node has either announced its round or seen that it must wait."""
    machines = Machines([[4, 5]])
    machines.all[0].ask(signal.SIGTERM)
    machines.advance()
    assert machines.last_rounds == [UNDECIDED]
    machines.beacons[0].of(1).mark(6, Activity.BEGIN)
    clock[0] += 2 * stopping.SETTLING
    machines.advance()
    assert machines.last_rounds == [6]


def test_machine_0_does_not_wait_for_ever_for_another(clock):
    machines = Machines([[4], [9], [6]])
    machines.gone = {1}
    machines.all[0].ask(signal.SIGTERM)
    for _ in range(8):
        clock[0] += stopping.MACHINES_PATIENCE / 6
        machines.advance()
    assert machines.last_rounds == [6, GO_ON, 6]


def test_without_machine_0_a_machine_decides_for_its_own_nodes(clock):
    machines = Machines([[4], [9, 8]])
    machines.gone = {0}
    machines.all[1].ask(signal.SIGTERM)
    clock[0] += 1.0
    machines.advance()
    assert machines.last_rounds == [GO_ON, UNDECIDED]
    clock[0] += stopping.DECISION_PATIENCE
    machines.advance()
    assert machines.last_rounds == [GO_ON, 9]


def test_who_was_asked_before_machine_0_lets_it_decide_while_a_third_is_silent(clock):
    """Else its nodes would end after a round of its own, and machine 0 name a later one."""
    machines = Machines([[6], [4], [5], [9]])
    machines.gone = {3}
    machines.all[1].ask(signal.SIGTERM)
    for _ in range(40):
        clock[0] += stopping.MACHINES_PATIENCE / 30
        machines.advance()
        assert set(machines.last_rounds[:3]) <= {GO_ON, UNDECIDED, 6}
    assert machines.last_rounds == [6, 6, 6, GO_ON]


def test_a_machine_that_was_not_counted_on_learns_with_what_the_run_was_stopped(clock):
    """It was silent and is heard again; else it would take its nodes for failed."""
    machines = Machines([[4], [6]])
    machines.all[0]._machines = {0}
    machines.all[0].ask(signal.SIGTERM)
    clock[0] += 2 * stopping.SETTLING
    machines.advance()
    assert machines.last_rounds == [4, 4]
    assert machines.all[1].signal is signal.SIGTERM


def test_a_machine_that_missed_the_decision_hears_it_again():
    said = []
    beacons = HeartbeatBoard([0])
    beacons.of(0).mark(3, Activity.TRAIN)
    zero = GracefulStop(beacons, 0, {0}, lambda note, to: said.append((note, to)), PATIENCE)
    zero.take(LastRound(8))
    zero.take(HighestRound(2, 5))
    assert said == [(LastRound(8), 2)]


def test_a_word_from_elsewhere_names_the_signal():
    zero = GracefulStop(HeartbeatBoard([0]), 0, {0}, lambda note, to: None, PATIENCE)
    zero.take(StopRequest(1, 9))
    assert zero.signal is signal.SIGTERM
    one = GracefulStop(HeartbeatBoard([0]), 1, {0, 1}, lambda note, to: None, PATIENCE)
    one.take(Pause(int(signal.SIGINT)))
    assert one.signal is signal.SIGINT
    two = GracefulStop(HeartbeatBoard([0]), 2, {0, 2}, lambda note, to: None, PATIENCE)
    two.take(Pause(int(signal.SIGHUP)))
    assert two.signal is signal.SIGHUP


def overdue_after(clock, stop, at_work, mark=lambda: None):
    """For how many seconds nodes are let be, to half of one; `mark` is done in each of these."""
    asked = clock[0]
    while not stop.is_overdue(at_work):
        clock[0] += 0.5
        mark()
        assert clock[0] < asked + 2 * PATIENCE
    return clock[0] - asked


@pytest.fixture
def machines():
    """Nodes of two machines, which are at work."""
    return Machines([[4, 5], [5, 5]])


@pytest.fixture
def alone():
    """Both nodes of a machine, in round 4."""
    alone = Machines([[4, 4]])
    alone.all[0].ask(signal.SIGTERM)
    return alone


def test_nobody_is_overdue_before_somebody_asks(clock):
    assert not Machines([[4]]).all[0].is_overdue([0])


SAVED = [(7, 2)]
UNSAVED = [(None, 0), (None, 9), (7, 0)]
"""After which round all were saved last, and every how many rounds: before the first checkpoint, or in a run
that went on."""


@pytest.mark.parametrize(("saved", "every"), SAVED)
def test_nodes_that_are_saved_now_and_then_have_little_time(clock, alone, saved, every):
    stop, mark = alone.all[0], alone.beacons[0].of(1).beat
    text = stop.begin(saved, every)
    assert "nodes that need more than 10 s for it, and are not being saved, are killed," in text
    assert text.endswith("at a second signal: then the run can go on from round 9")
    assert overdue_after(clock, stop, [0, 1], mark) == MOST_SECONDS + 0.5


@pytest.mark.parametrize(("saved", "every"), UNSAVED)
def test_where_a_kill_would_cost_much_nodes_that_get_on_are_waited_for(clock, alone, saved, every):
    stop, mark = alone.all[0], alone.beacons[0].of(1).beat
    text = stop.begin(saved, every)
    assert "nodes that hang, or need more than 40 s, are killed, as all are at a second signal:" in text
    assert text.endswith("cannot go on" if saved is None else "can go on from round 9")
    assert overdue_after(clock, stop, [0, 1], mark) == PATIENCE + 0.5


@pytest.mark.parametrize(("saved", "every"), UNSAVED)
def test_nodes_that_get_on_with_nothing_are_not_waited_for(clock, alone, saved, every):
    stop = alone.all[0]
    stop.begin(saved, every)
    clock[0] += 4.0
    alone.beacons[0].of(1).beat()
    assert overdue_after(clock, stop, [0, 1]) == MOST_SECONDS + 0.5


@pytest.mark.parametrize(("saved", "every"), [*SAVED, *UNSAVED])
def test_nodes_that_are_being_saved_are_waited_for(clock, alone, saved, every):
    stop, beacons = alone.all[0], alone.beacons[0]
    stop.begin(saved, every)
    beacons.of(1).mark(4, Activity.CHECKPOINT)
    clock[0] += 2 * MOST_SECONDS
    assert not stop.is_overdue([0, 1])
    assert stop.is_overdue([0]), "it died meanwhile"
    clock[0] += PATIENCE
    assert stop.is_overdue([0, 1])


def test_what_a_node_that_is_tested_does_is_not_seen(clock, alone):
    alone.all[0].begin(None, 0)
    alone.beacons[0].of(1).mark(4, Activity.EVALUATE)
    assert overdue_after(clock, alone.all[0], [0, 1]) == PATIENCE + 0.5


@pytest.mark.parametrize(("saved", "every"), [*SAVED, *UNSAVED])
def test_processes_have_time_after_their_nodes_have_ended(clock, alone, saved, every):
    """However late that was: what the nodes have sent may be on its way."""
    stop, beacons = alone.all[0], alone.beacons[0]
    stop.begin(saved, every)
    clock[0] += 2 * MOST_SECONDS
    beacons.of(1).mark(4, Activity.END)
    assert overdue_after(clock, stop, []) == MOST_SECONDS + 0.5


def test_of_other_machines_nobody_sees_whether_they_get_on(clock, machines):
    machines.all[0].ask(signal.SIGTERM)
    clock[0] += 0.2
    for stop in machines.all:
        stop.advance()
        stop.begin(None, 0)
    clock[0] += 2 * MOST_SECONDS
    assert not machines.all[0].is_overdue([0, 1, 2, 3])
    assert not machines.all[1].is_overdue([0, 1])
    clock[0] += PATIENCE
    assert machines.all[0].is_overdue([0, 1, 2, 3])
    assert machines.all[1].is_overdue([0, 1])


@pytest.mark.parametrize(("saved", "every"), [*SAVED, *UNSAVED])
def test_machine_0_leaves_it_to_others_how_long_their_nodes_have(clock, machines, saved, every):
    """Its own have ended; what becomes of the others it is told, unless they fall silent."""
    stop = machines.all[0]
    stop.ask(signal.SIGTERM)
    stop.begin(saved, every)
    assert overdue_after(clock, stop, [2, 3]) == PATIENCE + 0.5
