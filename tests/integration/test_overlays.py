"""Runs on graphs that nodes agree on by messages, or that a service draws."""

import hashlib

import pytest
import torch

from decentnode.launcher.report.summary import model_hash
from decentnode.node.experiment import Experiment
from tests.integration.running import Run
from tests.integration.test_time_varying import in_process, written
from tests.support.in_process import Nodes

GRAPHS = [
    "{name: flipper, nodes: 8, degree: 3}",
    "{name: similarity, nodes: 8, neighbors: 2, of: gradient, every: 3}",
]


@pytest.mark.parametrize("graph", GRAPHS)
def test_processes_end_with_the_same_models_as_one_process(tmp_path, graph):
    path = written(tmp_path, graph)
    run = Run(tmp_path / "run", ["communication=zeromq"], path)
    _, models = in_process(path)
    assert run.wait() == 0, run.text
    digests = {rank: hashlib.sha256(model.numpy().data).hexdigest() for rank, model in enumerate(models)}
    assert run.summary["model_hash"] == model_hash(digests)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_resumed_run_ends_with_the_same_models(tmp_path, graph):
    path = written(tmp_path, graph)
    experiment = Experiment.from_yaml(path, ["communication=inproc"])
    first = Nodes(experiment, tmp_path / "first").begin().run(0, 5)
    resumed = Nodes(experiment, tmp_path / "second").load(first.saved())
    assert torch.equal(first.run(5, 9).models, resumed.run(5, 9).models)
