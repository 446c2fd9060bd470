"""A mix is discarded when a peer wrote again what was read for it: nothing of what was read may stay."""

import pytest
import torch

from decentnode.core.registry import SHARINGS
from tests.node.test_resume import equal, experiment_of
from tests.support.in_process import Nodes

# Whose state comes of what was read is dropped: a peer that writes again has dropped the edge.
PER_PEER = {"power_gossip", "choco_per_edge", "beer_per_edge"}
# What these read in one step of a round is in what they send in the next.
IN_STEPS = {"multi_gossip", "muffliato"}
TOLERANT = [
    name
    for name, cls in SHARINGS.classes().items()
    if cls.promises.tolerates_loss and not cls.asynchronous and name not in {*PER_PEER, *IN_STEPS, "none"}
]


def after_a_mix_of(numbers, experiment, directory):
    """State and model of rank 1, three rounds after one in which it read other numbers, or its peers' own."""
    nodes = Nodes(experiment, directory).begin().run(0, 3)
    node = nodes.nodes[1]
    honest, is_valid = node.sharing.mix, node.exchange.is_valid

    def mix(vector, incoming, view, out):
        torn = {}
        for j, payload in incoming.items():
            torn[j] = type(payload)(payload.layout, payload.buffer.clone(), payload.counts)
            for part in torn[j].layout.fields:
                if numbers is not None and part.name in ("vector", "values"):
                    torn[j][part.name].fill_(numbers)
        honest(vector, torn, view, out)

    def find_it_torn():
        is_valid()
        return False

    node.sharing.mix, node.exchange.is_valid = mix, find_it_torn
    nodes.run(3, 4)
    del node.sharing.mix, node.exchange.is_valid
    nodes.run(4, 7)
    return node.snapshot()["node"], nodes.models


@pytest.mark.parametrize("name", TOLERANT)
def test_nothing_of_it_stays(name, tmp_path):
    experiment = experiment_of(name, tmp_path)
    torn, models = after_a_mix_of(3.0, experiment, tmp_path / "torn")
    clean, expected = after_a_mix_of(None, experiment, tmp_path / "clean")
    assert torch.equal(models, expected)
    assert equal(torn, clean)
