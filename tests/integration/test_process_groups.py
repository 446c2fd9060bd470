"""Runs whose payloads go through a process group: the models are those of one process, bit for bit."""

import hashlib
import json
import os
import re
import signal

import pytest

from decentnode.formats.model_files import model_hash
from decentnode.node.experiment import Experiment
from tests.integration.running import Run, run_command
from tests.support.in_process import Nodes

ROUNDS = 5
HANG = "eval.reliability.more_faults:Hang"
CONFIG = """
name: grouped
rounds: {rounds}
graph: {graph}
dataset: {{name: synthetic, nodes: 4, samples_per_node: 20, features: 6, classes: 3}}
model: {{name: mlp, hidden: [8]}}
training:
  optimizer: {{name: SGD, lr: 0.1}}
  batch_size: 10
  steps_per_round: 2
sharing: {sharing}
communication: {communication}
evaluation: {{every: 0, figures: false}}
"""
RING, GLOO = "{name: ring, nodes: 4}", "{name: torch_distributed, backend: gloo}"
HALF = "{name: hybrid, backend: gloo, group_ranks: [0, 1, 3]}"
"""Two of the four edges of a ring go through the group."""
CASES = {
    "plain": (RING, "gossip", GLOO),
    "half of the edges": (RING, "gossip", HALF),
    "sparse differences": (RING,
        "{name: choco, gamma: 0.2, transforms: [{name: top_k, fraction: 0.1}, auto]}", GLOO),
    "sparse, half of the edges": (RING, "jwins", HALF),
    "several exchanges in a round": (RING, "{name: power_gossip, rank: 2}", GLOO),
    "directed": ("{name: exponential, nodes: 4}", "push_sum", GLOO),
    "while nodes train": (RING, "gossip", GLOO[:-1] + ", overlap: true}"),
    "another graph in each round": ("{name: base_k_plus_one, nodes: 4}", "gossip", GLOO),
}  # fmt: skip


def written(tmp_path, graph, sharing, communication, rounds=ROUNDS):
    path = tmp_path / "grouped.yaml"
    path.write_text(CONFIG.format(graph=graph, sharing=sharing, communication=communication, rounds=rounds))
    return path


@pytest.mark.parametrize("case", CASES)
def test_models_and_bytes_are_those_of_one_process(tmp_path, case):
    path, run_dir = written(tmp_path, *CASES[case]), tmp_path / "run"
    assert run_command(tmp_path / "out", "run", str(path), f"run_dir={run_dir}") == 0
    overlap = str("overlap" in CASES[case][2]).lower()
    nodes = Nodes(
        Experiment.from_yaml(path, [f"communication={{name: inproc, overlap: {overlap}}}"]),
        tmp_path / "nodes",
    ).begin()
    models = nodes.run(0, ROUNDS).models
    digests = {rank: hashlib.sha256(model.numpy().data).hexdigest() for rank, model in enumerate(models)}
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["model_hash"] == model_hash(digests)
    assert summary["bytes_sent"] == summary["bytes_received"] == nodes.bytes_sent
    members = "all nodes" if "torch" in CASES[case][2] else "3 of 4 nodes"
    assert f"communication: a gloo group of {members}" in (tmp_path / "out").read_text()


def killed(tmp_path, *overrides):
    """A run of four nodes on a ring whose rank 2 was killed."""
    path = written(tmp_path, RING, "gossip", GLOO, rounds=600)
    run = Run(tmp_path / "run", ["training.steps_per_round=1", "failures.grace=0.5", *overrides], path)
    run.wait_for_round(20)
    os.kill(run.pid_of(2), signal.SIGKILL)
    return run


def log(run, rank):
    return (run.run_dir / "logs" / f"{rank:05d}.log").read_text()


def test_a_killed_node_is_named_and_the_others_continue_over_zeromq(tmp_path):
    run = killed(tmp_path)
    assert run.wait() == 3, run.text
    assert "continuing without rank 2: connection lost" in run.text
    for rank in (0, 1, 3):
        assert log(run, rank).count("no process group from here on, ZeroMQ carries all payloads: ") == 1
        assert log(run, rank).count("continuing without rank") == (rank != 0)
    assert run.summary["finished_nodes"] == 3


def test_a_run_whose_group_ends_has_the_models_of_one_over_zeromq(tmp_path):
    models = []
    for communication in (GLOO, "zeromq"):
        folder = tmp_path / str(len(models))
        folder.mkdir()
        path = written(folder, RING, "gossip", communication, rounds=20)
        run = Run(folder / "run", ["faults=[{name: crash, ranks: 2, rounds: 8, activity: mix}]"], path)
        assert run.wait() == 3, run.text
        assert run.summary["finished_nodes"] == 3
        models.append(run.summary["model_hash"])
    assert models[0] == models[1]


def test_a_loss_can_end_the_run(tmp_path):
    run = killed(tmp_path, "failures.on_loss=stop")
    assert run.wait() == 4, run.text
    assert re.search(r"rank 1, round \d+: lost rank 2: .* \(failures.on_loss: stop\)", run.text)


def test_who_is_slow_in_the_last_round_of_a_directed_graph_still_gets_what_was_sent(tmp_path):
    """Its source has done all its rounds by then, and sees it off."""
    path = written(tmp_path, "{name: one_peer_exponential, nodes: 4}", "gossip", GLOO)
    late = f"faults=[{{name: '{HANG}', ranks: 1, rounds: {ROUNDS - 1}, seconds: 6.5}}]"
    run = Run(tmp_path / "run", [late], config=path)
    assert run.wait() == 0, run.text
    assert run.summary["lost_nodes"] == {} and run.summary["broken_edges"] == []
