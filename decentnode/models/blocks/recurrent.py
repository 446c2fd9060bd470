"""An embedding, stacked LSTMs and a head: what the recurrent networks have in common."""

from typing import Literal

from torch import Tensor, nn


class Recurrent(nn.Module):
    """Scores of a text from the states of an LSTM at its tokens."""

    def __init__(
        self, embedding: nn.Embedding, lstm: nn.LSTM, scores: nn.Module, reads: Literal["each", "last", "all"]
    ) -> None:
        """`reads`: what the head scores: each state by itself, the last one, or all together."""
        super().__init__()
        self.embedding = embedding
        self.lstm = lstm
        self.scores = scores
        self.reads = reads

    def forward(self, ids: Tensor) -> Tensor:
        """Ids (batch, length) to scores (batch, classes), or with `each` (batch, classes, length)."""
        states, _ = self.lstm(self.embedding(ids))
        if self.reads == "all":
            states = states.flatten(1).relu()
        elif self.reads == "last":
            states = states[:, -1]
        scores: Tensor = self.scores(states)
        return scores.transpose(1, 2) if self.reads == "each" else scores


def stacked(inputs: int, hidden: int, layers: int, drop: float = 0.0) -> nn.LSTM:
    """Builds stacked LSTMs; `drop`: the share of the states between two that is dropped."""
    # torch warns where there is nothing between layers.
    return nn.LSTM(inputs, hidden, layers, batch_first=True, dropout=drop if layers > 1 else 0.0)
