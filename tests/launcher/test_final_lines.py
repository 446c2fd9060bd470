"""What a run ends with."""

import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from decentnode.communication.launcher_link.reports import (
    Checkpointed,
    Evaluated,
    Failed,
    Finished,
    PeerMissing,
    Stopped,
)
from decentnode.errors import ExitCode
from decentnode.launcher.report import final_lines
from decentnode.launcher.report.final_lines import exit_code
from decentnode.launcher.state.membership import MembershipTable
from tests.launcher.test_remote_machines import IdleLauncher
from tests.support.reported import report_to


def finished(rank, loss=0.3):
    return Finished(rank, 10, "ab" * 32, 700, 600, 12.5, {"accuracy": 0.9, "loss": loss})


def evaluated(rank, round, loss):
    return Evaluated(rank, round, {"accuracy": 0.1, "loss": loss})


@pytest.mark.parametrize(
    ("reports", "stop_signal", "code"),
    [
        ([finished(0), finished(1)], None, ExitCode.OK),
        ([finished(0), Failed(1, "no")], None, ExitCode.NODES_LOST),
        ([finished(0), Failed(1, "no", True)], None, ExitCode.OUT_OF_MEMORY),
        ([finished(0), finished(1), PeerMissing(0, 3, 1, "silent")], None, ExitCode.NODES_LOST),
        ([Failed(0, "no"), finished(1)], None, ExitCode.FAILED),
        # It was started again when the others had done their last round.
        ([finished(0), Stopped(1, 8)], None, ExitCode.NODES_LOST),
        ([Stopped(0, 8), Stopped(1, 8)], signal.SIGTERM, ExitCode.TERMINATED),
        ([Stopped(0, 8), Stopped(1, 8)], signal.SIGHUP, ExitCode.HUNG_UP),
        ([finished(0)], signal.SIGINT, ExitCode.INTERRUPTED),
        ([Stopped(0, 8), Stopped(1, 8)], signal.SIGUSR1, 128 + signal.SIGUSR1),
        ([finished(0, None), finished(1, None)], None, ExitCode.FAILED),
        ([finished(0), finished(1, None)], None, ExitCode.NODES_LOST),
        # Of which the other machine has the only usable one.
        ([finished(0, None), finished(1)], None, ExitCode.FAILED),
        ([evaluated(1, 4, None), finished(0), finished(1)], None, ExitCode.OK),
        # Only processes were still on their way out.
        ([finished(0), finished(1)], signal.SIGINT, ExitCode.OK),
    ],
)
def test_the_exit_code_says_how_it_ended(reports, stop_signal, code):
    membership = MembershipTable(range(2), {0: (0,), 1: (1,)}, local=[0])
    membership.start()
    report_to(membership, *reports)
    assert exit_code(membership, stop_signal) == code


@pytest.mark.parametrize(("last", "code"), [(finished(2), ExitCode.OK), (Stopped(2, 8), ExitCode.TERMINATED)])
def test_a_signal_ends_nothing_when_the_nodes_of_all_machines_have_finished(tmp_path, last, code):
    idle = IdleLauncher(tmp_path, machine=1)
    for report in (*(finished(rank) for rank in (0, 1, 3, 4, 5)), last):
        idle.launcher._report_dispatcher.dispatch(report)
    idle.launcher._graceful_stop.request(signal.SIGTERM)
    assert exit_code(idle.launcher.membership, idle.launcher._graceful_stop.signal) is code


@pytest.mark.parametrize(
    ("arrivals", "kills"),
    [
        # Slurm, to every process of a step; a wrapper that passes it on; the terminal that closes with it.
        ("TERM 0, TERM .01, TERM 4, HUP 4, HUP 5", False),
        ("TERM 0, TERM 11", True),
        ("INT 0, INT .2", True),
        # A terminal to all its processes, and torchrun once more.
        ("INT 0, INT .03", False),
        ("TERM 0, INT 3", True),
        ("INT 0, TERM 3", False),
        # Warnings, however often, and then what they have warned of.
        ("USR1 0, USR1 30, USR2 60, XCPU 61, HUP 90", False),
        ("USR1 0, TERM 60, TERM 60.02", False),
        ("USR1 0, INT 30, INT 31", True),
        ("HUP 0, TERM 30", False),
    ],
)
def test_only_a_person_who_asks_once_more_kills(tmp_path, monkeypatch, arrivals, kills):
    launcher, killed = IdleLauncher(tmp_path).launcher, []
    launcher.server = SimpleNamespace(kill=lambda: killed.append(True))
    for name, seconds in map(str.split, arrivals.split(", ")):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: 1000.0 + float(seconds))
        assert not killed, name
        launcher._interrupt(signal.Signals[f"SIG{name}"])
    monkeypatch.undo()
    assert (bool(killed), launcher._graceful_stop.is_urgent) == (kills, kills)
    assert launcher._graceful_stop.signal.name == f"SIG{arrivals.split()[0]}"


def test_memory_that_runs_out_afterwards_is_not_why_a_node_was_lost_or_has_finished():
    membership = MembershipTable(range(2), {0: (0,), 1: (1,)})
    membership.start()
    report_to(membership, Failed(0, "hung (training for 60 s) and was killed"))
    report_to(membership, Finished(1, 5, "", 0, 0, 0.0))
    for rank in range(2):
        report_to(membership, Failed(rank, "killed by the kernel", out_of_memory=True))
    assert exit_code(membership, None) is ExitCode.NODES_LOST


NOWHERE = "no checkpoint of all nodes to resume from (checkpoint.every)"


@pytest.mark.parametrize(
    ("saved", "ended", "words"),
    [
        ([], [], [f"killed 2 nodes that did not finish in time; {NOWHERE}"]),
        ([], [0], [f"killed 1 node that did not finish in time; {NOWHERE}"]),
        ([21], [0], ["killed 1 node that did not finish in time; resume continues at round 23"]),
        ([21], [0, 1], []),
    ],
    ids=["nothing-saved", "one-has-ended", "one-was-saved", "only-processes"],
)  # fmt: skip
def test_what_a_kill_costs_is_reported(tmp_path, saved, ended, words):
    """They have had all their time; of three machines' nodes two are here."""
    idle = IdleLauncher(tmp_path)
    launcher = idle.launcher
    for report in [Checkpointed(rank, round) for round in saved for rank in range(6)]:
        launcher._report_dispatcher.dispatch(report)
    launcher._graceful_stop.request(signal.SIGTERM)
    launcher._graceful_stop.deadline = -1.0
    last_words = [Stopped(rank, 24) for rank in ended]
    launcher.server = SimpleNamespace(
        kill=lambda: last_words.extend(Failed(rank, "killed") for rank in {0, 1} - set(ended))
    )

    def watch(timeout):
        while last_words:
            launcher._report_dispatcher.dispatch(last_words.pop(0))

    launcher._watch = watch
    launcher._stop_nodes()
    lines = launcher.console.output.getvalue().splitlines()
    lost = "No checkpoint exists yet: if nodes are killed, the run is lost."
    outlook = "After a kill, resume continues at round 23." if saved else lost
    assert lines[0] == (
        "stopping after the current round. Nodes that need more than -1 s are killed; "
        f"a second Ctrl-C kills all at once. {outlook}"
    )
    assert lines[1:] == words


def test_a_kill_at_a_second_signal_does_not_blame_the_nodes(tmp_path):
    idle = IdleLauncher(tmp_path)
    launcher, last_words = idle.launcher, [Failed(0, "killed"), Failed(1, "killed")]
    launcher._graceful_stop.request(signal.SIGTERM)
    launcher._graceful_stop.is_urgent = True
    launcher._watch = lambda timeout: launcher._report_dispatcher.dispatch(last_words.pop())
    launcher._stop_nodes()
    (line,) = launcher.console.output.getvalue().splitlines()
    assert line == f"killed 2 nodes at the second signal; {NOWHERE}"


@pytest.mark.parametrize(
    ("target", "more"),
    [
        (None, "rounds=N"),
        ({"reached_round": None, "last_round": 7}, "rounds=N"),
        ({"reached_round": 4, "last_round": 5}, "evaluation.target=null"),
        ({"reached_round": 7, "last_round": 7}, "evaluation.target=null rounds=N"),
    ],
)
def test_the_command_that_continues_a_finished_run_is_one_that_works(monkeypatch, target, more):
    for name in ("_quality", "_target", "_privacy", "_cost", "_losses"):
        monkeypatch.setattr(final_lines, name, lambda *_: ())
    summary = {
        "finished_nodes": 2, "nodes": 2, "rounds": 8, "resumable_round": None, "checkpoint_bytes": 10,
        "target": target, "model_hash": "", "not_finite": {}, "restarted_nodes": {}, "attacker_weight": {},
        "refused_messages": {}, "attacks": None,
    }  # fmt: skip
    lines = dict(final_lines.closing_lines(summary, ExitCode.OK, Path("run")))
    assert lines["resume with"] == f"decentnode resume run {more} (10 B of checkpoints)"
