"""Every configuration that ships trains: two rounds of all its nodes in this process."""

from pathlib import Path

import pytest
import torch

from decentnode.experiment import Experiment
from decentnode.registry import SHARINGS
from tests.contract.in_process import Nodes

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
QUICK = ["communication=inproc", "rounds=2", "training.scheduler=null", "evaluation.every=0"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_configuration_trains(path, tmp_path):
    experiment = Experiment.from_yaml(path, QUICK)
    nodes = Nodes(experiment, tmp_path / "nodes").begin()
    before = nodes.models
    after = nodes.run(0, 2).models
    assert after.isfinite().all()
    trains = [rank for rank, part in enumerate(experiment.parts) if len(part)]
    assert all(not torch.equal(before[rank], after[rank]) for rank in trains)
    assert all(not node.exchange.missing for node in nodes.nodes)


def test_every_family_of_schemes_has_a_configuration():
    """One for each family; the others of a family differ by the scheme's name alone."""
    shown = {Experiment.from_yaml(path, QUICK).settings.sharing.name for path in CONFIGS}
    relatives = {"all_reduce", "none", "d2", "decent_lam", "deep_squeeze", "moniqua"}
    assert shown | relatives == set(SHARINGS.classes())
