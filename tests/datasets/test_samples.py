"""`dataset.sample`: every dataset that reads files has a generated sample in their format."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from decentnode.config import loader as config
from decentnode.core.registry import DATASETS
from decentnode.datasets import Cifar10, Dataset, Digits, Text
from decentnode.datasets.partition import Iid, Natural, Shards
from decentnode.errors import DatasetError
from decentnode.launcher.start import sample_notice
from decentnode.node.experiment import Experiment

WITH_FILES = [name for name, cls in DATASETS.classes().items() if cls.reads_files]
YAML = """
rounds: 1
graph: {name: ring, nodes: 96}
dataset: {name: cifar10, path: nowhere, train_size: 50000, partition: {name: shards, labels_per_node: 2}}
model: logistic_regression
training: {optimizer: {name: SGD, lr: 0.1}, steps_per_round: 1}
evaluation: {samples: 10000}
"""


@pytest.mark.parametrize("name", WITH_FILES)
def test_a_sample_serves_96_nodes_and_is_the_same_everywhere(name, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dataset = DATASETS.find(name)(sample=True, train_size=10**9)
    loaded, again = dataset.load(1), dataset.load(1)
    assert not list(tmp_path.iterdir())
    samples = loaded.train
    for one, other in ((samples, again.train), (loaded.test, again.test)):
        assert all(torch.equal(*pair) for pair in zip(one.tensors(), other.tensors(), strict=True))
    fits = [Iid()]
    if samples.labels.dim() == 1 and not samples.labels.is_floating_point():
        fits.append(Shards())
    fits += [Natural()] if samples.groups is not None and name != "text" else []
    for partition in fits:
        assert min(map(len, partition.split(samples, 96, 1))) >= 2
    assert len(loaded.test) >= 96


def test_documents_of_a_sample_are_groups_whatever_the_expression():
    loaded = Text(sample=True, document="^Chapter [IVX]+", test_fraction=0.02, length=50).load(0)
    assert len(loaded.train.groups.unique()) == len(loaded.test.groups.unique()) == 100
    with pytest.raises(DatasetError, match=r"^dataset.path: missing; any UTF-8 file serves"):
        Text()


def test_sizes_are_lowered_and_the_run_says_that_it_is_a_sample(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(YAML)
    experiment = Experiment.from_yaml(file, ["dataset.sample=true"])
    assert (len(experiment.samples.dataset.train), len(experiment.plan.samples)) == (2400, 500)
    settings = experiment.settings
    assert sample_notice(settings) == (
        "dataset.sample: a generated sample in the format of cifar10, not its files"
    )
    assert "\n  sample: true\n" in config.dump(settings)
    with pytest.raises(DatasetError, match="no complete set of cifar10 files"):
        Experiment.from_yaml(file)
    digits = config.load(file, ["dataset=digits", "dataset.sample=true"])
    assert sample_notice(digits) == "" and len(Digits(sample=True).load(0).train) == 1437


def test_a_class_of_ones_own_makes_its_own_sample():
    @dataclass(kw_only=True)
    class Mine(Cifar10):
        color: str = "red"

        def write_sample(self, directory):
            options = super().write_sample(directory)
            return {**options, "color": "blue"}

        def read(self, seed):
            assert self.color == "blue" and Path(self.path).is_dir()
            return super().read(seed)

    @dataclass(kw_only=True)
    class Bare(Dataset):
        def read(self, seed): ...

    @dataclass(kw_only=True)
    class Broken(Bare):
        def write_sample(self, directory):
            raise KeyError("x")

    assert len(Mine(sample=True).load(0).test) == 500
    for cls, message in (
        (Bare, "dataset.sample: Bare makes none; add a method write_sample(directory) to the class"),
        (Broken, "dataset: Broken.write_sample raises KeyError: 'x'"),
    ):
        with pytest.raises(DatasetError) as caught:
            cls(sample=True).load(0)
        assert str(caught.value).startswith(message)
