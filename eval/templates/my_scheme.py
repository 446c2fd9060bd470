"""A scheme: what a node sends, and how it mixes what it receives."""

from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.graph import View
from decentnode.options import Fraction
from decentnode.sharing.base import Incoming, Payload, Sharing


@dataclass
class MyScheme(Sharing):
    """Goes a part, gamma, of the way towards the neighbors' models (authors, year, Alg. 1: cite yours here).

    x_i <- y_i + gamma * sum_j w_ij (y_j - y_i),   y_i the model after the local steps
    """

    gamma: Fraction = 0.5
    """The fields are the options in YAML."""

    def outgoing(self, vector: Tensor, view: View) -> dict[int, Payload]:
        return self.encode(vector, view)  # y_i, through the transforms, for each neighbor

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        models = {view.rank: vector, **self.decode(incoming, view, fill=vector)}  # y_i, and y_j by rank
        self.weighted_mix(models, view, out, origin=vector)  # out <- sum_j w_ij (y_j - y_i)
        torch.add(vector, out, alpha=self.gamma, out=out)  # out <- x_i, the new model
