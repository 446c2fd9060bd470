"""Nodes and machines that come after the start, or come again."""

import os
import signal
import subprocess
import sys

from tests.integration.running import Run, wait_until

PACED = ["rounds=100000", "evaluation.every=0", "graph=ring", "graph.nodes=4"]


def ask(run: Run, rank: int) -> tuple[int, str]:
    """What `decentnode restart` says, and its exit code."""
    command = [sys.executable, "-m", "decentnode", "restart", str(run.run_dir), str(rank)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return answer.returncode, answer.stdout + answer.stderr


def test_a_dead_node_is_started_again_when_somebody_asks(tmp_path):
    """No attempts are configured; the node has its neighbor's model and takes part to the end."""
    run = Run(tmp_path / "run", [*PACED, "mapping={machines: [{address: localhost, nodes: 4}]}"])
    run.wait_for_round(5)
    code, said = ask(run, 2)
    assert (code, said) == (2, f"{run.run_dir}: rank 2 is running\n")
    os.kill(run.pid_of(2), signal.SIGKILL)
    wait_until(lambda: "rank 2 is lost" in run.text, 20, lambda: run.text)
    assert ask(run, 2) == (0, "rank 2: started again\n")
    wait_until(lambda: run.text.count("exchanges with rank 2 again") == 2, 40, lambda: run.text)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.text
    assert run.summary["restarted_nodes"] == {"2": 1}
    assert run.summary["lost_nodes"] == {} and run.summary["stopped_nodes"] == 4
    code, said = ask(run, 2)
    assert code == 2 and "no launcher answers" in said
