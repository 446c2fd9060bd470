"""A recurrent network for texts of any length."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, ids_shape
from decentnode.models.blocks.recurrent import Recurrent, stacked
from decentnode.options import Positive, Probability


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
    """The dropout of the states between two layers."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        ids_shape(shape, "lstm")
        return Recurrent(
            nn.Embedding(num_classes if self.ids is None else self.ids, self.embedding),
            stacked(self.embedding, self.hidden, self.layers, drop=self.dropout),
            nn.Linear(self.hidden, num_classes),
            reads=self.scores,
        )
