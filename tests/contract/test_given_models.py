"""What a node that comes back goes on from: its checkpoint, or a neighbor's model where one is given."""

from pathlib import Path

import pytest

from decentnode import checkpoint
from decentnode.experiment import Experiment
from decentnode.returning import bring_back
from tests.contract.in_process import Nodes

CONFIGS = Path(__file__).parents[2] / "configs"
INPROC = ["communication=inproc"]


def may_fetch(directory, config, *overrides):
    """For each pair of ranks whether the second gets the model of the first; and who are partners."""
    experiment = Experiment.from_yaml(CONFIGS / config, [*INPROC, *overrides])
    nodes, graph = Nodes(experiment, directory / "run").nodes, experiment.graph.graph
    pairs = [(i, j) for i in range(len(nodes)) for j in range(len(nodes)) if i != j]
    given = {(i, j) for i, j in pairs if nodes[i].exchange.may_fetch(j)}
    return given, {(i, j) for i, j in pairs if j in graph.partners(i)}


def test_partners_in_the_graph_get_the_model_and_nobody_else(tmp_path):
    given, partners = may_fetch(tmp_path, "quickstart.yaml")
    assert given == partners
    assert len(partners) == 16 * 4


@pytest.mark.parametrize("config", ["secure_aggregation.yaml", "private.yaml", "choco.yaml"])
def test_where_models_are_masked_or_protected_or_nobody_comes_back_none_is_given(tmp_path, config):
    given, partners = may_fetch(tmp_path, config)
    assert partners
    assert not given


class Nobody:
    """A transport over which a node comes back, and nobody gives it a model."""

    def come_back(self, peers, timeout):
        return 5


def test_who_comes_back_and_is_stopped_before_a_new_round_is_not_saved_again(tmp_path, monkeypatch):
    experiment = Experiment.from_yaml(CONFIGS / "quickstart.yaml", INPROC)
    nodes = Nodes(experiment, tmp_path / "run").begin().run(0, 2)
    nodes.saved()
    back = Nodes(experiment, tmp_path / "again")
    bring_back(back.nodes[:1], {0: [1]}, Nobody(), nodes.lineage, 1.0)
    assert back.nodes[0].round == 1
    monkeypatch.setattr(type(back.nodes[0].course), "is_cut_short", True)
    monkeypatch.setattr(checkpoint, "save", None)
    back.nodes[0].checkpoints.at_the_end(back.nodes[0])
