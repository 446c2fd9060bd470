"""Nodes that come late or leave for good, on top of any graph."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from decentnode.core.registry import GRAPHS, name_of
from decentnode.core.text import quoted
from decentnode.errors import GraphError
from decentnode.graph.base import MORE_THAN_EDGES, Graph, Pairs, RedrawnGraph, as_pairs
from decentnode.graph.mixing import Weights
from decentnode.graph.text import INTEGER, Defects, Line, filled, read_lines
from decentnode.options import NonNegative

Span = tuple[NonNegative, NonNegative, NonNegative | None]
"""A rank, the first round in which it takes part, and the last; null: to the end."""
Spans = dict[int, list[tuple[int, int | None]]]
"""By rank its first and last rounds, ascending."""


@GRAPHS.register("churn")
@dataclass(frozen=True)
class Churn(RedrawnGraph):
    """Another graph, whose nodes come late or leave by a schedule (Rhea et al., USENIX ATC 2004, on churn).

    The schedule has `[rank, first, last]` in rounds from 0, `last` null for the end, or `schedule_path` names
    a file with one `rank,first,last` per line. A rank may have several spans; ranks that are not named are
    always there. The others rest: they do not train or exchange, and keep their models.

    In the first round of a span after round 0 a node takes the mean of its neighbors' models, and its
    neighbors give its own model no weight. It trains from the next round on. Otherwise weights are those of
    the graph itself, where it has some, or Metropolis-Hastings weights of the nodes that are there; for a
    directed graph equal ones. A node without neighbors in its first round begins with the initial model.
    """

    graph: Graph
    schedule: tuple[Span, ...] = ()
    schedule_path: str | None = None

    has_weights = True
    has_rests = True
    _spans: Spans = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "directed", self.graph.directed)
        if bool(self.schedule) == (self.schedule_path is not None):
            raise GraphError("churn: give one of schedule and schedule_path")
        if self.graph.is_more_than_edges:
            raise GraphError(f"churn: {name_of(self.graph)} {MORE_THAN_EDGES}")
        object.__setattr__(self, "_spans", self._spans_by_rank())

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    def most_targets(self, rank: int) -> int:
        return self.graph.most_targets(rank)

    def partners(self, rank: int) -> set[int]:
        return self.graph.partners(rank)

    def edges(self, round: int) -> Pairs:
        present = [rank for rank in range(self.num_nodes) if self.is_there(rank, round)]
        awake = set(present)
        return as_pairs((i, j) for i in present for j in self.graph.targets(i, round) if j in awake)

    def trains(self, rank: int, round: int) -> bool:
        is_here = self.is_there(rank, round) and not self.begins(rank, round)
        return is_here and self.graph.trains(rank, round)

    def is_there(self, rank: int, round: int) -> bool:
        """Whether a node takes part in a round."""
        spans = self._spans.get(rank)
        return spans is None or any(
            first <= round and (last is None or round <= last) for first, last in spans
        )

    def begins(self, rank: int, round: int) -> bool:
        """Whether a node takes its neighbors' models in a round, because it was not there before."""
        return round > 0 and any(first == round for first, _ in self._spans.get(rank, ()))

    def weights(self, rank: int, round: int) -> Weights:
        sources = self.sources(rank, round)
        givers = [j for j in sources if not self.begins(j, round)]
        weights = dict.fromkeys(sources, 0.0)
        if self.begins(rank, round):
            return weights | dict.fromkeys(givers, 1 / max(len(givers), 1))
        if self.graph.has_weights:
            base_weights = self.graph.weights(rank, round)
            return weights | {j: base_weights[j] for j in givers}
        degree = self._degree(rank, round)
        if self.directed:
            return weights | dict.fromkeys(givers, 1 / (1 + degree))
        return weights | {j: 1 / (1 + max(degree, self._degree(j, round))) for j in givers}

    def _degree(self, rank: int, round: int) -> int:
        return sum(not self.begins(j, round) for j in self.sources(rank, round))

    def _spans_by_rank(self) -> Spans:
        """Returns first and last rounds by rank, ascending; raises GraphError."""
        listed = list(self.schedule) if self.schedule_path is None else self._read(self.schedule_path)
        spans: Spans = {}
        for rank, first, last in sorted(listed, key=lambda span: span[:2]):
            spans.setdefault(rank, []).append((first, last))
        if defects := list(self._defects(spans)):
            raise GraphError(*(f"churn: {defect}" for defect in defects))
        return spans

    def _defects(self, spans: Spans) -> Iterator[str]:
        n = self.graph.num_nodes
        for rank, of_rank in spans.items():
            if rank >= n:
                yield f"rank {rank} of the schedule is none of {name_of(self.graph)}, 0..{n - 1}"
            for first, last in of_rank:
                if last is not None and last < first:
                    yield f"rank {rank} leaves in round {last}, before its first round {first}"
            for (_, last), (first, _) in pairwise(of_rank):
                if last is None or last + 1 >= first:
                    yield f"rank {rank} begins in round {first}, but is there already; leave a round between"

    @staticmethod
    def _read(path: str) -> list[Span]:
        lines, defects = filled(read_lines(path)), Defects(path)
        if not lines:
            raise defects.fail(1, "the schedule is empty; it has one 'rank,first,last' per line")
        spans = [_span(line, defects) for line in lines]
        defects.raise_any()
        return spans


def _span(line: Line, defects: Defects) -> Span:
    """Reads rank, first and last round; zeros for a defect, which is added."""
    words = line.words
    if len(words) in (2, 3) and all(INTEGER.fullmatch(word) and int(word) >= 0 for word in words):
        rank, first, *last = map(int, words)
        return rank, first, last[0] if last else None
    text = quoted(" ".join(words))
    defects.add(line.number, f"expected 'rank,first,last', or 'rank,first' to the end, not {text}")
    return 0, 0, None
