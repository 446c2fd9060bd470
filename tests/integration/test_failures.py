"""What really happens when processes die, hang, raise, or are told to stop."""

import contextlib
import os
import re
import signal
import time

import pytest

from decentnode.formats.records import read_records
from tests.integration.running import Run, alive, wait_until

PACED = "sharing=faulty:Paced"
EIGHT = ["graph={name: regular, nodes: 8, degree: 4, seed: 1}", PACED]
FOUR = ["graph={name: ring, nodes: 4}", PACED]
LONG = [*FOUR, "rounds=100000", "evaluation.every=100000"]


def test_a_killed_node_is_noticed_and_the_rest_finish(tmp_path):
    run = Run(tmp_path / "run", [*EIGHT, "rounds=40"])
    run.wait_for_round(10)
    os.kill(run.pid_of(5), signal.SIGKILL)
    assert run.wait() == 3, run.text
    summary = run.summary
    assert summary["finished_nodes"] == 7
    assert summary["lost_nodes"] == {"5": "killed by signal 9"}
    assert summary["test"]["accuracy"]["min"] > 0.9
    assert run.text.count("continuing without rank 5") == 4
    neighbors = [rank for rank in range(8) if rank != 5 and 5 in lost_peers(run, rank)]
    assert len(neighbors) == 4
    for rank in neighbors:
        slowest = max(r.exchange_seconds for r in read_records(run.run_dir / "records" / f"{rank:05d}.jsonl"))
        assert slowest < 30, "half of the deadline"


def lost_peers(run: Run, rank: int) -> set[int]:
    return {peer for r in read_records(run.run_dir / "records" / f"{rank:05d}.jsonl") for peer in r.lost}


@pytest.mark.parametrize("local", ["ipc", "tcp"])
def test_a_killed_node_is_noticed_over_sockets(tmp_path, local):
    transport = f"communication={{name: zeromq, local: {local}, base_port: 29700}}"
    run = Run(tmp_path / "run", [*EIGHT, "rounds=30", transport, "failures.grace=0.5"])
    run.wait_for_round(10)
    os.kill(run.pid_of(0), signal.SIGKILL)
    assert run.wait() == 3, run.text
    assert run.summary["finished_nodes"] == 7


def test_a_graph_that_fell_apart_is_reported_at_the_end(tmp_path):
    run = Run(tmp_path / "run", ["rounds=40", "graph={name: chain, nodes: 5}", PACED])
    run.wait_for_round(10)
    os.kill(run.pid_of(2), signal.SIGKILL)
    assert run.wait() == 3, run.text
    assert run.summary["components"] == [[0, 1], [3, 4]]
    assert "into 2 components that trained separately: ranks 0 and 1; ranks 3 and 4" in run.text


def test_a_stopped_node_is_dropped_by_its_neighbors_only(tmp_path):
    run = Run(tmp_path / "run", [*EIGHT, "rounds=40", "failures.deadline=5"])
    run.wait_for_round(10)
    os.kill(run.pid_of(7), signal.SIGSTOP)
    assert run.wait() == 3, run.text
    assert set(run.summary["lost_nodes"]) == {"7"}
    assert run.summary["broken_edges"] == []
    accused = {
        edge.split()[-1]
        for edge in run.text.split("continuing without rank")[1:]
        for edge in [edge.split(":")[0]]
    }
    assert accused == {"7"}


def test_models_that_give_no_numbers_are_no_result(tmp_path):
    overrides = ["model=faulty:GivesNoNumbers", "communication=inproc", "rounds=4", "evaluation.every=2"]
    run = Run(tmp_path / "run", overrides)
    assert run.wait() == 4, run.text
    assert run.text.count("the test loss is not finite") == 1
    assert "round 2: the test loss is not finite" in run.text
    assert "failed; 16 of 16 nodes finished, 16 with a test loss that is not finite (exit code 4)" in run.text
    assert "not finite         the test loss of ranks 0, 1, 2" in run.text and "since round 2" in run.text
    assert run.summary["not_finite"] == {str(rank): 1 for rank in range(16)}


def test_a_raising_node_shows_its_traceback(tmp_path):
    run = Run(tmp_path / "run", [*EIGHT, "rounds=20", "sharing={name: 'faulty:RaisesAt', rank: 2}"])
    assert run.wait() == 3, run.text
    (why,) = run.summary["lost_nodes"].values()
    assert re.fullmatch(
        r"rank 2, round 4: RuntimeError: a defect on purpose \(.*faulty\.py:\d+, in RaisesAt\.\w+\)", why
    )
    assert f"rank 2 is lost: {why.removeprefix('rank 2, ')}; its log: " in run.text
    assert f"lost               {why}\n" in run.text
    log = run.run_dir / run.summary["lost_logs"]["2"]
    assert f"its log: {log}\n" in run.text.split(why)[-1]
    assert "Traceback" in log.read_text()
    assert "Traceback" in run.text and "a defect on purpose" in run.text
    assert "round 4: continuing without rank 2: left after round 3" in run.text


def test_a_raising_node_does_not_end_the_others_of_its_process(tmp_path):
    overrides = ["rounds=20", "sharing.name=faulty:RaisesAt", "sharing.rank=2", "communication=inproc"]
    run = Run(tmp_path / "run", overrides)
    assert run.wait() == 3, run.text
    assert run.summary["finished_nodes"] == 15


def test_running_out_of_memory_has_its_own_exit_code(tmp_path):
    overrides = [*FOUR, "rounds=8", "sharing={name: 'faulty:RaisesAt', memory: true}"]
    run = Run(tmp_path / "run", overrides)
    assert run.wait() == 5, run.text


def test_on_loss_stop_ends_the_run(tmp_path):
    run = Run(tmp_path / "run", [*EIGHT, "rounds=100000", "failures.on_loss=stop"])
    run.wait_for_round(10)
    os.kill(run.pid_of(5), signal.SIGKILL)
    assert run.wait(60) == 4, run.text


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_everything(tmp_path, signum, code):
    run = Run(tmp_path / "run", LONG)
    run.wait_for_round(5)
    tree = run.tree()
    assert len(tree) == 5
    os.killpg(run.process.pid, signum) if signum is signal.SIGINT else os.kill(run.process.pid, signum)
    assert run.wait(60) == code, run.text
    assert not any(map(alive, tree))
    assert not run.leftovers()
    assert run.summary["finished_nodes"] == 0
    assert "continuing without" not in run.text


def test_all_signals_of_a_scheduler_to_all_processes_are_one_request_to_stop(tmp_path):
    """A warning of a batch system, its limit of time, and the end of its terminal: nodes are saved."""
    run = Run(tmp_path / "run", [*LONG, "sharing.pace=0.3", "evaluation.background=1"])
    run.wait_for_round(1)
    tree = run.tree()
    for name in ("USR1", "USR1", "USR2", "XCPU", "TERM", "CONT", "TERM", "CONT", "TERM", "HUP", "HUP"):
        for pid in (run.process.pid, *tree):
            # The last ones may have ended by then.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.Signals[f"SIG{name}"])
        time.sleep(0.01)
    assert run.wait(60) == 138, run.text
    assert run.summary["stopped_nodes"] == 4 and run.summary["resumable_round"] is not None
    assert "stopped by SIGUSR1 after round" in run.text and "did not finish in time" not in run.text


def test_a_terminal_that_closes_ends_no_run_under_nohup(tmp_path):
    overrides = [*FOUR, "rounds=60", "evaluation.every=60"]
    run = Run(tmp_path / "run", overrides, environment={"UNDER_NOHUP": "1"})
    run.wait_for_round(3)
    for pid in (run.process.pid, *run.tree()):
        os.kill(pid, signal.SIGHUP)
    assert run.wait() == 0, run.text
    assert run.summary["finished_nodes"] == 4


def test_evaluations_do_not_wait_for_an_observer_that_has_failed(tmp_path):
    overrides = [
        *FOUR, "rounds=100000", "evaluation.every=5",
        "training.loss=faulty:RaisesInTheObserver",
    ]  # fmt: skip
    run = Run(tmp_path / "run", overrides)
    rows = run.run_dir / "evaluations.jsonl"
    wait_until(lambda: rows.exists() and rows.read_bytes().count(b"\n") > 2, 60, lambda: run.story)
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.wait() == 143, run.text
    assert (
        "mean model and consensus distance are not available: RuntimeError('no loss of a mean')" in run.text
    )


def test_a_killed_launcher_leaves_nothing_behind(tmp_path):
    run = Run(tmp_path / "run", LONG)
    run.wait_for_round(5)
    tree = run.tree()
    os.kill(run.process.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, tree)), 30)
    wait_until(lambda: not run.leftovers(), 30)


def test_a_killed_fork_server_takes_the_nodes_along(tmp_path):
    run = Run(tmp_path / "run", LONG)
    run.wait_for_round(5)
    tree = run.tree()
    os.kill(tree[0], signal.SIGKILL)
    assert run.wait(60) == 4, run.text
    wait_until(lambda: not any(map(alive, tree)), 30)
    assert not run.leftovers()


def test_a_signal_ends_the_waiting_for_other_machines(tmp_path):
    """Each waits for the other one of a run of its own."""
    machines = "machines: [{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]"
    runs = []
    for machine in (0, 1):
        mapping = f"mapping={{{machines}, rendezvous_port: {29510 + machine}}}"
        transport = f"communication={{name: zeromq, base_port: {29720 + 5 * machine}}}"
        runs.append(Run(tmp_path / f"machine{machine}", [*FOUR, mapping, transport, f"machine={machine}"]))
    for run in runs:
        wait_until(lambda run=run: len(run.tree()) == 3, 60, lambda run=run: run.text)
    time.sleep(0.5)
    for run in runs:
        os.kill(run.process.pid, signal.SIGINT)
        assert run.wait(60) == 130, run.text
        assert "Traceback" not in run.text
