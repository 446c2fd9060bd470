"""The network of the Shakespeare experiments."""

from dataclasses import dataclass

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, ids_shape
from decentnode.models.blocks.recurrent import Recurrent, stacked
from decentnode.options import Positive


@MODELS.register("shakespeare_lstm", "rnn_shakespeare", "char_lstm")
@dataclass
class ShakespeareLstm(Model):
    """A two-layer LSTM over characters that predicts the next one (McMahan et al., 2017, section 3).

    2,683,708 parameters on texts of 80 characters out of 92, as in decentralizepy (class LSTM of Dhasade et
    al., 2023): the last layer reads the states at all 80, in LEAF (Caldas et al., 2018) the last one.
    """

    embedding: Positive = 8
    hidden: Positive = 256
    layers: Positive = 2

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        length = ids_shape(shape, "shakespeare_lstm")
        return Recurrent(
            nn.Embedding(num_classes, self.embedding),
            stacked(self.embedding, self.hidden, self.layers),
            nn.Linear(self.hidden * length, num_classes),
            reads="all",
        )
