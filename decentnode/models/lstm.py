"""A recurrent network for texts of any length."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, ids_shape
from decentnode.options import Positive, Probability


class TextLstm(nn.Module):
    """Scores from the state at each token, or from that at the last one."""

    def __init__(self, embedding: nn.Embedding, lstm: nn.LSTM, scores: nn.Linear, is_last: bool) -> None:
        """`is_last`: whether the last state alone is scored."""
        super().__init__()
        self.embedding = embedding
        self.lstm = lstm
        self.scores = scores
        self.is_last = is_last

    def forward(self, ids: Tensor) -> Tensor:
        """Ids, shape (batch, length), to scores, shape (batch, classes, length) or (batch, classes)."""
        states, _ = self.lstm(self.embedding(ids))
        scores: Tensor = self.scores(states[:, -1] if self.is_last else states)
        return scores if self.is_last else scores.transpose(1, 2)


@MODELS.register("lstm")
@dataclass
class Lstm(Model):
    """Stacked LSTMs that score the next token at each position (Zaremba et al., 2014, section 3).

    With `scores: last` they score a text as a whole, as those for Sent140 do (Caldas et al., 2018, LEAF).
    """

    embedding: Positive = 64
    hidden: Positive = 128
    layers: Positive = 2
    ids: Positive | None = None
    """The number of different ids; null: that of the classes, as for the next token."""
    scores: Literal["each", "last"] = "each"
    """The tokens whose states are scored."""
    dropout: Probability = 0.0
    """Of the states between two layers."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        ids_shape(shape, "lstm")
        drop = self.dropout if self.layers > 1 else 0.0
        return TextLstm(
            nn.Embedding(num_classes if self.ids is None else self.ids, self.embedding),
            nn.LSTM(self.embedding, self.hidden, self.layers, batch_first=True, dropout=drop),
            nn.Linear(self.hidden, num_classes),
            self.scores == "last",
        )
