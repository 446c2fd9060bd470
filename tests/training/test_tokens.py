"""Ids reach an embedding as they are, and each token has a label of its own."""

import json
import sys

import pytest
import torch

from decentnode.launcher.state.run_directory import make_run_directory
from decentnode.node.experiment import Experiment
from tests.corpus.bad_plugins import DATA
from tests.support.in_process import Nodes

CONFIG = """
rounds: 20
graph: {name: ring, nodes: 2}
dataset: tokens_of_a_test:Tokens
model: tokens_of_a_test:Tagger
training: {optimizer: {name: Adam, lr: 0.1}, batch_size: 10, epochs_per_round: 1, loss: LOSS}
communication: inproc
run_dir: run
evaluation: {figures: false}
"""


@pytest.mark.parametrize("loss", ["CrossEntropyLoss", "BCEWithLogitsLoss"])
def test_a_label_per_token_is_learned_from_ids(loss, tmp_path, monkeypatch):
    (tmp_path / "tokens_of_a_test.py").write_text(DATA)
    (tmp_path / "x.yaml").write_text(CONFIG.replace("LOSS", loss))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    experiment = Experiment.from_yaml(tmp_path / "x.yaml")
    inputs, labels = experiment.samples.dataset.train.batch(torch.arange(3))
    assert inputs.dtype == labels.dtype == torch.int64 and labels.shape == (3, 5)
    run = Nodes(experiment, tmp_path / "nodes").begin().run(0, 20)
    for node in run.nodes:
        assert node.evaluation.scores["accuracy"] == 1.0
        assert node.training.loss < 0.1
    partition = json.loads((make_run_directory(experiment) / "partition.json").read_text())
    assert partition["samples_per_rank"] == [30, 30]
    assert sum(map(sum, partition["labels_per_rank"])) == 60 * 5
