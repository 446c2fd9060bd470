"""Runs that end, whatever happens: hanging nodes, full disks, a launcher that stands still."""

import json
import os
import pty
import signal
import subprocess
import termios
import time
from collections import Counter

import pytest

from decentnode.core.timeouts import Timeouts
from decentnode.formats.reader import SCHEMA, read_evaluations, read_events
from tests.integration.running import QUICKSTART, ROOT, Run, call, wait_until
from tests.integration.spawner import Spawner

FEW = ["graph={name: ring, nodes: 4}"]
SHORT = [*FEW, "rounds=5"]
LONG = [*FEW, "rounds=100000", "evaluation.every=100000", "sharing=faulty:Paced"]


def kinds(run: Run) -> Counter:
    return Counter(event.kind for event in read_events(run.run_dir / "events.jsonl"))


def query_status(run: Run) -> subprocess.CompletedProcess:
    """`decentnode status` of this run."""
    return call("status", str(run.run_dir))


def test_a_run_whose_nodes_all_hang_from_the_first_round_ends(tmp_path):
    hang = "sharing.name=faulty:HangsInTraining"
    run = Run(tmp_path / "run", [*FEW, hang, "failures.deadline=1.5", "rounds=10"])
    assert run.wait(90) == 4, run.text
    assert set(run.summary["lost_nodes"]) == {"0", "1", "2", "3"}
    for rank in range(4):
        assert f"rank {rank}, round 1: no progress for " in run.text
        assert run.summary["lost_nodes"][str(rank)].startswith("hung (training for ")
        assert "faulty.py" in (run.run_dir / "logs" / f"{rank:05d}.log").read_text(), "where it hung"
    assert kinds(run)["stuck"] == 4
    assert not run.leftovers()


def test_a_node_that_hangs_is_dropped_and_ended_when_it_is_the_last(tmp_path):
    hang = ["sharing.name=faulty:HangsInTraining", "sharing.only=2", "sharing.round=5"]
    # Who waits is told of long before anybody is given up.
    limits = {"notice": 1.0}
    run = Run(tmp_path / "run", [*FEW, *hang, "failures.deadline=3", "rounds=12"], limits=limits)
    assert run.wait(90) == 3, run.text
    assert run.summary["finished_nodes"] == 3
    assert run.summary["lost_nodes"]["2"].startswith("hung (training for ")
    events = read_events(run.run_dir / "events.jsonl")
    assert {(e.rank, e.peer) for e in events if e.kind == "peer_lost"} == {(1, 2), (3, 2)}
    assert [(e.rank, e.round) for e in events if e.kind == "stuck"] == [(2, 5)]
    assert any(e.kind == "waiting" and e.peer == 2 for e in events)


def logs(run: Run) -> list[str]:
    return [(run.run_dir / "logs" / f"{rank:05d}.log").read_text() for rank in range(4)]


SLOW = "communication.name=faulty:LeavesSlowly"


@pytest.mark.parametrize("ends", ["by itself", "when it is stopped"])
def test_nothing_ends_while_what_the_nodes_sent_last_is_on_its_way(tmp_path, ends):
    run = Run(tmp_path / "run", [SLOW, "failures.deadline=7", *(SHORT if ends == "by itself" else LONG)])
    if ends != "by itself":
        run.wait_for_round(3)
        run.process.send_signal(signal.SIGTERM)
    assert run.wait() == (0 if ends == "by itself" else 143), run.text
    assert all("has left, with 7 s for it" in log for log in logs(run)), "slow readers have their time"


def test_a_failed_node_leaves_sooner_and_its_process_is_not_killed(tmp_path):
    """The others stop with it: no node finishes, and nobody would take in what they still send."""
    fails = ["sharing={name: 'faulty:RaisesAt', rank: 1}", "failures={on_loss: stop, deadline: 7}"]
    run = Run(tmp_path / "run", [*SHORT, SLOW, *fails])
    assert run.wait() == 4, run.text
    assert all("has left, with 5 s for it" in log for log in logs(run))


def test_a_second_signal_waits_for_nobody(tmp_path):
    run = Run(tmp_path / "run", [SLOW, *LONG])
    run.wait_for_round(3)
    for _ in range(2):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert run.wait() == 130, run.text
    assert not any("has left" in log for log in logs(run))


def test_a_run_is_asked_while_it_runs_and_when_its_launcher_is_gone(tmp_path):
    run = Run(tmp_path / "run", LONG)
    run.wait_for_round(3)
    stopped = run.pid_of(2)
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: "suspended" in query_status(run).stdout, 30, lambda: query_status(run).stdout)
    answer = query_status(run)
    assert answer.returncode == 0
    lines = {line.split()[0]: line for line in answer.stdout.splitlines() if line.strip()[:1].isdigit()}
    assert set(lines) == {"0", "1", "2", "3"}
    assert "suspended" in lines["2"]
    assert lines["1"].endswith("rank 2") and lines["3"].endswith("rank 2")
    assert "slowest: rank 2" in answer.stdout
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    answer = query_status(run)
    assert answer.returncode == 0
    assert f"its launcher (pid {run.process.pid}) not found" in answer.stdout
    wait_until(lambda: not run.leftovers(), 30)


def test_what_the_nodes_reported_to_a_launcher_that_stood_still_is_not_lost(tmp_path):
    run = Run(tmp_path / "run", [*FEW, "rounds=60", "evaluation.every=60", "sharing=faulty:Paced"])
    run.wait_for_round(2)
    os.kill(run.process.pid, signal.SIGSTOP)
    wait_until(lambda: all(len(run.records(rank)) == 60 for rank in range(4)), 60, lambda: run.text)
    time.sleep(Timeouts.late_check + 0.5)
    os.kill(run.process.pid, signal.SIGCONT)
    assert run.wait() == 0, run.text
    assert run.summary["finished_nodes"] == 4
    assert "node_lost" not in kinds(run) and "stuck" not in kinds(run)
    assert not (run.run_dir / "live.json").exists()
    answer = query_status(run)
    assert answer.stdout.strip() == (
        f"{run.run_dir}: has ended: quickstart: all 4 nodes finished 60 rounds (exit code 0)"
    )


@pytest.mark.parametrize("terminal", ["dumb", "xterm"])
def test_nodes_finish_although_nobody_reads_their_terminal(tmp_path, terminal):
    leader, follower = pty.openpty()
    termios.tcflow(follower, termios.TCOOFF)
    words = [
        str(QUICKSTART),
        f"run_dir={tmp_path}/run",
        *FEW,
        "rounds=30",
        "evaluation={every: 1, figures: false}",
    ]
    run = subprocess.Popen(
        [Spawner.of_this_process().python(), "-m", "decentnode", "run", *words],
        stdout=follower,
        env=os.environ | {"TERM": terminal, "PYTHONPATH": str(ROOT)},
    )
    assert run.wait(120) == 0
    for end in (leader, follower):
        os.close(end)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["finished_nodes"] == 4


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_nothing_but_the_results(small_disk):
    run = Run(small_disk.parent / "run", [*FEW, "rounds=150", f"run_dir={small_disk / 'run'}"])
    assert run.wait(120) == 4, run.text
    assert "(exit code 4)" in run.text and "4 of 4 nodes finished" in run.text
    assert "No space left on device" in run.text and "Traceback" not in run.text
    run.run_dir = small_disk / "run"
    for rank in range(4):
        rounds = [record.round for record in run.records(rank)]
        assert rounds == list(range(len(rounds)))
    assert 4 < sum(len(run.records(rank)) for rank in range(4)) < 600
    assert read_evaluations(run.run_dir / "evaluations.jsonl")
    assert json.loads((run.run_dir / "partition.json").read_text())["schema"] == SCHEMA
    assert not (run.run_dir / "summary.json").exists()
    assert not list(run.run_dir.glob("*.tmp"))


def test_a_run_directory_that_cannot_be_written_is_reported_before_the_start(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    run = Run(small_disk.parent / "run", [*FEW, f"run_dir={small_disk / 'run'}"])
    assert run.wait() == 2
    assert run.text.endswith(f"run_dir: {small_disk / 'run'} cannot be written: Read-only file system\n")
    assert run.text.count("\n") == 1
