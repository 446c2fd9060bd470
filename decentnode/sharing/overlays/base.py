"""A scheme on a graph that the nodes agree on by messages of their own."""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.base import Exchange, Incoming, Promises, Sharing
from decentnode.sharing.wrapper import SchemeWrapper


class Overlay(SchemeWrapper):
    """A scheme whose node knows its neighbors of a round from exchanges before those of the scheme.

    Both ends of an edge must agree that it exists in a round. So all nodes make the same number of these
    exchanges in the same rounds, and each knows whom it receives from: neighbors of the last round, or of a
    graph that all compute. Where messages are lost, ends may differ: then one waits for the other until its
    deadline, as for a lost peer. State: that of the scheme, and what `own_state` names.
    """

    own_state: ClassVar[tuple[str, ...]] = ()

    def __init__(self, scheme: Sharing, weighted: WeightedGraph) -> None:
        super().__init__(scheme)
        self.weighted = weighted
        self.lost: set[int] = set()
        self._before = self.most_exchanges
        """Exchanges in this round before those of the scheme."""
        self._view: View | None = None

    def adjust_promises(self, promises: Promises) -> Promises:
        # A restarted process has no state, and its neighbors' links have changed.
        return replace(promises, phases=self.most_exchanges + promises.phases, allows_rejoin=False)

    @property
    @abstractmethod
    def most_exchanges(self) -> int:
        """Exchanges in a round before those of the scheme, at most."""

    @property
    @abstractmethod
    def message_layout(self) -> Layout:
        """The layout of their payloads."""

    @abstractmethod
    def negotiates(self, round: int) -> bool:
        """Whether there are such exchanges in that round; the same on all nodes."""

    @abstractmethod
    async def negotiate(self, vector: Tensor, view: View, exchange: Exchange) -> None:
        """Makes exactly `most_exchanges` exchanges; learns the neighbors."""

    @abstractmethod
    def place(self, view: View) -> View:
        """Returns this node's view of the round."""

    def payload_layout(self, phase: int = 0) -> Layout | None:
        before = self._before
        return self.message_layout if phase < before else self.scheme.payload_layout(phase - before)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        return self.scheme.outgoing(vector, self.place(view))

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self.scheme.mix(vector, incoming, self.place(view), out)

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Agrees on the neighbors where this round is due, then runs one round of the scheme."""
        self._before = self.most_exchanges if self.negotiates(view.round) else 0
        if self._before:
            await self.negotiate(vector, view, exchange)
        self._view = self.place(view)
        await self.scheme.share(vector, self._view, exchange, out=out)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        # Of the overlay nothing is undone where a mix is discarded: the other ends have changed, too.
        self.scheme.accept(vector, self._view or view, mixed)

    def on_peer_lost(self, rank: int) -> None:
        self.lost.add(rank)
        self.scheme.on_peer_lost(rank)

    def on_peer_back(self, rank: int) -> None:
        self.lost.discard(rank)
        self.scheme.on_peer_back(rank)

    def state_dict(self) -> dict[str, Any]:
        attributes = {name: getattr(self, name) for name in self.own_state}
        return {"scheme": self.scheme.state_dict(), "overlay": attributes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scheme.load_state_dict(state["scheme"])
        for name in self.own_state:
            value = state["overlay"][name]
            setattr(self, name, value.clone() if isinstance(value, Tensor) else value)


def at(view: View, neighbors: Collection[int], weights: dict[int, float]) -> View:
    """The view with these neighbors, ascending, and symmetric weights."""
    ranks = tuple(neighbors)
    return replace(
        view, targets=ranks, sources=ranks, weights=weights, outgoing_weights=weights, co_senders={}
    )
