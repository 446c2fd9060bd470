"""Secure aggregation in real runs: keys reach everybody, over all transports, and losses are survived."""

import os
import signal

from tests.integration.running import ROOT, Run

CONFIG = ROOT / "configs" / "secure_aggregation.yaml"
EIGHT = "graph={name: regular, nodes: 8, degree: 4, seed: 1}"
PACED = "faults=[{name: 'eval.reliability.more_faults:Hang', seconds: 0.02, activity: begin}]"
TWO_MACHINES = [
    EIGHT,
    "mapping={machines: [{address: 127.0.0.1, nodes: 3}, {address: 127.0.0.2, nodes: 5}], "
    "rendezvous_port: 29530}",
    "communication={name: zeromq, base_port: 29860}",
]


def test_it_learns_as_gossip_does_and_alike_over_all_transports(tmp_path):
    """Each run draws its own keys, so equal hashes also say that models do not depend on them."""
    runs = [
        Run(tmp_path / "inproc", [EIGHT, "communication=inproc"], config=CONFIG),
        *(Run(tmp_path / f"machine{i}", [*TWO_MACHINES, f"machine={i}"], config=CONFIG) for i in range(2)),
    ]
    assert [run.wait() for run in runs] == [0] * 3, "\n".join(run.text for run in runs)
    summaries = [run.summary for run in runs[:2]]
    assert len({summary["model_hash"] for summary in summaries}) == 1
    for summary in summaries:
        assert summary["finished_nodes"] == 8 and summary["test"]["accuracy"]["mean"] >= 0.95
        # 8 nodes, 4 neighbors, 40 rounds: one masked vector, 16 bytes about who sends, and one header each.
        assert summary["bytes_sent"] == 8 * 4 * 40 * (4 * summary["parameters"] + 16 + 64)


def test_after_a_loss_its_neighbors_skip_two_rounds_and_continue(tmp_path):
    run = Run(tmp_path / "run", [EIGHT, PACED, "rounds=40"], config=CONFIG)
    run.wait_for_round(10)
    os.kill(run.pid_of(5), signal.SIGKILL)
    assert run.wait() == 3, run.text
    assert run.summary["finished_nodes"] == 7
    assert run.summary["test"]["accuracy"]["min"] > 0.9
    logs = [run.run_dir / "logs" / f"{rank:05d}.log" for rank in range(8) if rank != 5]
    skipped = [log.read_text().count("keeps its own model: without rank 5") for log in logs]
    assert sorted(skipped) == [0] * 3 + [2] * 4
