"""The recommender of the MovieLens experiments."""

from dataclasses import dataclass

from torch import Tensor, nn

from decentnode.core.registry import MODELS
from decentnode.errors import BadInput
from decentnode.models.base import Model
from decentnode.options import Positive, PositiveFloat


class Factors(nn.Module):
    """A vector for each user and each item; a rating is their inner product."""

    def __init__(self, users: int, items: int, factors: int, start: float) -> None:
        """Factors are uniform from -`start` to `start`."""
        super().__init__()
        self.users = nn.Embedding(users, factors)
        self.items = nn.Embedding(items, factors)
        nn.init.uniform_(self.users.weight, -start, start)
        nn.init.uniform_(self.items.weight, -start, start)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids (user, item) from 0, shape (batch, 2), to ratings, shape (batch, 1)."""
        users, items = ids.unbind(1)
        ratings: Tensor = (self.users(users) * self.items(items)).sum(1, keepdim=True)
        return ratings


@MODELS.register("matrix_factorization")
@dataclass
class MatrixFactorization(Model):
    """Ratings as inner products of a user's and an item's factors (Koren et al., 2009, equation 1).

    The defaults are those of MovieLens latest-small in decentralizepy (Dhasade et al., 2023): 206,680
    parameters. The score is the rating itself, so the loss is one for regression.
    """

    users: Positive = 610
    items: Positive = 9724
    factors: Positive = 20
    start: PositiveFloat = 0.05
    """Factors start uniform from -start to start."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        if shape != (2,) or num_classes != 1:
            raise BadInput.at(
                "model",
                "matrix_factorization takes ids (user, item) of shape (2,) and gives one rating; the "
                f"dataset gives {shape} and {num_classes} classes",
            )
        return Factors(self.users, self.items, self.factors, start=self.start)
