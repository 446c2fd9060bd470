"""One step between a signal and its bytes: payload -> payload, with an inverse."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from decentnode.payload import Form, Layout, Payload


@dataclass(frozen=True)
class Context:
    """What a transform may know beside the payload: the counters of shared randomness, and the own signal."""

    seed: int
    round: int
    sender: int
    receiver: int | None = None
    """None when one payload serves all receivers."""
    own: Tensor | None = None
    """The receiver's own signal at the same point of the chain, for filling in what was not sent."""


class Transform(ABC):
    """One stage of a chain; both ends know its options, so its payload describes nothing."""

    accepts: ClassVar[frozenset[Form]]
    emits: ClassVar[Form]

    @abstractmethod
    def layout(self, incoming: Layout) -> Layout:
        """What comes out of `encode` for payloads of layout `incoming`."""

    @abstractmethod
    def encode(self, payload: Payload, context: Context) -> Payload:
        """Transforms a payload on the sender's side; never changes the memory it was given."""

    @abstractmethod
    def decode(self, payload: Payload, context: Context) -> Payload:
        """The inverse, on the receiver's side, exact or within the bound that the class documents."""
