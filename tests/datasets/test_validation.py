"""Samples held out for validation are in no other part, and runs measure models on them."""

import json

import pytest
import torch

from decentnode.config import loader as config
from decentnode.datasets import LoadedDataset, Partition, Samples
from decentnode.datasets.partition import Iid, Natural, Shards
from decentnode.datasets.validation import ValidationSettings, hold_out, split_rows
from decentnode.errors import DatasetError
from decentnode.launcher.state.run_directory import make_run_directory
from decentnode.node.experiment import Experiment, average_model_test, vector_test
from tests.support.in_process import Nodes

CONFIG = """
rounds: 2
graph: {name: ring, nodes: 3}
dataset:
  name: digits
  train_size: 300
  partition: {name: natural, groups_per_node: 1}
  validation: {source: train, size: 0.2}
  skew: [{name: label_noise, rate: 1.0}, rotation]
model: logistic_regression
training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 10, steps_per_round: 1}
communication: inproc
evaluation: {every: 1, samples: 20, figures: false}
run_dir: run
"""


def numbered(count, first=0, label_shape=()):
    """Samples whose inputs are their numbers."""
    numbers = torch.arange(first, first + count)
    labels = (numbers % 4).reshape(-1, *[1] * len(label_shape)).expand(count, *label_shape)
    return Samples(numbers[:, None].float(), labels, groups=numbers % 10)


def members(samples):
    return set(samples.inputs[:, 0].int().tolist())


class OfInputs(Partition):
    """Reads inputs, as a partition of one's own may."""

    def divide(self, samples, parts, rng):
        assert samples.inputs[:, 0].unique().numel() == len(samples)
        return Iid().divide(samples, parts, rng)


@pytest.mark.parametrize("partition", [Iid(), Natural(), Shards(labels_per_node=4), OfInputs()])
def test_validation_from_train_is_trained_on_by_nobody(partition):
    whole = LoadedDataset(numbered(200), numbered(50, 1000), 4, (1,))
    counts = []
    for seed in (1, 1, 2):
        held, rows = hold_out(whole, ValidationSettings(source="train", size=40), seed)
        parts = split_rows(partition, held.train, rows, 5, seed)
        trained = [members(held.train.subset(part)) for part in parts]
        assert len(held.validation) == 40 and held.test is whole.test and held.train is whole.train
        assert members(held.validation).isdisjoint(set.union(*trained))
        assert members(held.validation) | set.union(*trained) == members(whole.train)
        counts.append(members(held.validation))
    assert counts[0] == counts[1] != counts[2]


def test_validation_from_test_leaves_the_rest_of_it():
    whole = LoadedDataset(numbered(20, label_shape=(3,)), numbered(50, 1000, (3,)), 4, (1,))
    held, rows = hold_out(whole, ValidationSettings(source="test", size=0.3), 1)
    assert rows is None and held.train is whole.train and len(held.validation) == 15
    assert members(held.validation).isdisjoint(members(held.test))
    assert members(held.validation) | members(held.test) == members(whole.test)
    several, rows = hold_out(whole, ValidationSettings(source="train", size=0.5), 1)
    assert sum(map(len, split_rows(Iid(), several.train, rows, 2, 1))) == 10


def test_a_size_that_leaves_nothing_is_one_line():
    whole = LoadedDataset(numbered(20), numbered(5), 4, (1,))
    for source, size, message in (
        ("train", 20, "20 of the 20 train samples are 20; it must be from 1 to 19"),
        ("test", 0.05, "0.05 of the 5 test samples are 0; it must be from 1 to 4"),
    ):
        with pytest.raises(DatasetError) as caught:
            hold_out(whole, ValidationSettings(source=source, size=size), 1)
        assert str(caught.value) == f"dataset.validation.size: {message}"


def test_a_run_measures_its_models_on_validation_samples_and_records_the_skew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(CONFIG.replace("{name: natural, groups_per_node: 1}", "quantity"))
    experiment = Experiment.from_yaml(tmp_path / "x.yaml")
    assert len(experiment.samples.dataset.validation) == 60 and sum(map(len, experiment.samples.parts)) == 240
    names = ["accuracy", "loss", "validation_accuracy", "validation_loss"]
    assert [metric.name for metric in experiment.plan.metrics] == names
    run = Nodes(experiment, tmp_path / "nodes").begin().run(0, 2)
    for node in run.nodes:
        test = vector_test(experiment)
        test.load(node.training.vector.values)
        alone = test.run(experiment.samples.dataset.validation, 64)
        scores = node.evaluation.scores
        assert [*scores] == names
        assert {name: scores[f"validation_{name}"] for name in alone} == pytest.approx(alone)
    assert [*average_model_test(experiment)(run.nodes[0].training.vector.values, 0)] == names
    recorded = make_run_directory(experiment)
    assert config.load(recorded / "config.yaml") == experiment.settings
    partition = json.loads((recorded / "partition.json").read_text())
    assert [skew["name"] for skew in partition["skew"]] == ["label_noise", "rotation"]
    assert partition["skew"][1]["levels"] == [[0.0], [90.0], [180.0]]
    assert sum(map(sum, partition["labels_per_rank"])) == sum(partition["samples_per_rank"]) == 240
    assert partition["groups_per_rank"] == [] and partition["figures"]["largest"] >= 80
