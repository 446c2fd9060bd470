"""What one end of an edge mixes in the round after the other gives it up (docs/reliability_lost_edges.md)."""

import torch

from decentnode.graph.families import Ring
from decentnode.sharing import Choco, DeepSqueeze, Gossip, PowerGossip, ZipDl
from decentnode.sharing.power_gossip import blocks
from decentnode.testing import Lockstep
from decentnode.transforms.sparsify.top_k import TopK
from tests.support.scheme_cases import MATRICES, random_models

LOST_IN, BACK_IN = 6, 10
GIVES_UP, MIXES = 3, 2
"""Rank 3 does not hear rank 2 in one round; afterwards neither hears the other, until both agree again."""
W = 1 / 3


class OneWay(Lockstep):
    """A ring of six; keeps by how much the sum of all models changes in each round."""

    def __init__(self, make, transforms=tuple):
        super().__init__(make, Ring(6), random_models(6, 28), transforms, parameters=MATRICES)
        self.is_live = self._is_live
        self.changes = []

    def _is_live(self, i, j):
        if self.round == LOST_IN:
            return (i, j) != (GIVES_UP, MIXES)
        return {i, j} != {GIVES_UP, MIXES} or not LOST_IN < self.round < BACK_IN

    def mix(self):
        total = self.models.sum(0)
        mixed = super().mix()
        self.changes.append(mixed.sum(0) - total)
        return mixed

    def check(self, expected):
        """Runs on; the sum has changed by this in the round of the loss, and in no other."""
        self.run(BACK_IN + 6 - self.round)
        assert expected.norm() > 0.01
        assert torch.allclose(self.changes.pop(LOST_IN), expected, rtol=0, atol=1e-12)
        assert torch.stack(self.changes).abs().max() < 1e-12


def test_gossip_moves_the_sum_once_by_the_difference_over_that_edge():
    nodes = OneWay(Gossip)
    x = nodes.run(LOST_IN)
    nodes.check(W * (x[GIVES_UP] - x[MIXES]))


def test_deep_squeeze_moves_the_sum_once_by_the_difference_of_what_was_sent():
    nodes = OneWay(lambda: DeepSqueeze(gamma=0.3), lambda: (TopK(0.5),))
    nodes.run(LOST_IN + 1)
    c = [nodes.schemes[rank]._c for rank in (GIVES_UP, MIXES)]
    nodes.check(0.3 * W * (c[0] - c[1]))


def test_power_gossip_moves_the_sum_once_by_the_part_of_the_difference_that_it_sends():
    nodes = OneWay(PowerGossip)
    x = nodes.run(LOST_IN)
    assert LOST_IN % 2 == 0, "X p is sent, not X^T p"
    expected = W * (x[GIVES_UP] - x[MIXES])
    for block, p in zip(blocks(MATRICES, 1), nodes.state("_p")[MIXES][GIVES_UP], strict=True):
        if block.rank:
            D = block.matrix(expected)
            D.copy_(D @ p @ p.T)
    nodes.check(expected)


def test_choco_per_edge_moves_the_sum_once_by_the_difference_of_the_copies():
    nodes = OneWay(lambda: Choco(gamma=0.3, copies="edge"), lambda: (TopK(0.5),))
    nodes.run(LOST_IN + 1)
    copies = nodes.state("_models")[MIXES]
    nodes.check(0.3 * W * (copies["theirs"][GIVES_UP] - copies["own"][GIVES_UP]))


def test_zip_dl_moves_the_sum_once_and_its_noise_cancels_without_the_edge():
    nodes = OneWay(lambda: ZipDl(sigma=1.0))
    nodes.run(LOST_IN + 1)
    given_up, mixed = (nodes.schemes[rank]._sent_models for rank in (GIVES_UP, MIXES))
    nodes.check(W * (given_up[MIXES] - mixed[GIVES_UP]))
