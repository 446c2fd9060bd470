"""Runs on graphs that change from round to round: the models are a product of W, whatever carries them."""

import hashlib
import re
from functools import reduce

import numpy as np
import pytest
import torch

from decentnode.formats.model_files import model_hash
from decentnode.formats.records import read_records
from decentnode.node.experiment import Experiment
from tests.integration.running import Run
from tests.support.in_process import Nodes

CONFIG = """
name: changing
rounds: {rounds}
graph: {graph}
dataset: {{name: synthetic, nodes: {nodes}, samples_per_node: 20, features: 6, classes: 3}}
model: {{name: mlp, hidden: [8]}}
training:
  optimizer: {{name: SGD, lr: 0.5}}
  scheduler: {{name: StepLR, step_size: 1, gamma: 0.0}}
  batch_size: 10
  steps_per_round: 2
sharing: gossip
evaluation: {{every: 0}}
"""
"""Only the first round trains, so that all later ones do nothing but mix."""
GRAPHS = [
    "{name: alternating_ring, nodes: 1}",
    "{name: alternating_ring, nodes: 2}",
    "{name: alternating_ring, nodes: 5}",
    "{name: one_peer_exponential, nodes: 3}",
    "{name: one_peer_hypercube, nodes: 8}",
    "{name: alternating_exponential_ring, nodes: 8, per_machine: 2}",
    "{name: alternating_exponential_ring, nodes: 8, per_machine: 2, between: one}",
    "{name: base_k_plus_one, nodes: 3}",
    "{name: random_matching, nodes: 5}",
    "{name: equi_topo, nodes: 5, shifts: 3, one_peer: true}",
    "{name: equi_topo, nodes: 6, shifts: 2, directed: false}",
    "{name: mobility, nodes: 6, radius: 0.4, speed: 0.2}",
    "{name: partial_participation, nodes: 6, degree: 3, probability: 0.6}",
    "{name: teleport, nodes: 7, active: 3, topology: fully_connected}",
    "{name: churn, graph: {name: ring, nodes: 6}, schedule: [[1, 2, null], [4, 0, 3]]}",
    "{name: teleport, nodes: 6, active: 4, topology: exponential}",
    "{name: by_rounds, schedule: [[0, {name: empty, nodes: 6}], [2, {name: star, nodes: 6}],"
    " [5, {name: random_matching, nodes: 6}], [8, {name: exponential, nodes: 6}]]}",
]
TRANSPORT_OF = {
    "{name: epidemic_local, nodes: 6, degree: 2}": "zeromq",
    "{name: epidemic_oracle, nodes: 8, degree: 3}": (
        "{name: zeromq, local: tcp, base_port: 31300, nodes_per_process: 2}"
    ),
    "{name: base_k_plus_one, nodes: 5, degree: 2}": "zeromq",
    "{name: by_rounds, schedule: [[0, {name: empty, nodes: 5}], [7, {name: fully_connected, nodes: 5}]]}": (
        "{name: zeromq, nodes_per_process: 2}"
    ),
    "{name: one_peer_exponential, nodes: 6}": (
        "{name: zeromq, local: tcp, base_port: 31200, nodes_per_process: 2}"
    ),
}


def written(tmp_path, graph):
    nodes = int(re.findall(r"nodes: (\d+)", graph)[0])
    path = tmp_path / "changing.yaml"
    path.write_text(CONFIG.format(graph=graph, nodes=nodes, rounds=9))
    return path


def in_process(path, *overrides, rounds=9):
    """The experiment and the models of all nodes after some rounds."""
    experiment = Experiment.from_yaml(path, ["communication=inproc", *overrides])
    folder = path.parent / f"nodes-{'-'.join(overrides)}"
    return experiment, Nodes(experiment, folder).begin().run(0, rounds).models


@pytest.mark.parametrize("graph", [*GRAPHS, *TRANSPORT_OF])
def test_rounds_multiply(tmp_path, graph):
    path = written(tmp_path, graph)
    experiment, mixed = in_process(path)
    _, trained = in_process(path, "sharing=none", rounds=1)
    matrices = [experiment.graph.matrix(round) for round in range(9)]
    product = reduce(lambda done, w: w @ done, matrices)
    assert np.allclose(mixed, product @ trained.double().numpy(), rtol=0, atol=2e-6)
    assert len(trained) == 1 or not torch.allclose(trained, mixed, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("graph", "overrides"),
    [
        ("{name: partial_participation, nodes: 6, degree: 3, probability: 0.5}", []),
        ("{name: teleport, nodes: 6, active: 2}", []),
        ("{name: ring, nodes: 6}", ["training.train_every=3"]),
    ],
)
def test_nodes_that_rest_make_no_steps(tmp_path, graph, overrides):
    path, folder = written(tmp_path, graph), tmp_path / "nodes"
    experiment = Experiment.from_yaml(path, ["communication=inproc", *overrides])
    Nodes(experiment, folder).begin().run(0, 9)
    graph = experiment.graph.graph
    every = 3 if overrides else 1
    for rank in range(6):
        records = read_records(next(folder.glob(f"**/{rank:05d}.jsonl")))
        trained = [bool(record.steps) for record in records]
        assert trained == [graph.trains(rank, round) and round % every == 0 for round in range(9)]
        assert [record.loss is not None for record in records] == trained


def assert_same_models(folder, graph, communication):
    """Processes end with the models of a run in one process."""
    path = written(folder, graph)
    run = Run(folder / "run", [f"communication={communication}"], path)
    _, models = in_process(path)
    assert run.wait() == 0, run.text
    digests = {rank: hashlib.sha256(model.numpy().data).hexdigest() for rank, model in enumerate(models)}
    assert run.summary["model_hash"] == model_hash(digests)


@pytest.mark.parametrize("graph", TRANSPORT_OF)
def test_processes_end_with_the_same_models(tmp_path, graph):
    assert_same_models(tmp_path, graph, TRANSPORT_OF[graph])
