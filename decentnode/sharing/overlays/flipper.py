"""The flips of `graph: flipper`, by messages between neighbors."""

from collections.abc import Iterable
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Field, Layout, Payload, PayloadError
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph, complete
from decentnode.graph.overlays.flipper import Flipper
from decentnode.sharing.base import Exchange, Incoming, Sharing
from decentnode.sharing.overlays.base import Overlay, at

NUMBERS = torch.int32


class FlipperOverlay(Overlay):
    """Swaps links with neighbors of neighbors (Mahlmann and Schindelhauer, SPAA 2005, 1-Flipper).

    1. All nodes send their links to their neighbors.
    2. Hubs u and v that are partners send each other the leaf that they would swap, a and b.
    3. A hub tells the leaves at its disposal which of them gets which new link.

    Each exchange is with present neighbors alone, and who is whose partner follows from the links of both. So
    every node knows whom it receives from. A link to a lost peer stays as it is until that peer is back: it
    takes part in no flip. If the second or third message of a flip is lost, some of its four nodes have a
    link that the other end does not know; each such link counts as a lost edge.
    """

    own_state: ClassVar = ("links",)

    def __init__(self, scheme: Sharing, weighted: WeightedGraph) -> None:
        assert isinstance(weighted.graph, Flipper)
        self.graph = weighted.graph
        self.links: list[int] = []
        """The neighbors, ascending; empty before the first round."""
        self._rank = -1
        super().__init__(scheme, weighted)

    @property
    def most_exchanges(self) -> int:
        return 3 * self.graph.repeats

    @cached_property
    def message_layout(self) -> Layout:
        return Layout((Field("ranks", NUMBERS, max(2, self.graph.degree), variable=True),))

    def negotiates(self, round: int) -> bool:
        return bool(self.graph.turns(round))

    def place(self, view: View) -> View:
        self._begin_at(view.rank)
        weights = dict.fromkeys(self.links, 1 / (1 + self.graph.degree))
        return at(view, self.links, complete(weights, view.rank))

    async def negotiate(self, vector: Tensor, view: View, exchange: Exchange) -> None:
        self._begin_at(view.rank)
        for turn in self.graph.turns(view.round):
            await self._flip(turn, view, exchange)

    async def _flip(self, turn: int, view: View, exchange: Exchange) -> None:
        graph, me = self.graph, view.rank
        # Roles follow from the links as they are sent here, also where a peer is lost in this exchange.
        mine = [~j if j in self.lost else j for j in self.links]
        theirs = self._links_in(await exchange(self._to(self.links, mine), self.links), view)
        partner, served = self._roles(me, turn, mine, theirs=theirs)
        of_partner = {_rank(j) for j in theirs[partner]} if partner is not None else set[int]()
        # Links to lost peers count, too: a node has at most one link to another.
        leaf = graph.drawn(me, {*served} - of_partner, turn) if partner is not None else None

        partners = [] if partner is None else [partner]
        offer = [] if leaf is None else [leaf]
        offers = self._links_in(await exchange(self._to(partners, offer), partners), view)
        new = next((j for links in offers.values() for j in links), None)
        is_new = new is not None and new in of_partner and new not in (*self.links, me)

        hub = None if graph.is_hub(me, turn) else graph.served(me, _live(mine), turn)
        hubs = [] if hub is None else [hub]
        news = [leaf, partner] if leaf is not None and partner is not None and is_new else []
        swaps = self._links_in(await exchange(self._to(served, news), hubs), view)
        if news and new is not None:
            self._swap(news[0], new)
        for source, links in swaps.items():
            if links[:1] == [me]:
                self._swap(source, links[-1])

    def _roles(
        self, me: int, turn: int, mine: list[int], theirs: dict[int, list[int]]
    ) -> tuple[int | None, list[int]]:
        """The partner of a hub, and the leaves at its disposal; neither for a leaf."""
        graph = self.graph
        if not graph.is_hub(me, turn):
            return None, []
        partner = graph.partner(me, _live(mine), turn)
        if partner not in theirs or graph.partner(partner, _live(theirs[partner]), turn) != me:
            partner = None
        leaves = [j for j in theirs if not graph.is_hub(j, turn)]
        return partner, [j for j in leaves if graph.served(j, _live(theirs[j]), turn) == me]

    def _begin_at(self, rank: int) -> None:
        self._rank = rank
        self.links = self.links or [*self.graph.adjacency[rank]]

    def _to(self, targets: Iterable[int], ranks: list[int]) -> dict[int, Payload]:
        """Returns one message for all these targets."""
        return dict.fromkeys(
            targets, Payload.of(self.message_layout, {"ranks": torch.tensor(ranks, dtype=NUMBERS)})
        )

    def _links_in(self, incoming: Incoming, view: View) -> dict[int, list[int]]:
        """The ranks in each message."""
        return self.decode_each(incoming, view, lambda j, payload: self._checked(payload["ranks"].tolist()))

    def _checked(self, ranks: list[int]) -> list[int]:
        if not all(0 <= _rank(j) < self.graph.nodes for j in ranks):
            raise PayloadError(f"links to ranks outside 0..{self.graph.nodes - 1}")
        return ranks

    def _swap(self, old: int, new: int) -> None:
        """Replaces a link; a message that contradicts the own links changes nothing."""
        if old in self.links and new not in (*self.links, self._rank):
            self.links = sorted({*self.links, new} - {old})


def _rank(link: int) -> int:
    """The rank of a link in a message; links to lost peers are complements."""
    return ~link if link < 0 else link


def _live(links: Iterable[int]) -> list[int]:
    return [j for j in links if j >= 0]
