"""Who gives a neighbor that comes back its model as it is."""

from pathlib import Path

import pytest

from decentnode.experiment import Experiment
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
