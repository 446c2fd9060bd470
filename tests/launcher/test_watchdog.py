"""Who waits for whom, and who hangs: judged from heartbeats alone, on a clock of our own."""

import time
from types import SimpleNamespace

import pytest

from decentnode.communication.launcher_link.heartbeats import (
    UNDECIDED,
    Activity,
    HeartbeatBoard,
    HeartbeatSlot,
)
from decentnode.communication.launcher_link.reports import RoundProgress, Stuck, Waiting
from decentnode.config.settings import FailureSettings
from decentnode.launcher.monitoring import watchdog as module
from decentnode.launcher.monitoring.stragglers import StragglerTracker
from decentnode.launcher.monitoring.watchdog import Watchdog, thread_state
from decentnode.launcher.state.membership import MembershipTable
from tests.support.reported import report_to

TRAIN, SEND, RECEIVE, MIX, EVALUATE = (
    Activity.TRAIN, Activity.SEND, Activity.RECEIVE, Activity.MIX, Activity.EVALUATE,
)  # fmt: skip
DEADLINE = 10.0


class Machine:
    """Eight nodes in a ring, of which some are here, each in a process of its own."""

    def __init__(self, monkeypatch, here=range(8), nodes_per_process=1, **failures):
        self.now = 1000.0
        self.states = {}
        # One clock for the heartbeats and for the watchdog.
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "thread_state", lambda pid: self.states.get(pid, "S"))
        self.heartbeats, n = HeartbeatBoard(list(here)), nodes_per_process
        self.membership = MembershipTable(
            range(8), {i: tuple(range(i * n, i * n + n)) for i in range(8 // n)}, here, self.heartbeats
        )
        self.membership.pids = {position: position for position in range(8 // n)}
        self.membership.start()
        failures = {"deadline": DEADLINE, "start_deadline": 5.0} | failures
        self.watchdog = Watchdog(self.heartbeats, self.membership, FailureSettings(**failures).timeouts)
        self.found = []
        self.check()

    def mark(self, round, activity, *ranks):
        for rank in ranks:
            self.heartbeats.of(rank).mark(round, activity)

    def wait(self, round, peers, *ranks):
        """`peers` are those that the ranks wait for, relative to each, as their mailboxes would tell."""
        self.mark(round, RECEIVE, *ranks)
        for rank in ranks:
            self.heartbeats.of(rank).wait_for({(rank + step) % 8 for step in peers})

    def check(self, seconds=0.5):
        self.now += seconds
        self.found += self.watchdog.check(self.now)

    def pass_time(self, seconds, busy=()):
        """Half a second after the other; the `busy` ranks make a step in each."""
        for _ in range(int(seconds / 0.5)):
            for rank in busy:
                self.heartbeats.of(rank).beat()
            self.check()

    def stuck(self):
        return {report.rank for report in self.found if isinstance(report, Stuck)}

    def waits(self):
        return {report.rank: report.peers for report in self.found if isinstance(report, Waiting)}


def hold_up(machine, round, rank):
    """All wait for this rank or for one that does: in a ring each is a round ahead of the next."""
    machine.mark(round, TRAIN, rank)
    wait_for(machine, round, rank)


def wait_for(machine, round, rank):
    for step in range(1, 5):
        machine.wait(round + step - 1, [-1], (rank + step) % 8)
        machine.wait(round + step - 1, [-1, 1] if step == 4 else [1], (rank - step) % 8)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_who_waits_is_reported_with_whom_it_waits_for(machine):
    hold_up(machine, 4, 3)
    machine.mark(3, EVALUATE, 4)
    machine.wait(4, [-1], 5)
    machine.pass_time(600, busy=[3, 4])
    assert machine.waits() == {2: [3], 1: [2], 0: [1], 7: [0, 6], 6: [5], 5: [4]}
    waiting = next(report for report in reversed(machine.found) if report.rank == 2)
    assert (waiting.round, waiting.why) == (4, "training for 0 s")
    assert waiting.seconds == pytest.approx(599.5, abs=1.5)
    assert machine.stuck() == set()


def test_a_wait_that_is_usual_is_not_reported(machine):
    for round in range(5):
        machine.mark(round, RECEIVE, *range(8))
        machine.mark(round, TRAIN, *range(8))
        machine.pass_time(20, busy=range(8))
    machine.wait(4, [-1, 1], 2)
    machine.pass_time(30, busy=[3])
    assert machine.waits() == {}
    machine.pass_time(20, busy=[3])
    assert machine.waits() == {2: [1, 3]}


def test_what_is_usual_in_a_run_that_continues_is_judged_by_the_rounds_since_then(machine):
    for round in range(900, 903):
        machine.mark(round, TRAIN, *range(8))
        machine.pass_time(10, busy=range(8))
    machine.wait(902, [1], *(rank for rank in range(8) if rank != 3))
    machine.pass_time(15, busy=[3])
    assert machine.waits() == {}, "a round takes ten seconds"
    machine.pass_time(8, busy=[3])
    assert machine.waits()[2] == [3]


def test_a_node_that_rejoins_into_an_earlier_round_waits_there_as_any_other(machine):
    machine.mark(9, RECEIVE, 2)
    machine.check()
    machine.wait(8, [-1, 1], 2)
    machine.mark(8, TRAIN, 1, 3)
    machine.pass_time(30, busy=[1, 3])
    assert machine.waits()[2] == [1, 3]


def test_nodes_that_hang_in_training_are_reported_and_after_twice_that_killed(machine):
    machine.mark(0, TRAIN, *range(8))
    machine.pass_time(DEADLINE - 1)
    assert machine.stuck() == set()
    machine.pass_time(1.5)
    assert machine.stuck() == set(range(8))
    machine.pass_time(DEADLINE - 1)
    assert machine.watchdog.hung(machine.now) == {}
    machine.pass_time(1)
    assert [*machine.watchdog.hung(machine.now)] == list(range(8))


def test_a_slow_disk_has_the_time_that_the_checkpoints_of_a_machine_may_take(monkeypatch):
    """Whatever is saved in one piece, and however many nodes share the disk."""
    machine = Machine(monkeypatch)
    machine.watchdog._saved_bytes = 1_000_000_000  # 100 s at 10 MB/s
    machine.mark(0, Activity.CHECKPOINT, 0)
    machine.mark(0, TRAIN, *range(1, 8))
    machine.pass_time(DEADLINE + 98)
    assert machine.stuck() == set(range(1, 8))
    machine.pass_time(3)
    assert machine.stuck() == set(range(8))


def test_a_process_that_was_restarted_is_not_ended_for_the_one_before(machine):
    machine.mark(0, TRAIN, *range(8))
    machine.pass_time(2 * DEADLINE + 1.5)
    machine.watchdog.check_soon()
    machine.watchdog.restart(3)
    assert [*machine.watchdog.hung(machine.now)] == [0, 1, 2, 4, 5, 6, 7]
    machine.pass_time(DEADLINE - 1)
    assert not machine.watchdog.is_stuck(3)
    machine.pass_time(2.5)
    assert machine.watchdog.is_stuck(3)


def test_a_slow_trainer_whose_steps_continue_is_never_stuck(machine):
    hold_up(machine, 0, 3)
    for _ in range(200):
        machine.pass_time(DEADLINE - 1)
        machine.heartbeats.of(3).beat()
        machine.check()
    assert machine.stuck() == set()
    assert machine.watchdog.hung(machine.now) == {}


def test_five_times_the_longest_silence_is_granted(machine):
    machine.mark(0, TRAIN, *range(8))
    machine.pass_time(DEADLINE - 1)
    machine.mark(1, TRAIN, *range(8))
    machine.pass_time(5 * (DEADLINE - 2))
    assert machine.stuck() == set()
    machine.pass_time(DEADLINE)
    assert machine.stuck() == set(range(8))


def test_time_spent_waiting_for_others_grants_nothing(machine):
    machine.wait(0, [1], 2)
    machine.mark(0, TRAIN, 3)
    machine.pass_time(500, busy=[0, 1, 3, 4, 5, 6, 7])
    machine.mark(1, TRAIN, 2)
    machine.pass_time(DEADLINE + 1, busy=[0, 1, 3, 4, 5, 6, 7])
    assert machine.stuck() == {2}


def test_a_node_that_hangs_is_killed_whatever_the_others_do(machine):
    machine.mark(3, TRAIN, *range(8))
    others = [rank for rank in range(8) if rank != 3]
    machine.pass_time(2 * DEADLINE - 1, busy=others)
    assert machine.stuck() == {3} and machine.watchdog.hung(machine.now) == {}
    machine.pass_time(1.5, busy=others)
    assert [*machine.watchdog.hung(machine.now)] == [3]


def test_those_that_wait_for_the_stuck_are_not(machine):
    hold_up(machine, 3, 3)
    machine.pass_time(2 * DEADLINE + 1)
    assert machine.stuck() == {3}
    assert [*machine.watchdog.hung(machine.now)] == [3]


def test_time_spent_waiting_does_not_count_once_nobody_is_behind(machine):
    hold_up(machine, 3, 3)
    machine.pass_time(50 * DEADLINE, busy=[3])
    machine.mark(9, RECEIVE, 3)
    machine.pass_time(DEADLINE - 3)
    assert machine.stuck() == set()


def test_a_stopped_process_is_stuck_although_its_node_waits(machine):
    machine.mark(3, RECEIVE, 3)
    machine.mark(3, TRAIN, 0, 1, 2, 4, 5, 6, 7)
    machine.states[3] = "T"
    machine.pass_time(DEADLINE + 1, busy=[0, 1, 2, 4, 5, 6, 7])
    assert machine.stuck() == {3}
    assert [report.doing for report in machine.found if isinstance(report, Stuck)] == ["suspended"]
    assert 3 not in machine.waits()


def test_time_in_which_the_launcher_stood_still_counts_for_nobody(machine):
    machine.mark(0, TRAIN, *range(8))
    for _ in range(3):
        machine.check(60.0)
    assert machine.stuck() == set()
    machine.pass_time(DEADLINE)
    assert machine.stuck() == set(range(8))


def test_getting_ready_and_deciding_where_to_stop_take_their_time(machine):
    machine.pass_time(DEADLINE + 4)
    assert machine.stuck() == set()
    machine.pass_time(3)
    assert machine.stuck() == set(range(8))


def test_nobody_is_stuck_while_the_last_round_is_undecided(machine):
    machine.heartbeats.last_round = UNDECIDED
    machine.mark(5, Activity.BEGIN, *range(8))
    machine.pass_time(100 * DEADLINE)
    assert machine.stuck() == set()


def test_a_circle_of_waiting_nodes_does_not_last_for_ever(machine):
    machine.wait(5, [-1, 1], *range(8))
    machine.pass_time(DEADLINE - 0.5)
    assert machine.stuck() == set()
    machine.pass_time(DEADLINE + 1)
    assert [*machine.watchdog.hung(machine.now)] == list(range(8))


def test_whoever_waits_for_another_machine_is_not_stuck_until_that_is_there(monkeypatch):
    machine = Machine(monkeypatch, here=range(4))
    machine.wait(5, [1], 3)
    machine.mark(5, TRAIN, 0, 1, 2)
    report_to(machine.membership, RoundProgress(4, 2, None, 0))
    machine.pass_time(3 * DEADLINE, busy=[0, 2])
    assert machine.stuck() == {1}
    assert machine.waits()[3] == [4]
    report_to(machine.membership, RoundProgress(4, 5, None, 0))
    machine.pass_time(DEADLINE + 1, busy=[0, 2])
    assert machine.stuck() == {1, 3}


def test_whom_a_node_waits_for_is_what_it_says_those_behind_it_first(machine):
    machine.wait(5, [-3, -1, 1], 3)
    machine.mark(5, EVALUATE, 0, 2)
    for round, activity, waited_for in [
        (4, RECEIVE, [4, 0, 2]), (5, TRAIN, [4, 0, 2]), (5, RECEIVE, [0, 2, 4]), (6, TRAIN, [0, 2, 4]),
    ]:  # fmt: skip
        machine.mark(round, activity, 4)
        assert machine.watchdog.waits_for(3) == waited_for
    machine.mark(5, MIX, 3)
    assert machine.watchdog.waits_for(3) == []


def test_in_a_collective_operation_a_node_waits_for_all_that_are_behind(machine):
    machine.mark(5, RECEIVE, *range(6))
    machine.mark(5, TRAIN, 6)
    machine.mark(6, TRAIN, 7)
    assert machine.watchdog.waits_for(0) == [], "the others may be its neighbors or not"
    machine.check()
    assert [machine.watchdog.waits_for(rank) for rank in (0, 6)] == [[6], []]


def test_the_state_of_a_process():
    import os

    assert thread_state(os.getpid()) == "R"
    assert thread_state(None) == thread_state(2**22 + 1) == ""


def shown_lines(waits, now):
    """Rank, round, peer and text of each line."""
    lines = []
    waits.report(SimpleNamespace(log=lambda kind, text, *where: lines.append((*where, text))), now)
    return lines


def test_lines_name_whoever_holds_the_others_up():
    waits = StragglerTracker()
    waits.take(Waiting(3, 39, [7], 12.0, "training for 12 s"), 100.0)
    waits.take(Waiting(5, 39, [7], 12.4, "training for 12 s"), 100.0)
    for rank, peer in [(1, 3), (2, 1), (9, 5)]:
        waits.take(Waiting(rank, 38, [peer], 11.0, "waits for 12 s"), 100.0)
    assert shown_lines(waits, 100.0) == [(
        5, 39, 7,
        "ranks 5, 3, 1 and 2 others waiting for 12 s in round 40, for rank 7 (rank 7: training for 12 s)",
    )]  # fmt: skip
    assert shown_lines(waits, 103.0) == []
    waits.take(Waiting(3, 39, [7], 22.5, "training for 23 s"), 110.5)
    assert [text for *_, text in shown_lines(waits, 110.5)] == [
        "rank 3 waiting for 22 s in round 40, for rank 7 (rank 7: training for 23 s)"
    ]
    assert shown_lines(waits, 200.0) == []
    assert waits.totals == {(3, 7): 22, (5, 7): 12, (1, 3): 11, (2, 1): 11, (9, 5): 11}


def test_somebody_whom_nobody_sees_here_is_named_late():
    """Of nodes of another machine it is not known whether they wait themselves, until its launcher tells."""
    waits = StragglerTracker()
    for second in range(2):
        waits.take(Waiting(1, 12, [8, 9], 2.0 + second, ""), 100.0 + second)
        assert shown_lines(waits, 100.0 + second) == []
    waits.take(Waiting(8, 12, [9], 3.0, "training for 4 s"), 101.5)
    assert [text for *_, text in shown_lines(waits, 101.5)] == [
        "ranks 1 and 8 waiting for 3 s in round 13, for rank 9 (rank 9: training for 4 s)"
    ]
    for second in range(9, 12):
        waits.take(Waiting(2, 40, [14, 15], second, ""), 200.0 + second)
        waits.take(Waiting(3, 40, [16], second, ""), 200.0 + second)
        texts = [text for *_, text in shown_lines(waits, 200.0 + second)]
    assert texts == ["ranks 2 and 3 waiting for 11 s in round 41, for ranks 14, 15 and 16"]
    assert waits.totals == {(1, 8): 3, (8, 9): 3, (2, 14): 11, (3, 16): 11}


class Lines:
    """An event log that keeps what it is to show."""

    def __init__(self):
        self.texts = []

    def log(self, kind, text, *about):
        assert kind == "waiting"
        self.texts.append(text)


def test_five_stragglers_are_named_in_ten_seconds_and_the_others_counted():
    waits, lines = StragglerTracker(), Lines()
    for now in range(10):
        # Five more stragglers each second; four nodes wait for one of them, a single one for each other.
        for rank in range(100 + 5 * now, 105 + 5 * now):
            waits.take(Waiting(rank, 3, [rank + 200], 2.0, "training for 2 s", 3.0), now)
        waits.take(Waiting(90, 3, [300], 2.0, "training for 2 s", 3.0), now)
        waits.report(lines, float(now))
    assert [text.partition(", for ")[2].split(" (")[0] for text in lines.texts] == [
        "rank 300", "rank 301", "rank 302", "rank 303", "rank 304", ""
    ]  # fmt: skip
    assert lines.texts[-1] == "5 other nodes are waited for, too"
    waits.take(Waiting(90, 3, [300], 2.0, "training for 2 s", 3.0), 10.5)
    waits.report(lines, 11.5)
    assert lines.texts[6].startswith("rank 90 waiting")
    assert lines.texts[7:] == ["40 other nodes are waited for, too"]


def test_nodes_that_share_a_process_are_no_stragglers_until_it_stands_still(monkeypatch):
    machine = Machine(monkeypatch, nodes_per_process=4)
    machine.mark(0, TRAIN, 0)
    wait_for(machine, 0, 0)
    machine.pass_time(8.0, busy=[1])
    assert machine.waits() == {}
    machine.pass_time(8.0)
    assert machine.waits()[7] == [0]


def test_nothing_lasts_less_than_no_time(machine):
    machine.mark(0, EVALUATE, 3)
    assert machine.watchdog.doing(3, machine.now - 6.0) == "evaluating for 0 s"


def test_a_circle_has_no_cause_and_is_no_endless_search():
    waits = StragglerTracker()
    waits.take(Waiting(1, 0, [2], 5.0), 1.0)
    waits.take(Waiting(2, 0, [1], 5.0), 1.0)
    assert shown_lines(waits, 1.0) == []


def test_while_all_wait_looks_become_rare_and_a_process_that_hangs_is_found_no_later(machine):
    hold_up(machine, 4, 3)
    looks = []
    while machine.now < 1000.0 + DEADLINE + 2.0:
        machine.now = max(machine.now, machine.watchdog.next_check)
        looks.append(machine.now - 1000.0)
        reports = machine.watchdog.check(machine.now)
        if any(isinstance(report, Stuck) for report in reports):
            break
    assert len(looks) < 15
    assert looks[-1] <= DEADLINE + 1.5
    assert [report.rank for report in reports if isinstance(report, Stuck)] == [3]


def test_looks_are_frequent_again_as_soon_as_some_node_says_something(monkeypatch):
    machine = Machine(monkeypatch, deadline=1000.0)
    hold_up(machine, 4, 3)
    for _ in range(12):
        machine.now = max(machine.now, machine.watchdog.next_check)
        machine.watchdog.check(machine.now)
    assert machine.watchdog.next_check - machine.now > 10.0
    machine.watchdog.check_soon()
    assert machine.watchdog.next_check == machine.now + module.CHECK_INTERVAL


def test_a_wait_continues_until_its_round_is_done_and_counts_to_its_end():
    waits = StragglerTracker()
    waits.take(Waiting(3, 39, [7], 12.0, "training for 12 s", lasts=40.0), 100.0)
    assert waits.current(130.0).keys() == {3}
    waits.end(3, 38, 131.0)
    waits.end(3, 39, 132.0)
    assert waits.current(132.0) == {}
    assert waits.totals == {(3, 7): 44}


def test_whom_hundreds_of_nodes_wait_for_is_found_in_one_pass(monkeypatch):
    """Nodes that share a loop do not say for whom they wait; all that wait in a round wait for the same."""
    n, reads, read = 500, [], HeartbeatSlot.read
    heartbeats = HeartbeatBoard(range(n))
    membership = MembershipTable(range(n), {0: tuple(range(n))}, heartbeats=heartbeats)
    membership.start()
    watchdog = Watchdog(heartbeats, membership, FailureSettings().timeouts)
    for rank in range(n - 1):
        heartbeats.of(rank).mark(5, RECEIVE)
    heartbeats.of(n - 1).mark(4, TRAIN)
    later = time.monotonic() + 1.0
    watchdog.check(later)
    monkeypatch.setattr(time, "monotonic", lambda: later)
    monkeypatch.setattr(HeartbeatSlot, "read", lambda slot: (reads.append(slot), read(slot))[1])
    behind = {}
    assert all(watchdog.waits_for(rank, behind) == [n - 1] for rank in range(n - 1))
    assert len(reads) < 3 * n
