"""The gossip of `graph: similarity`: descriptors of nodes, until all have all of them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from decentnode.core.payload import Field, Layout, Payload, PayloadError
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.overlays.similarity import ChosenGraph, Similarity, unit
from decentnode.sharing.base import Exchange, Sharing
from decentnode.sharing.overlays.base import Overlay


class SimilarityOverlay(Overlay):
    """Spreads descriptors, then links each node with its choice and with those that choose it.

    A node whose descriptor does not arrive in time is chosen by nobody until the next choice. Nodes that know
    different descriptors choose different links, and an end may wait for one that does not know the link.
    State: the descriptors, n * size numbers of 16 bits, and the projections of two models.
    """

    own_state: ClassVar = ("ranks", "descriptors", "chosen_in", "origin", "last")

    def __init__(self, scheme: Sharing, weighted: WeightedGraph) -> None:
        assert isinstance(weighted.graph, Similarity)
        self.graph = weighted.graph
        self.ranks = torch.zeros(0, dtype=torch.int64)
        """The ranks whose descriptors are known, ascending."""
        self.descriptors = torch.zeros(0, self.graph.size, dtype=torch.int16)
        self.chosen_in = -1
        """The round of the last choice."""
        self.origin = self.last = torch.zeros(0, dtype=torch.float64)
        """Projections of the model that all start from, and of that before the local steps of a round."""
        self._weighted: WeightedGraph | None = None
        """The graph between two choices, as this node knows it."""
        super().__init__(scheme, weighted)

    @property
    def most_exchanges(self) -> int:
        return len(self.graph.spread)

    @cached_property
    def message_layout(self) -> Layout:
        n = self.graph.nodes
        return Layout(
            (
                Field("ranks", torch.int64, n, variable=True),
                Field("descriptors", torch.int16, n * self.graph.size, variable=True),
            )
        )

    def negotiates(self, round: int) -> bool:
        return self.graph.chooses(round)

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        if self.graph.of != "labels":
            self.origin = self.last = self._projected(vector)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        super().accept(vector, view, mixed)
        if self.graph.of == "gradient" and self.negotiates(view.round + 1):
            self.last = self._projected(mixed)

    async def negotiate(self, vector: Tensor, view: View, exchange: Exchange) -> None:
        self.ranks = torch.tensor([view.rank])
        self.descriptors = torch.from_numpy(unit(self._descriptor(vector, view.rank)))[None]
        for adjacency in self.graph.spread:
            peers = adjacency[view.rank]
            sent = {"ranks": self.ranks, "descriptors": self.descriptors.flatten()}
            payload = Payload.of(self.message_layout, sent)
            incoming = await exchange(dict.fromkeys(peers, payload), peers)
            for ranks, descriptors in self.decode_each(
                incoming, view, lambda j, p: self._checked(p)
            ).values():
                self._learn(ranks, descriptors)
        self.chosen_in, self._weighted = view.round, None

    def place(self, view: View) -> View:
        if self._weighted is None:
            ranks, descriptors = (x.numpy().tobytes() for x in (self.ranks, self.descriptors))
            graph = ChosenGraph(self.graph.chosen(ranks, descriptors, self.chosen_in))
            self._weighted = WeightedGraph(graph, self.weighted.mixing, self.weighted.seed)
        return self._weighted.view(view.rank, view.round, view.learning_rate)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._weighted = None

    def _descriptor(self, vector: Tensor, rank: int) -> np.ndarray:
        if self.graph.of == "labels":
            return np.array(self.graph.histograms[rank])
        start = self.last if self.graph.of == "gradient" else self.origin
        return (self._projected(vector) - start).numpy()

    def _projected(self, vector: Tensor) -> Tensor:
        """Sums of the elements with random signs; element c is part of sum c mod size."""
        size = self.graph.size
        signs = torch.from_numpy(self.graph.signs(vector.numel())).to(vector.device)
        signed = torch.nn.functional.pad(vector * signs, (0, -vector.numel() % size))
        return signed.view(-1, size).sum(0, dtype=torch.float64).cpu()

    def _checked(self, payload: Payload) -> tuple[Tensor, Tensor]:
        """Copies of the ranks and their descriptors."""
        ranks, flat = payload["ranks"].cpu().clone(), payload["descriptors"].cpu().clone()
        known = ranks.tolist()
        if len(flat) != len(ranks) * self.graph.size or known != sorted(
            {*known} & {*range(self.graph.nodes)}
        ):
            raise PayloadError("its descriptors do not fit the graph")
        return ranks, flat.view(len(ranks), self.graph.size)

    def _learn(self, ranks: Tensor, descriptors: Tensor) -> None:
        """Adds the descriptors of ranks that are unknown."""
        is_new = ~torch.isin(ranks, self.ranks)
        if is_new.any():
            both = torch.cat([self.ranks, ranks[is_new]])
            self.ranks, order = both.sort()
            self.descriptors = torch.cat([self.descriptors, descriptors[is_new]])[order]
