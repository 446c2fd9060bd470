"""Graphs that change by files: one graph per round in turn, or the contacts of a trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, isfinite
from pathlib import Path

from decentnode.core.registry import GRAPHS
from decentnode.core.text import counted, quoted
from decentnode.errors import GraphError
from decentnode.graph.base import MOST_NODES, Adjacency, PeriodicGraph, neighbor_lists, transpose
from decentnode.graph.connectivity import why_disconnected
from decentnode.graph.files import FileType, read_graph
from decentnode.graph.text import Defects, Line, filled, ranks, read_lines
from decentnode.options import PositiveFloat

MOST_PERIOD = 1_000_000
"""Rounds of a schedule or a trace; more are a mistake in its unit of time."""


class Scheduled(PeriodicGraph):
    """A sequence of graphs, repeated after its end."""

    path: str

    @property
    def sequence(self) -> tuple[Adjacency, ...]:
        """The different graphs."""
        raise NotImplementedError

    @property
    def order(self) -> tuple[int, ...]:
        """The position in `sequence` of the graph of each round of a period."""
        return tuple(range(len(self.sequence)))

    @property
    def num_nodes(self) -> int:
        return len(self.sequence[0])

    @property
    def period(self) -> int:
        return len(self.order)

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self.sequence[self.order[round % self.period]][rank]

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return self._incoming[self.order[round % self.period]][rank]

    def _checked(self, sequence: tuple[Adjacency, ...]) -> tuple[Adjacency, ...]:
        """The sequence; raises GraphError if all rounds together do not connect the nodes."""
        edges = {(i, j) for graph in sequence for i, targets in enumerate(graph) for j in targets}
        together = neighbor_lists(len(sequence[0]), edges, self.directed)
        for reason in () if self.allow_disconnected else why_disconnected(together):
            raise GraphError(f"{self.path}: over all rounds {reason}; add edges or set allow_disconnected")
        return sequence

    @cached_property
    def _incoming(self) -> tuple[Adjacency, ...]:
        return tuple(map(transpose, self.sequence)) if self.directed else self.sequence


@GRAPHS.register("from_files")
@dataclass(frozen=True)
class FromFiles(Scheduled):
    """Graph files in turn, each as for `file` (Dhasade et al., 2023); repeated after the last.

    `path` is a folder, whose files hold for one round each in the order of their names, or a schedule: a text
    file with one `FILE ROUNDS` per line, FILE relative to it. Only all rounds together must be connected.
    """

    path: str
    type: FileType = "auto"
    directed: bool = False
    allow_disconnected: bool = False

    @cached_property
    def sequence(self) -> tuple[Adjacency, ...]:
        read = tuple(
            read_graph(path, self.type, self.directed, allow_disconnected=True) for path, _ in self._schedule
        )
        first = self._schedule[0][0]
        for (path, _), adjacency in zip(self._schedule, read, strict=True):
            if len(adjacency) != len(read[0]):
                few = f"{counted(len(adjacency), 'node')}, but {first} has {len(read[0])}"
                raise GraphError(f"{path}: {few}; all files must have the same nodes")
        return self._checked(read)

    @cached_property
    def order(self) -> tuple[int, ...]:
        return tuple(k for k, (_, rounds) in enumerate(self._schedule) for _ in range(rounds))

    @cached_property
    def _schedule(self) -> list[tuple[str, int]]:
        """Files and the rounds that they hold for."""
        path = Path(self.path)
        if path.is_dir():
            files = sorted(
                file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")
            )
            paths = [(str(file), 1) for file in files]
            if not paths:
                raise GraphError(f"{path}: the folder is empty; it holds one graph file for each round")
            return paths
        lines, defects = filled(read_lines(self.path)), Defects(self.path)
        if not lines:
            raise defects.fail(1, "the schedule is empty; it has one 'FILE ROUNDS' per line")
        schedule = []
        for line in lines:
            if len(line.words) != 2 or not line.words[1].isdecimal() or int(line.words[1]) < 1:
                text = quoted(" ".join(line.words))
                defects.add(line.number, f"expected 'FILE ROUNDS', such as 'a.edges 3', not {text}")
            else:
                schedule.append((str(path.parent / line.words[0]), int(line.words[1])))
        defects.raise_any()
        if (rounds := sum(count for _, count in schedule)) > MOST_PERIOD:
            raise GraphError(f"{path}: {rounds:,} rounds are too many; at most {MOST_PERIOD:,}")
        return schedule


@GRAPHS.register("contact_trace")
@dataclass(frozen=True)
class ContactTrace(Scheduled):
    """Contacts with times, one `i j begin end` in seconds per line (as in the traces of CRAWDAD, 2009).

    The first line is the number of nodes. Two nodes exchange in a round if they are in contact at any time of
    it. Round 0 begins at 0 s; after the last contact the trace is repeated.
    """

    path: str
    seconds_per_round: PositiveFloat
    allow_disconnected: bool = False

    @cached_property
    def sequence(self) -> tuple[Adjacency, ...]:
        lines = filled(read_lines(self.path))
        defects = Defects(self.path)
        nodes = self._node_count(lines, defects)
        contacts = [contact for line in lines[1:] if (contact := _contact(line, nodes, defects))]
        defects.raise_any()
        seconds = max((end for *_, end in contacts), default=0.0)
        period = _rounds_in(seconds, self.seconds_per_round, self.path)
        edges: list[set[tuple[int, int]]] = [set() for _ in range(period)]
        for i, j, begin, end in contacts:
            first = int(begin / self.seconds_per_round)
            for round in range(first, max(first + 1, ceil(end / self.seconds_per_round))):
                edges[min(round, period - 1)].add((i, j))
        return self._checked(tuple(neighbor_lists(nodes, pairs) for pairs in edges))

    @staticmethod
    def _node_count(lines: list[Line], defects: Defects) -> int:
        words = lines[0].words if lines else []
        if len(words) != 1 or not words[0].isdecimal() or not 1 <= int(words[0]) <= MOST_NODES:
            number = lines[0].number if lines else 1
            raise defects.fail(number, "the first line is the number of nodes, one integer from 1")
        return int(words[0])


def _contact(line: Line, nodes: int, defects: Defects) -> tuple[int, int, float, float] | None:
    """Reads both ranks, begin and end; None for a defect, which is added."""
    if len(line.words) != 4:
        text = quoted(" ".join(line.words))
        defects.add(line.number, f"a contact is 'i j begin end', two ranks and two times, not {text}")
        return None
    ends = ranks(line, line.words[:2], nodes, defects)
    begin, end = _times(line, line.words[2:], defects)
    if len(ends) < 2:
        return None
    if ends[0] == ends[1]:
        defects.add(line.number, f"node {ends[0]} is in contact with itself; remove that")
        return None
    return ends[0], ends[1], begin, end


@GRAPHS.register("availability_trace")
@dataclass(frozen=True)
class AvailabilityTrace(Scheduled):
    """A graph file whose nodes are awake by a trace, `rank,begin,end` in seconds (Yang et al., 2021).

    A node that is awake when a round begins trains, and exchanges with its neighbors that are awake; the
    others rest and keep their models. Round 0 begins at 0 s; after the last end the trace is repeated.
    """

    path: str
    trace_path: str
    seconds_per_round: PositiveFloat
    allow_disconnected: bool = False

    has_rests = True

    def trains(self, rank: int, round: int) -> bool:
        return rank in self._awake[round % self.period]

    @cached_property
    def sequence(self) -> tuple[Adjacency, ...]:
        def subgraph(awake: set[int]) -> Adjacency:
            kept = ((i, j) for i in awake for j in self._base[i] if j in awake)
            return neighbor_lists(len(self._base), kept)

        return self._checked(tuple(map(subgraph, self._awake)))

    @cached_property
    def _base(self) -> Adjacency:
        return read_graph(self.path)

    @cached_property
    def _awake(self) -> list[set[int]]:
        """The nodes that are awake in each round of a period."""
        defects = Defects(self.trace_path)
        lines = filled(read_lines(self.trace_path))
        if not lines:
            raise defects.fail(1, "the trace is empty; it has one 'rank,begin,end' per line")
        spans = [self._span(line, defects) for line in lines]
        defects.raise_any()
        rounds = _rounds_in(max(end for *_, end in spans), self.seconds_per_round, self.trace_path)
        awake: list[set[int]] = [set() for _ in range(rounds)]
        for rank, begin, end in spans:
            for round in range(ceil(begin / self.seconds_per_round), ceil(end / self.seconds_per_round)):
                awake[round].add(rank)
        return awake

    def _span(self, line: Line, defects: Defects) -> tuple[int, float, float]:
        """Reads rank, begin and end; zeros for a defect, which is added."""
        if len(line.words) != 3:
            text = quoted(" ".join(line.words))
            defects.add(line.number, f"expected 'rank,begin,end', a rank and two times, not {text}")
            return 0, 0.0, 0.0
        rank = ranks(line, line.words[:1], len(self._base), defects)
        begin, end = _times(line, line.words[1:], defects)
        return (rank or [0])[0], begin, end


def _times(line: Line, words: Sequence[str], defects: Defects) -> tuple[float, float]:
    """Reads begin and end in seconds; zeros for a defect, which is added."""
    try:
        begin, end = map(float, words)
    except ValueError:
        begin, end = -1.0, -1.0
    if 0 <= begin <= end and isfinite(end):
        return begin, end
    times = quoted(" ".join(words))
    defects.add(line.number, f"times must be seconds with 0 <= begin <= end, not {times}")
    return 0.0, 0.0


def _rounds_in(seconds: float, seconds_per_round: float, path: str) -> int:
    """The rounds of a trace; raises GraphError where there are too many."""
    rounds = seconds / seconds_per_round
    if rounds > MOST_PERIOD:
        raise GraphError(
            f"{path}: {rounds:,.12g} rounds are too many, at most {MOST_PERIOD:,}; increase seconds_per_round"
        )
    return max(1, ceil(rounds))
