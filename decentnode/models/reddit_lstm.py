"""The network of the Reddit experiments."""

from dataclasses import dataclass

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, ids_shape, perceptron
from decentnode.models.blocks.recurrent import Recurrent, stacked
from decentnode.options import Positive


@MODELS.register("reddit_lstm")
@dataclass
class RedditLstm(Model):
    """A two-layer LSTM over words that predicts the next one (Caldas et al., 2018, "LEAF", Reddit).

    4,317,895 parameters for 9,999 words, as in decentralizepy (class RNN of Dhasade et al., 2023). Id 0 is
    padding, whose embedding stays zero.
    """

    embedding: Positive = 200
    hidden: Positive = 256
    layers: Positive = 2
    features: Positive = 128
    """The width of the layer between the last state and the scores."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        ids_shape(shape, "reddit_lstm")
        return Recurrent(
            nn.Embedding(num_classes, self.embedding, padding_idx=0),
            stacked(self.embedding, self.hidden, self.layers),
            perceptron((self.hidden,), (self.features, num_classes)),
            reads="last",
        )
