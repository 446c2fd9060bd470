"""What a launcher answers to machines that come after the start, and to who wants a node back."""

import time
from dataclasses import replace

import pytest

from decentnode.communication.launcher_link.reports import Exited, Failed, Finished, Restarted
from decentnode.config.consistency import why_not_taken_back
from decentnode.core.registry import SHARINGS
from decentnode.core.timeouts import Timeouts
from decentnode.errors import RunFailed
from decentnode.launcher.cluster.late_join import LateJoin
from decentnode.launcher.recovery.restarts import Restarts
from decentnode.launcher.state.membership import MembershipTable
from decentnode.launcher.state.messages import Join, RelayedReports, Start
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.experiment import Experiment
from tests.integration.running import QUICKSTART
from tests.support.reported import report_to

MACHINES = "mapping.machines=[{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 1}, "
MACHINES += "{address: 127.0.0.3, nodes: 3}]"
FINISHED = {"digest": "", "bytes_sent": 0, "bytes_received": 0, "memory_mb": 0.0}


class Recorded:
    """Stands for the assembly and the fork server: admits everybody who is not objected to."""

    def __init__(self):
        self.sent, self.admitted, self.objections, self.started, self.lines = [], [], [], [], []

    def is_newcomer(self, machine):
        return machine != 1

    def admit(self, join, late, absent, objection, seconds):
        self.objections.append(objection)
        if not objection:
            self.admitted.append((join.machine, late, absent))
        return not objection

    def log(self, kind, text, rank):
        self.lines.append(text)

    def send(self, note, to=None):
        self.sent.append((note, to))

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
            "processes": experiment.processes,
            "membership": self.membership,
            "is_stopping": lambda: self.is_stopping,
            "why_not_taken_back": reason,
        }
        self.late = LateJoin(**shared, rendezvous=self.recorded, run_seconds=lambda: self.identity.seconds)
        self.restarts = Restarts(
            **shared,
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


@pytest.fixture
def idle(experiment, tmp_path):
    return IdleLauncher(experiment, tmp_path)


def test_a_machine_that_was_absent_comes_and_all_learn_it(idle):
    idle.restarts.begin(Start(7, absent=[2]), idle.recorded)
    assert idle.identity.absent == {3, 4, 5}
    idle.take(*(Failed(rank, "has not come yet") for rank in (3, 4, 5)))
    reports = idle.late.answer(join(2))
    back = [Restarted(position, None, 16) for position in (3, 4, 5)]
    assert reports == back and idle.recorded.admitted == [(2, 1, [])]
    assert idle.recorded.sent == [(RelayedReports(0, back), 1)]
    idle.take(*reports)
    assert idle.identity.absent == set() and idle.membership.active == set(range(6))


def test_a_machine_that_comes_again_first_loses_its_nodes(idle):
    for times in (1, 2):
        reports = idle.late.answer(join(2))
        assert reports[:3] == [Failed(rank, "its machine was started again") for rank in (3, 4, 5)]
        assert reports[3:] == [Restarted(position, None, 16 * times) for position in (3, 4, 5)]
        idle.take(*reports)
    assert idle.recorded.admitted == [(2, 1, []), (2, 2, [])]


def test_others_that_are_not_here_are_named_and_the_launcher_that_is_here_gets_no_second_start(idle):
    idle.take(Failed(2, "gone"))
    idle.late.answer(join(2))
    assert idle.recorded.admitted == [(2, 1, [1])]
    assert idle.late.answer(join(1)) == []


def test_a_machine_that_is_merely_silent_is_not_named_as_absent_before_it_counts_as_gone(idle, monkeypatch):
    idle.membership.members[2].silent_since = time.monotonic()
    idle.take(Failed(2, "machine 1 fell silent"))
    idle.late.answer(join(2))
    assert idle.recorded.admitted == [(2, 1, [])], "its nodes may run on, and are to be connected to"
    monkeypatch.setattr(Timeouts, "machine_lost", -1.0)
    idle.late.answer(join(2))
    assert idle.recorded.admitted[1:] == [(2, 2, [1])]


def test_who_cannot_take_part_any_more_learns_why(idle, experiment, tmp_path):
    idle.is_stopping = True
    assert idle.late.answer(join(2)) == []
    idle.is_stopping = False
    idle.take(*(Finished(rank, 10, **FINISHED) for rank in (3, 4, 5)))
    assert idle.late.answer(join(2)) == []
    d2 = experiment.settings.sharing
    strict = replace(experiment, settings=replace(experiment.settings, sharing=other_scheme(d2)))
    other = IdleLauncher(strict, tmp_path)
    assert other.late.answer(join(2)) == []
    assert idle.recorded.objections == ["the run was asked to stop", "machine 2 has finished"]
    assert other.recorded.objections == ["d2 does not let lost nodes rejoin"]


def test_a_late_machine_begins_as_nodes_do_that_were_restarted(experiment, tmp_path):
    idle = IdleLauncher(experiment, tmp_path, machine=2)
    idle.restarts.begin(Start(7, absent=[1], late=3), idle.recorded)
    assert idle.recorded.started == [(3, 48), (4, 48), (5, 48)]
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
