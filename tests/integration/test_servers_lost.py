"""A server that is killed ends the run, or its standby continues it."""

import os
import re
import signal

import pytest

from tests.integration.running import ROOT, Run

SMALL = [
    "dataset.partition={name: iid, ranks: [2, 3, 4]}", "dataset.train_size=300", "dataset.test_size=50",
    "communication={name: zeromq, nodes_per_process: 1}", "training.epochs_per_round=null",
    "training.steps_per_round=1", "evaluation={every: 0}", "failures.grace=0.2",
]  # fmt: skip


@pytest.mark.parametrize("standby", ["null", "1"])
def test_a_killed_server_ends_the_run_unless_there_is_a_standby(tmp_path, standby):
    graph = f"graph={{name: federated, nodes: 5, clients: 2, down: all, standby: {standby}}}"
    rounds = 300 if standby == "1" else 100000
    run = Run(tmp_path / "run", [*SMALL, graph, f"rounds={rounds}"], config=ROOT / "configs/federated.yaml")
    run.wait_for_round(20)
    os.kill(run.pid_of(0), signal.SIGKILL)
    if standby == "1":
        assert run.wait() == 3, run.story
        assert run.summary["finished_nodes"] == 4 and set(run.summary["lost_nodes"]) == {"0"}
        return
    assert run.wait() == 4, run.story
    lost = run.summary["lost_nodes"]
    ended = [why for rank, why in lost.items() if "lost the server, rank 0" in why]
    assert len(lost) == 5 and len(ended) == 4, run.story
    assert all(
        re.fullmatch(r"rank \d, round \d+: .*lost the server, rank 0; graph.standby .*", w) for w in ended
    )
