"""The network of the Reddit experiments."""

from dataclasses import dataclass

from torch import Tensor, nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, ids_shape, perceptron
from decentnode.options import Positive


class WordLstm(nn.Module):
    """Scores of the word after a text, from the state at its last word."""

    def __init__(self, embedding: nn.Embedding, lstm: nn.LSTM, scores: nn.Sequential) -> None:
        super().__init__()
        self.embedding = embedding
        self.lstm = lstm
        self.scores = scores

    def forward(self, ids: Tensor) -> Tensor:
        """Ids, shape (batch, length), to scores, shape (batch, words)."""
        _, (last, _) = self.lstm(self.embedding(ids))
        scores: Tensor = self.scores(last[-1])
        return scores


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
        return WordLstm(
            nn.Embedding(num_classes, self.embedding, padding_idx=0),
            nn.LSTM(self.embedding, self.hidden, self.layers, batch_first=True),
            perceptron((self.hidden,), (self.features, num_classes)),
        )
