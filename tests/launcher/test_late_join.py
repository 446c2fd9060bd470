"""What a launcher answers to machines that come after the start, and to who wants a node back."""

import time
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct

from decentnode.communication.launcher_link.reports import Exited, Failed, Finished, Restarted
from decentnode.config.consistency import why_not_taken_back
from decentnode.core.registry import SHARINGS
from decentnode.core.timeouts import Timeouts
from decentnode.errors import RunFailed
from decentnode.launcher.cluster.late_join import LateJoin
from decentnode.launcher.recovery.restarts import Restarts
from decentnode.launcher.state.membership import MembershipTable
from decentnode.launcher.state.messages import Join, Presence, Start
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.experiment import Experiment
from tests.integration.running import QUICKSTART
from tests.support.reported import report_to

MACHINES = "mapping.machines=[{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 1}, "
MACHINES += "{address: 127.0.0.3, nodes: 3}]"
FINISHED = {"digest": "", "bytes_sent": 0, "bytes_received": 0, "memory_mb": 0.0}


class Recorded:
    """Stands for the rendezvous and the fork server: admits everybody who is not objected to."""

    def __init__(self):
        self.admitted, self.objections, self.waiting, self.started, self.lines = [], [], [], [], []

    def admit(self, join, start, objection, waits):
        if objection:
            (self.waiting if waits else self.objections).append(objection)
        else:
            self.admitted.append(start)

    def log(self, kind, text, rank):
        self.lines.append(text)

    def restart(self, position, incarnation):
        self.started.append((position, incarnation))


@pytest.fixture(scope="module")
def experiment():
    return Experiment.from_yaml(QUICKSTART, ["graph=ring", "graph.nodes=6", MACHINES])


class IdleLauncher:
    def __init__(self, experiment, directory, machine=0):
        self.membership = MembershipTable(range(6), {i: (i,) for i in range(6)})
        self.membership.start()
        self.recorded, self.is_stopping = Recorded(), False
        self.identity = RunIdentity(directory, "", 6)
        reason = why_not_taken_back(experiment.settings.sharing.make(), experiment.samples.gradient_sync)
        shared = {
            "machine": machine,
            "mapping": experiment.mapping,
            "membership": self.membership,
            "is_stopping": lambda: self.is_stopping,
            "why_not_taken_back": reason,
        }
        self.late = LateJoin(
            **shared,
            failures=experiment.settings.failures,
            rendezvous=self.recorded,
            run_seconds=lambda: self.identity.seconds,
        )
        self.restarts = Restarts(
            **shared,
            processes=experiment.processes,
            event_log=self.recorded,
            identity=self.identity,
            attempts=experiment.settings.failures.restart.attempts,
            server=self.recorded,
        )

    def take(self, *reports):
        report_to(self.membership, *reports, parts=[self.restarts])

    def refusal(self, argument):
        with pytest.raises(RunFailed) as caught:
            self.restarts.restart(argument)
        return str(caught.value)


def present(*machines):
    """Machines that are here from the start."""
    return dict.fromkeys(machines, Presence())


@pytest.fixture
def idle(experiment, tmp_path):
    return IdleLauncher(experiment, tmp_path)


def test_a_machine_is_admitted_as_the_last_of_those_that_are_here(idle):
    idle.take(*(Failed(rank, "has not come yet") for rank in (3, 4, 5)))
    idle.late.answer(join(2), present(0, 1))
    (start,) = idle.recorded.admitted
    assert (start.late, start.absent, start.machine) == (1, [], 0)
    assert start.presences == present(0, 1) | {2: Presence(1, 1)}


def test_a_machine_that_comes_again_goes_to_the_end_of_the_line(idle):
    others = present(0) | {2: Presence(1, 3)}
    idle.late.answer(join(1), others | {1: Presence(2, 2)})
    (start,) = idle.recorded.admitted
    assert start.late == 3 and start.presences == others | {1: Presence(3, 4)}


def test_machines_that_come_at_the_same_time_have_an_order(idle):
    """Regression: each took itself for the last one, and two machines decided for all."""
    for machine in (2, 1):
        idle.late.answer(join(machine), present(0))
    orders = [
        start.presences[machine].order for machine, start in zip((2, 1), idle.recorded.admitted, strict=True)
    ]
    assert orders == [1, 2]


def test_a_machine_may_come_a_limited_number_of_times(idle):
    idle.late.answer(join(2), {0: Presence(), 2: Presence(15, 15)})
    assert idle.recorded.objections == ["machine 2 has joined 15 times, the limit"]


def test_another_machine_than_machine_0_admits_it(experiment, tmp_path):
    idle = IdleLauncher(experiment, tmp_path, machine=1)
    idle.take(Failed(0, "gone"), Failed(1, "gone"))
    idle.late.answer(join(2), present(0, 1, 2))
    (start,) = idle.recorded.admitted
    assert (start.machine, start.absent) == (1, [0])


def test_others_that_are_not_here_are_named(idle):
    idle.take(Failed(2, "gone"))
    idle.late.answer(join(2), present(0, 1))
    assert [start.absent for start in idle.recorded.admitted] == [[1]]


def test_a_machine_that_is_merely_silent_is_not_named_as_absent_before_it_counts_as_gone(idle, monkeypatch):
    idle.membership.members[2].silent_since = time.monotonic()
    idle.take(Failed(2, "machine 1 fell silent"))
    idle.late.answer(join(2), present(0, 1))
    assert idle.recorded.admitted[0].absent == [], "its nodes may run on, and are to be connected to"
    monkeypatch.setattr(Timeouts, "machine_lost", -1.0)
    idle.late.answer(join(2), present(0, 1))
    assert idle.recorded.admitted[1].absent == [1]


def test_who_cannot_take_part_any_more_learns_why(idle, experiment, tmp_path):
    idle.is_stopping = True
    idle.late.answer(join(2), present(0))
    idle.late.answer(replace_struct(join(2), or_resume=True), present(0))
    idle.is_stopping = False
    idle.take(*(Finished(rank, 10, **FINISHED) for rank in (3, 4, 5)))
    idle.late.answer(join(2), present(0))
    d2 = experiment.settings.sharing
    strict = replace(experiment, settings=replace(experiment.settings, sharing=other_scheme(d2)))
    other = IdleLauncher(strict, tmp_path)
    other.late.answer(join(2), present(0))
    assert idle.recorded.objections == ["the run was asked to stop", "machine 2 has finished"]
    assert idle.recorded.waiting == ["the run was asked to stop"], "the next run is its own, too"
    assert other.recorded.objections == ["d2 does not let lost nodes rejoin"]


def test_a_late_machine_begins_as_nodes_do_that_were_restarted(experiment, tmp_path):
    idle = IdleLauncher(experiment, tmp_path, machine=2)
    idle.restarts.begin(Start(7, absent=[1], late=3), idle.recorded)
    assert idle.recorded.started == [(3, 48), (4, 48), (5, 48)]
    assert [member.restarts for member in idle.membership.members.values()] == [0, 0, 0, 3, 3, 3]
    idle.take(Exited(4, -9))
    assert idle.restarts.restart("4") == "rank 4: started again"
    assert idle.recorded.started[-1] == (4, 49)


def test_a_node_is_only_restarted_where_that_makes_sense(idle):
    assert idle.refusal("0") == "rank 0 is running"
    assert idle.refusal("9") == "restart: must be a rank, 0..5, not '9'"
    assert idle.refusal("4") == "rank 4 is on machine 2 (127.0.0.3); run the command there"
    idle.take(Finished(1, 10, **FINISHED), Exited(0, -9))
    assert idle.refusal("1") == "rank 1 has finished"
    for times in range(1, 16):
        assert idle.restarts.restart("0") == "rank 0: started again"
        assert idle.recorded.started[-1] == (0, times)
        idle.take(Restarted(0, None, times), Exited(0, -9))
    assert idle.refusal("0") == "rank 0 was started again 15 times, the limit"
    idle.is_stopping = True
    assert idle.refusal("0").startswith("no node is started again before the first round")


def join(machine):
    return Join(machine, "", "", "")


def other_scheme(plugin):
    return replace(plugin, name="d2", cls=SHARINGS.find("d2"), options={})
