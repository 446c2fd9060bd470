"""Counts which coordinates a node sends, and how often."""

import math
from typing import Any, ClassVar

import torch

from decentnode.core.payload import Payload
from decentnode.core.state import Stateful
from decentnode.transforms.base import VECTOR, Context, Transform


class SentCoordinates(Stateful):
    """The rounds in which each coordinate was sent, in the basis in which a transform selects it.

    One that is sent several times in a round, to several neighbors or in several payloads, counts once.
    """

    state: ClassVar = ("rounds", "latest")

    def __init__(self, elements: int) -> None:
        self.rounds = torch.zeros(elements, dtype=torch.int32)
        """In how many rounds each was sent."""
        self.latest = torch.full((elements,), -1, dtype=torch.int32)
        """The round in which each was sent last, counted from 0; -1: in none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "SentCoordinates":
        # The chains of one node count together, whether they encode several signals or one for each edge.
        return self

    def add(self, transform: Transform, payload: Payload, context: Context) -> None:
        """Counts what the selecting transform has sent: what it does not decode from the fill."""
        (dense,) = transform.input_layout.fields
        unknown = torch.full((dense.elements,), math.nan, dtype=dense.dtype, device=payload.buffer.device)
        sent = ~transform.decode(payload, context.filled_with(unknown))[VECTOR].isnan().cpu()
        self.rounds += sent & (self.latest != context.round)
        self.latest[sent] = context.round
