"""Secure aggregation in real runs: keys reach everybody, over all transports, and losses are survived."""

import os
import signal

from tests.integration.running import ROOT, Run

CONFIG = ROOT / "configs" / "secure_aggregation.yaml"
TWO_MACHINES = [
    "mapping={machines: [{address: 127.0.0.1, nodes: 7}, {address: 127.0.0.2, nodes: 9}], "
    "rendezvous_port: 29530}",
    "communication={name: zeromq, base_port: 29860}",
]


def test_it_learns_as_gossip_does_and_alike_over_all_transports(tmp_path):
    """Each run draws its own keys, so equal hashes also say that models do not depend on them."""
    runs = [
        Run(tmp_path / "inproc", ["communication=inproc"], config=CONFIG),
        *(Run(tmp_path / f"machine{i}", [*TWO_MACHINES, f"machine={i}"], config=CONFIG) for i in range(2)),
    ]
    assert [run.wait() for run in runs] == [0] * 3, "\n".join(run.text for run in runs)
    summaries = [run.summary for run in runs[:2]]
    assert len({summary["model_hash"] for summary in summaries}) == 1
    for summary in summaries:
        assert summary["finished_nodes"] == 16 and summary["test"]["accuracy"]["mean"] >= 0.95
        # 16 nodes, 4 neighbors, 40 rounds: one masked vector, 16 bytes about who sends, and one header each.
        assert summary["bytes_sent"] == 16 * 4 * 40 * (4 * summary["parameters"] + 16 + 64)


def test_after_a_loss_its_neighbors_skip_two_rounds_and_go_on(tmp_path):
    run = Run(tmp_path / "run", ["rounds=60"], config=CONFIG)
    run.wait_for_round(10)
    os.kill(run.pid_of(5), signal.SIGKILL)
    assert run.wait() == 3, run.text
    assert run.summary["finished_nodes"] == 15
    assert run.summary["test"]["accuracy"]["min"] > 0.9
    logs = [run.run_dir / "logs" / f"{rank:05d}.log" for rank in range(16) if rank != 5]
    skipped = [log.read_text().count("keeps its own model: without rank 5") for log in logs]
    assert sorted(skipped) == [0] * 11 + [2] * 4
