"""The graph of nodes whose models are sharded: each shard exchanges with the same shard of the neighbors."""

from dataclasses import dataclass

from decentnode.core.registry import name_of
from decentnode.errors import GraphError
from decentnode.graph.base import Changes, Graph
from decentnode.options import Positive


@dataclass
class ShardPlanes(Graph):
    """Copies of a graph of nodes, one for each shard: rank i S + s is shard s of node i.

    W is that of the nodes on every plane, so a scheme that acts on coordinates one by one has the same result
    as for whole models (design as in HSDP, torch.distributed.fsdp, with gossip between the groups).
    """

    inner: Graph
    """The graph of the nodes."""
    shards: Positive = 1
    """S, the processes that a model is sharded over."""

    allow_disconnected = True

    def __post_init__(self) -> None:
        inner = self.inner
        if inner.is_more_than_edges:
            raise GraphError(f"{name_of(inner)} has roles or asks others, which shards of a node cannot do")
        self.directed, self.has_weights, self.has_rests = inner.directed, inner.has_weights, inner.has_rests

    @property
    def num_nodes(self) -> int:
        return self.inner.num_nodes * self.shards

    @property
    def period(self) -> int | None:
        return self.inner.period

    @property
    def changes(self) -> Changes:
        spans = self.inner.changes.spans
        return Changes(
            tuple(
                (rounds, self if graph is self.inner else ShardPlanes(graph, self.shards))
                for rounds, graph in spans
            )
        )

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self._on_plane(rank, self.inner.targets(rank // self.shards, round))

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return self._on_plane(rank, self.inner.sources(rank // self.shards, round))

    def weights(self, rank: int, round: int) -> dict[int, float]:
        own = self.inner.weights(rank // self.shards, round)
        return {node * self.shards + rank % self.shards: weight for node, weight in own.items()}

    def trains(self, rank: int, round: int) -> bool:
        return self.inner.trains(rank // self.shards, round)

    def draw_ahead(self, rounds: range) -> None:
        self.inner.draw_ahead(rounds)

    def _on_plane(self, rank: int, nodes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(node * self.shards + rank % self.shards for node in nodes)
