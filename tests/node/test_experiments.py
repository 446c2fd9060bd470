"""Every published experiment that ships: its network has the published size, and small ones train."""

import re
from pathlib import Path

import pytest
import torch

from decentnode.config import extends, loader
from decentnode.node.experiment import Experiment
from tests.support.in_process import Nodes

EXPERIMENTS = Path(__file__).parents[2] / "configs" / "experiments"
PATHS = sorted(EXPERIMENTS.rglob("*.yaml"))
SHAPES = {
    "celeba": ((3, 84, 84), 2),
    "cifar10": ((3, 32, 32), 10),
    "femnist": ((1, 28, 28), 62),
    "idx": ((1, 28, 28), 10),
    "image_folder": ((3, 224, 224), 1000),
    "movielens": ((2,), 1),
    "parallel": ((156,), 0),
    "reddit": ((10,), 9999),
    "shakespeare": ((80,), 92),
    "tokens": ((1024,), 0),
}
"""Shape of a sample and number of classes of each data set; 0: the files name the vocabulary."""
MOST_PARAMETERS = 3_000_000
QUICK = [
    "dataset.sample=true", "communication=inproc", "graph={name: ring, nodes: 4}", "rounds=2",
    "evaluation={every: 0, final: false}", "training.batch_size=2", "training.steps_per_round=1",
]  # fmt: skip


def stated(path):
    """The number of parameters in the head of a file or of its base."""
    files = [path, *map(Path, extends.read(path).bases)]
    matches = [re.search(r"([\d,]+) parameters", file.read_text()) for file in files]
    return next(int(result[1].replace(",", "")) for result in matches if result)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_network_has_the_size_that_its_file_states(path):
    text, settings = path.read_text(), loader.load(path)
    assert "# Expected: " in text and ("# Source" in text)
    shape, classes = SHAPES[settings.dataset.name]
    with torch.device("meta"):
        network = settings.model.make().build(shape, settings.dataset.options.get("vocabulary", classes))
    assert sum(parameter.numel() for parameter in network.parameters()) == stated(path)


SMALL = [path.stem for path in PATHS if "_" not in path.stem and stated(path) <= MOST_PARAMETERS]


LONG = {"femnist", "shakespeare"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in SMALL]
)
def test_small_experiments_train_on_a_sample(name, tmp_path):
    """All schemes of a data set, four nodes each; the sample is loaded once."""
    folder = EXPERIMENTS / "decentralizepy"
    whole = loader.load(folder / f"{name}.yaml", QUICK).dataset.make().whole(1)
    for path in sorted(folder.glob(f"{name}*.yaml")):
        experiment = Experiment.from_settings(loader.load(path, QUICK), whole)
        nodes = Nodes(experiment, tmp_path / path.stem).begin()
        before = nodes.models
        after = nodes.run(0, 2).models
        assert after.isfinite().all(), path
        assert all(not torch.equal(*pair) for pair in zip(before, after, strict=True)), path
        assert nodes.bytes_sent > 0
