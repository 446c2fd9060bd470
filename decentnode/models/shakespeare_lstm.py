"""The network of the Shakespeare experiments."""

from dataclasses import dataclass

from torch import Tensor, nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, ids_shape
from decentnode.options import Positive


class CharacterLstm(nn.Module):
    """Scores of the character after a text, from the states at all its characters."""

    def __init__(self, embedding: nn.Embedding, lstm: nn.LSTM, scores: nn.Linear) -> None:
        super().__init__()
        self.embedding = embedding
        self.lstm = lstm
        self.scores = scores

    def forward(self, ids: Tensor) -> Tensor:
        """Ids, shape (batch, length), to scores, shape (batch, characters)."""
        states, _ = self.lstm(self.embedding(ids))
        scores: Tensor = self.scores(states.flatten(1).relu())
        return scores


@MODELS.register("shakespeare_lstm")
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
        return CharacterLstm(
            nn.Embedding(num_classes, self.embedding),
            nn.LSTM(self.embedding, self.hidden, self.layers, batch_first=True),
            nn.Linear(self.hidden * length, num_classes),
        )
