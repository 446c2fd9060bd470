"""Graphs that a peer-sampling service answers, a block of rounds at a time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from decentnode.core.registry import GRAPHS
from decentnode.errors import GraphError
from decentnode.graph.base import SEED, Adjacency, RedrawnGraph, as_pairs, neighbor_lists
from decentnode.graph.overlays.served import BlockSource, ServedGraph
from decentnode.graph.redrawn import EpidemicLocal, EpidemicOracle
from decentnode.options import Port, Positive

Lists = Sequence[tuple[Adjacency, Adjacency]]
"""Targets and sources of all ranks, for each round of a block."""
KEPT_BLOCKS = 3
POLICIES: dict[str, type[EpidemicOracle] | type[EpidemicLocal]] = {
    "epidemic_oracle": EpidemicOracle, "epidemic_local": EpidemicLocal,
}  # fmt: skip
"""The graphs that the service draws from, by name."""


@GRAPHS.register("peer_sampler")
@dataclass
class PeerSampler(ServedGraph):
    """Asks a service for the neighbors of coming rounds (Jelasity et al., ACM TOCS 2007: peer sampling).

    A small process beside machine 0, or one started by hand, draws the edges of `block` rounds at once, as
    `policy` does. Nodes fetch the next block while they use the last one. A node that needs a block which the
    service does not deliver repeats the last one. Without a service, as in `decentnode graph`, the graph is
    drawn here.
    """

    nodes: Positive
    degree: Positive
    policy: Literal["epidemic_oracle", "epidemic_local"] = "epidemic_oracle"
    block: Positive = 10
    """Rounds in one answer."""
    port: Port = 30900
    """The port of the service, where nodes of several machines ask it, or it was started by hand."""
    address: str = ""
    """The service that was started by hand (`decentnode peer-sampler`); empty: machine 0 starts one."""
    seed: int = SEED

    def __post_init__(self) -> None:
        self.drawn_graph: RedrawnGraph = POLICIES[self.policy](self.nodes, self.degree, seed=self.seed)
        """The graph that the service draws."""
        self._source: BlockSource | None = None
        self._used: dict[int, int] = {}

    @property
    def num_nodes(self) -> int:
        return self.nodes

    @property
    def directed(self) -> bool:  # type: ignore[override]
        return self.drawn_graph.directed

    def service_port(self, machines: int) -> int | None:
        return None if self.address or machines == 1 else self.port

    def connect(self, source: BlockSource) -> None:
        self._source = source

    def answer(self, number: int) -> bytes:
        # The numbers of edges of its rounds, then the edges.
        rounds = range(number * self.block, (number + 1) * self.block)
        edges = [as_pairs(self.drawn_graph.edges(round)) for round in rounds]
        counts = np.array([len(pairs) for pairs in edges])
        return np.concatenate([counts, *(pairs.flatten() for pairs in edges)]).astype("<i4").tobytes()

    async def prepare(self, rank: int, round: int) -> None:
        number, source = round // self.block, self._source
        if source is None or number in self._used:
            return
        source.request(number)
        # Also where it is here: in virtual time nodes continue in one order, however fast the service is.
        await source.wait(number)
        source.request(number + 1)

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self._round(round)[0][rank]

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return self._round(round)[1][rank]

    def peers_in(self, rank: int, rounds: Iterable[int]) -> set[int]:
        """Returns the peers in those rounds whose views are here; links of later rounds open with theirs."""
        return super().peers_in(rank, filter(self._is_here, rounds))

    def _is_here(self, round: int) -> bool:
        number, source = round // self.block, self._source
        return source is None or number in self._used or source.block(number) is not None

    def _round(self, round: int) -> tuple[Adjacency, Adjacency]:
        number, place = divmod(round, self.block)
        return self._lists(self._number(number))[place]

    def _number(self, number: int) -> int:
        """The block that stands for this one; decided once, so that the nodes of a process agree."""
        source = self._source
        if source is None or number in self._used:
            return self._used.get(number, number)
        instead = number
        if source.block(number) is None:
            instead = max(self._used.values(), default=-1)
            if instead < 0:
                raise GraphError("peer_sampler: the service has not answered, and there is no earlier view")
            source.repeats(number * self.block, range(instead * self.block, (instead + 1) * self.block))
        self._used = {k: v for k, v in self._used.items() if k > number - KEPT_BLOCKS} | {number: instead}
        return instead

    @cached_property
    def _lists(self) -> Callable[[int], Lists]:
        return lru_cache(KEPT_BLOCKS)(self._decoded)

    def _decoded(self, number: int) -> Lists:
        answer = self._source.block(number) if self._source else self.answer(number)
        numbers = np.frombuffer(answer or b"", "<i4").astype(np.int64)
        counts, flat = numbers[: self.block], numbers[self.block :]
        ends = counts.cumsum() * 2
        if len(counts) < self.block or counts.min() < 0 or ends[-1] != len(flat):
            raise GraphError(f"peer_sampler: the service's answer is no block of {self.block} rounds")
        try:
            return [self._both(flat[end - 2 * count : end]) for count, end in zip(counts, ends, strict=True)]
        except IndexError as error:
            raise GraphError(f"peer_sampler: the service's answer: {error}") from error

    def _both(self, flat: np.ndarray) -> tuple[Adjacency, Adjacency]:
        pairs = flat.reshape(-1, 2)
        targets = neighbor_lists(self.nodes, pairs, self.directed)
        if not self.directed:
            return targets, targets
        return targets, neighbor_lists(self.nodes, pairs[:, ::-1], directed=True)
