"""Until when a launcher waits for host processes whose nodes have ended."""

import os
import time

import pytest

from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import Exited, Failed, Finished, Restarted, Stopped
from decentnode.config.settings import FailureSettings
from decentnode.launcher import launcher
from decentnode.launcher.monitoring.watchdog import NEVER, Watchdog
from decentnode.launcher.state.membership import MembershipTable, MemberState
from tests.launcher.test_remote_machines import ROUNDS, IdleLauncher
from tests.support.reported import report_to

LAST_WORDS = {
    "finished": Finished(2, ROUNDS, "", 0, 0, 0.0),
    "stopped": Stopped(2, 7),
    "failed": Failed(2, "RuntimeError: x"),
}


@pytest.fixture
def idle(tmp_path):
    """Of machine 1, which has rank 2 alone; the nodes of the others have finished."""
    idle = IdleLauncher(tmp_path, machine=1)
    for rank in (0, 1, 3, 4, 5):
        idle.launcher._report_dispatcher.dispatch(Finished(rank, ROUNDS, "", 0, 0, 0.0))
    return idle


@pytest.mark.parametrize("word", LAST_WORDS.values(), ids=LAST_WORDS)
def test_a_launcher_watches_on_until_the_process_of_its_last_node_is_gone(idle, word):
    idle.launcher._report_dispatcher.dispatch(word)
    assert idle.launcher._unresolved(), "what the node has sent may still be on its way"
    idle.launcher._report_dispatcher.dispatch(Exited(idle.launcher.experiment.home[2], 0))
    assert not idle.launcher._unresolved()


def test_a_launcher_watches_on_for_the_nodes_of_other_machines(tmp_path):
    """It may have to decide for them, and its summary has them."""
    idle = IdleLauncher(tmp_path, machine=1)
    for report in (LAST_WORDS["finished"], Exited(idle.launcher.experiment.home[2], 0)):
        idle.launcher._report_dispatcher.dispatch(report)
    assert idle.launcher._unresolved()


def test_a_last_node_that_failed_is_there_again_when_its_process_is_restarted(idle):
    idle.launcher._report_dispatcher.dispatch(LAST_WORDS["failed"])
    position = idle.launcher.experiment.home[2]
    idle.launcher._report_dispatcher.dispatch(Restarted(position, 4, 1))
    assert idle.state(2) is MemberState.RUNNING and idle.launcher._unresolved()
    idle.launcher._report_dispatcher.dispatch(Exited(position, 4))
    assert idle.state(2) is MemberState.LOST and not idle.launcher._unresolved()
    idle.launcher._report_dispatcher.dispatch(Restarted(position, None, 2))
    assert idle.launcher._unresolved()


def test_who_was_restarted_does_not_hang_for_what_its_process_did_before(idle):
    position, watchdog = idle.launcher.experiment.home[2], idle.launcher._run_monitor.watchdog
    watchdog._watched[position].stuck = True
    assert watchdog.is_stuck(2)
    idle.launcher._report_dispatcher.dispatch(Restarted(position, -9, 1))
    assert not watchdog.is_stuck(2)


def test_processes_that_ended_with_their_server_are_not_waited_for(idle):
    read, write = os.pipe()
    os.close(write)
    idle.launcher._report_reader = launcher.ReportReader(read)
    idle.launcher._report_dispatcher.dispatch(LAST_WORDS["stopped"])
    idle.launcher.run_id = 0
    idle.launcher._watch(0.0)
    os.close(read)
    assert not idle.launcher._unresolved()


def test_a_process_that_does_not_end_is_killed(idle, monkeypatch):
    killed = []
    monkeypatch.setattr(launcher, "end_hung", killed.extend)
    position = idle.launcher.experiment.home[2]
    idle.launcher.membership.pids = {position: 4321}
    idle.launcher._report_dispatcher.dispatch(LAST_WORDS["failed"])
    assert idle.launcher._unresolved()
    idle.launcher._end_hung_nodes()
    assert killed == []
    now = time.monotonic()
    monkeypatch.setattr(launcher.time, "monotonic", lambda: now + 1000)
    assert not idle.launcher._unresolved(), "nobody is waited for without a limit"
    monkeypatch.setattr(
        launcher.time,
        "monotonic",
        lambda: now + idle.launcher._run_monitor.watchdog._timeouts.process_exit + 1,
    )
    idle.launcher._end_hung_nodes()
    assert killed == [4321]


def test_how_long_a_process_may_take():
    """Two host processes, of which the first has two nodes."""
    membership = MembershipTable(range(3), {0: (0, 1), 1: (2,)})
    membership.start()
    timeouts = FailureSettings(deadline=20.0).timeouts
    watchdog = Watchdog(HeartbeatBoard(range(3)), membership, timeouts)
    report_to(membership, Finished(0, ROUNDS, "", 0, 0, 0.0))
    assert watchdog.exit_pause(100.0) == NEVER, "rank 1 is at work"
    report_to(membership, Failed(1, "ValueError: no"))
    assert watchdog.exit_pause(100.0) < NEVER
    ends = 100.0 + timeouts.process_exit
    assert timeouts.process_exit > 2 * 20.0 > timeouts.least_farewell, "longer than the process gives itself"
    assert watchdog.exit_pause(ends - 1) < NEVER and watchdog.hung(ends - 1) == {}
    assert watchdog.exit_pause(ends + 1) < NEVER and watchdog.hung(ends + 1) == {0: []}
    gone = ends + timeouts.killed
    assert watchdog.exit_pause(gone) == NEVER and watchdog.hung(gone) == {}
    report_to(membership, Restarted(0, -9, 1))
    assert watchdog.exit_pause(ends + 1) == NEVER and watchdog.hung(ends + 1) == {}
    report_to(membership, Failed(1, "ValueError: no"))
    assert watchdog.exit_pause(ends + 2) < NEVER, "it is at its end anew"


def test_scripts_have_no_limit_after_their_last_round():
    """They may save and evaluate for as long as they want, and are waited for."""
    membership = MembershipTable(range(2), {0: (0,), 1: (1,)})
    membership.start()
    timeouts = FailureSettings(deadline=1.0).timeouts
    watchdog = Watchdog(HeartbeatBoard(range(2)), membership, timeouts, are_scripts=True)
    assert watchdog.exit_pause(100.0) == NEVER, "both are at work"
    report_to(membership, Finished(0, ROUNDS, "", 0, 0, 0.0))
    for seconds in (0.0, timeouts.process_exit + 1, timeouts.process_lost + 1, 1e6):
        assert watchdog.exit_pause(100.0 + seconds) < NEVER and watchdog.hung(100.0 + seconds) == {}
    report_to(membership, Exited(0, 0))
    assert watchdog.exit_pause(2e6) == NEVER
