"""The scheme: which signal is sent, and how what arrives is mixed in."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from decentnode.graph.base import View
from decentnode.payload import Layout, Payload
from decentnode.transforms.chain import Chain
from decentnode.vector import ParameterLayout

Incoming = Mapping[int, Payload]
"""What arrived: payloads by source rank. Sources that were late or lost are simply not there."""
Exchange = Callable[[Mapping[int, Payload], Sequence[int]], Awaitable[Incoming]]
"""Sends payloads by target rank and gives what came from the named sources (one neighborhood collective)."""


AdjustGradient = Callable[[Tensor, Tensor, int], None]
"""Changes the flat gradient in place, given (gradient, vector, step of the round)."""


class Sharing(ABC):
    """One scheme on one node. It does no I/O of its own and is tested without a network.

    The capabilities say what it needs, so that a combination that cannot work is refused before the start.
    """

    needs_static_graph: ClassVar[bool] = False
    needs_undirected_graph: ClassVar[bool] = False
    needs_complete_graph: ClassVar[bool] = False
    tolerates_loss: ClassVar[bool] = True
    preserves_mean: ClassVar[bool] = True
    sends_one_payload: ClassVar[bool] = True
    """One payload for all neighbors; false when each neighbor gets its own."""

    layout: ParameterLayout
    num_nodes: int
    chain: Chain
    seed: int

    def bind(self, layout: ParameterLayout, num_nodes: int, chain: Chain, seed: int) -> None:
        """Learns the model's layout, the number of nodes and the run's seed, once, before round 0."""
        self.layout, self.num_nodes, self.chain, self.seed = layout, num_nodes, chain, seed

    @abstractmethod
    def payload_layout(self, phase: int = 0) -> Layout | None:
        """What this scheme sends in exchange number `phase` of a round; None when it never sends."""

    @abstractmethod
    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        """The payload for each target, encoded; one object for several targets is serialized once."""

    @abstractmethod
    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        """Writes the new model into `out`, all of it; `vector` (shape (d,)) may still be read by peers."""

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """One round of communication; schemes with several exchanges in a round override this."""
        incoming = await exchange(self.outgoing(vector, view), view.sources)
        self.mix(vector, incoming, view, out)

    @property
    def adjust_gradient(self) -> AdjustGradient | None:
        """What this scheme does to the flat gradient inside a local step; None: nothing."""
        return None

    def on_peer_lost(self, rank: int) -> None:  # noqa: B027 - most schemes keep nothing per peer
        """Called once, before the first round without that peer; schemes with state per peer drop it."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed node needs beside the vector."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most schemes have no state
        """Continues from `state_dict()`."""
