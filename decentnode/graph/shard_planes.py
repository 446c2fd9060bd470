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

    graph: Graph
    """The graph of the nodes."""
    shards: Positive = 1
    """S, the processes that a model is sharded over."""

    allow_disconnected = True

    def __post_init__(self) -> None:
        graph = self.graph
        if graph.is_more_than_edges:
            raise GraphError(f"{name_of(graph)} has roles or asks others, which shards of a node cannot do")
        self.directed, self.has_weights, self.has_rests = graph.directed, graph.has_weights, graph.has_rests

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes * self.shards

    @property
    def period(self) -> int | None:
        return self.graph.period

    @property
    def changes(self) -> Changes:
        spans = self.graph.changes.spans
        return Changes(
            tuple(
                (rounds, self if graph is self.graph else ShardPlanes(graph, self.shards))
                for rounds, graph in spans
            )
        )

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self._on_plane(rank, self.graph.targets(rank // self.shards, round))

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return self._on_plane(rank, self.graph.sources(rank // self.shards, round))

    def weights(self, rank: int, round: int) -> dict[int, float]:
        own = self.graph.weights(rank // self.shards, round)
        return {node * self.shards + rank % self.shards: weight for node, weight in own.items()}

    def trains(self, rank: int, round: int) -> bool:
        return self.graph.trains(rank // self.shards, round)

    def draw_ahead(self, rounds: range) -> None:
        self.graph.draw_ahead(rounds)

    def _on_plane(self, rank: int, nodes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(node * self.shards + rank % self.shards for node in nodes)
