"""CHOCO-SGD: compressed differences to public copies."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.sharing.base import Incoming, Promises
from decentnode.sharing.blocks.copies import CopySharing


@SHARINGS.register("choco", "choco_sgd", "choco_gossip")
@dataclass
class Choco(CopySharing):
    """Sends compressed differences to public copies (CHOCO-SGD: Koloskova et al., ICML 2019, Alg. 2).

    q_i = C(y_i - h_i),   h_i <- h_i + q_i,   x_i <- y_i + gamma sum_j w_ij (h_j - h_i)

    y_i is the model after the local steps; all h_i start at the common initial model. What was not sent stays
    in y_i - h_i, so every chain may be lossy, and needs no error feedback. State: h_i and the sum, 2 d. Needs
    a static graph. gamma must fit W and C: on a ring of 8, for 10 % of all coordinates, 0.2 is good and 0.4
    diverges. `decentnode tune` finds it. A run that diverges is ended.

    With `copies: edge` (own form, 2026) h_ij is what j knows of i: it changes only in rounds in which the two
    exchange, on any sequence of graphs, and x_i <- y_i + gamma sum_j w_ij (h_ji - h_ij). Symmetric weights
    keep the mean. Nodes may be lost: such a pair starts again from the common initial model, as does one that
    was not used for `memory` rounds. On 8 nodes with 3 random neighbors each, for 10 % of all coordinates,
    gamma .1 and .2 are good, .8 is slow. State: the initial model, the sum and 2 d for each neighbor that is
    remembered.
    """

    promises = Promises(
        by_coordinate=True,
        keeps_mean=True,
        tolerates_loss=False,
        carries_errors=True,
        sends="differences",
        overlaps=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.promises = replace(self.promises, tolerates_loss=self.by_edge)

    def begin(self, vector: Tensor) -> None:
        super().begin(torch.zeros_like(vector))
        self._models.begin(vector)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        return self._models.send(self, vector, view, self.chain)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self._models.learn(self, incoming, view, self.chain, scratch=out)
        torch.add(vector, self._models.p, alpha=self.gamma, out=out)

    def on_peer_lost(self, rank: int) -> None:
        self._models.drop(rank)
