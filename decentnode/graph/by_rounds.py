"""Graphs that follow each other: each holds from a round of the run on."""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from decentnode.core.registry import GRAPHS, name_of
from decentnode.core.text import counted
from decentnode.errors import Defect, GraphError, refuse
from decentnode.graph.base import ENDLESS, MORE_THAN_EDGES, AperiodicGraph, Changes, Graph
from decentnode.graph.mixing import FromGraph, Mixing, Weights
from decentnode.options import NonNegative


@GRAPHS.register("by_rounds")
@dataclass(frozen=True)
class ByRounds(AperiodicGraph):
    """Other graphs, each from a round on: first few edges, then more (Zhu et al., ICLR 2026: late merging).

    The schedule has `[first round, graph]`, in rounds from 0; the last graph holds to the end. Rounds of a
    graph that changes are those of the run: it is in its round 90 where it begins in round 90. Each graph has
    its own weights, or those that are the default for it.
    """

    schedule: tuple[tuple[NonNegative, Graph], ...]

    has_weights = True

    def __post_init__(self) -> None:
        refuse(self._defects(), GraphError)
        graphs = [graph for _, graph in self.schedule]
        for name in ("directed", "has_rests", "allow_disconnected"):
            object.__setattr__(self, name, any(getattr(graph, name) for graph in graphs))

    def _defects(self) -> Iterator[Defect]:
        if not self.schedule:
            yield Defect(("schedule",), "must have at least one [first round, graph]")
            return
        if self.schedule[0][0] != 0:
            what = f"must be 0, as the first graph holds from the start, not {self.schedule[0][0]}"
            yield Defect(("schedule", 0, 0), what, "empty is a graph without edges")
        for index, ((earlier, _), (later, _)) in enumerate(pairwise(self.schedule), 1):
            if later <= earlier:
                what = f"must be above {earlier}, the first round of the graph before it, not {later}"
                yield Defect(("schedule", index, 0), what)
        first_graph = self.schedule[0][1]
        for index, (_, graph) in enumerate(self.schedule):
            key = ("schedule", index, 1)
            if graph.is_more_than_edges:
                yield Defect(key, f"{name_of(graph)} {MORE_THAN_EDGES}")
            elif isinstance(graph, ByRounds):
                yield Defect(key, "must be a graph other than by_rounds; write all into one schedule")
            elif graph.num_nodes != first_graph.num_nodes:
                nodes = f"{name_of(graph)} has {counted(graph.num_nodes, 'node')}"
                other = f"{name_of(first_graph)} has {first_graph.num_nodes}"
                yield Defect(key, f"{nodes}, but {other}; all graphs must have the same nodes")

    @property
    def num_nodes(self) -> int:
        return self.schedule[0][1].num_nodes

    @cached_property
    def changes(self) -> Changes:
        ends = [*self._first_rounds[1:], ENDLESS]
        spans = zip(self.schedule, ends, strict=True)
        return Changes(tuple((range(first, end), graph) for (first, graph), end in spans))

    def graph_in(self, round: int) -> Graph:
        """The graph that holds in a round."""
        return self.schedule[bisect(self._first_rounds, round) - 1][1]

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self.graph_in(round).targets(rank, round)

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return self.graph_in(round).sources(rank, round)

    def in_degree(self, rank: int, round: int) -> int:
        return self.graph_in(round).in_degree(rank, round)

    def trains(self, rank: int, round: int) -> bool:
        return self.graph_in(round).trains(rank, round)

    def weights(self, rank: int, round: int) -> Weights:
        index = bisect(self._first_rounds, round) - 1
        row = self._mixings[index].incoming(self.schedule[index][1], rank, round)
        return {j: weight for j, weight in row.items() if j != rank}

    def draw_ahead(self, rounds: range) -> None:
        for own, graph in self.changes.spans:
            graph.draw_ahead(range(max(own.start, rounds.start), min(own.stop, rounds.stop)))

    def most_targets(self, rank: int) -> int:
        return max(graph.most_targets(rank) for _, graph in self.schedule)

    @property
    def may_meet_all(self) -> bool:
        return any(graph.may_meet_all for _, graph in self.schedule)

    def partners(self, rank: int) -> set[int]:
        return set[int]().union(*(graph.partners(rank) for _, graph in self.schedule))

    @cached_property
    def _first_rounds(self) -> list[int]:
        return [first for first, _ in self.schedule]

    @cached_property
    def _mixings(self) -> list[Mixing]:
        """The default rule of each graph."""
        return [FromGraph().of_part(graph) for _, graph in self.schedule]
