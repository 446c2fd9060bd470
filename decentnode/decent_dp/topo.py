"""Decent-DP's topologies: groups of ranks that average within themselves, step by step."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.distributed as dist

from decentnode.core.registry import guess
from decentnode.core.text import quoted
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.graph.time_varying import is_power_of_two
from decentnode.parallel.options import in_python

_place: ContextVar[tuple[int, int] | None] = ContextVar("place", default=None)


@dataclass
class Edge:
    """A group R of ranks that average: x_i <- w x_i + (1 - w) / (|R| - 1) sum_{j in R, j != i} x_j."""

    ranks: list[int]
    weight: float
    """w, from 0 to 1."""
    group: Any = None
    """Always None here: no process group is made for an edge."""

    @property
    def share(self) -> float:
        """The weight of each other rank of the group."""
        return (1 - self.weight) / (len(self.ranks) - 1) if len(self.ranks) > 1 else 0.0


class Topology:
    """The edges of every step; a subclass returns them from `_get_topo_edges`.

    It may use `_rank`, `_world_size`, `_local_world_size`, the ranks of a machine, and `_n_nodes`, the number
    of machines. Each rank is in exactly one edge of a step.
    """

    def __init__(self, local_world_size: int = 1) -> None:
        """Raises BadInput where the edges are not such ones."""
        self._rank, self._world_size = _place.get() or _of_process()
        self._local_world_size = local_world_size
        if self._world_size % local_world_size:
            raise BadInput(
                f"topology: {self._world_size} ranks are no multiple of the {local_world_size} of a machine"
            )
        self._n_nodes = self._world_size // local_world_size
        self.steps = [self._by_rank(number, edges) for number, edges in enumerate(self._get_topo_edges())]
        """By step the edge of each rank; they repeat."""
        if not self.steps:
            raise BadInput(f"topology: {type(self).__name__} has no step")
        self._edges = [edges[self._rank] for edges in self.steps]

    def _get_topo_edges(self) -> list[list[Edge]]:
        """Returns the edges of every step."""
        raise NotImplementedError

    def _by_rank(self, number: int, edges: list[Edge]) -> list[Edge]:
        found: dict[int, Edge] = {}
        for edge in edges:
            edge.ranks.sort()
            if not 0 <= edge.weight <= 1:
                raise BadInput(f"topology: step {number}: weight {edge.weight} is not from 0 to 1")
            for rank in edge.ranks:
                if rank in found:
                    raise BadInput(f"topology: step {number}: rank {rank} is in two edges; it must be in one")
                found[rank] = edge
        if found.keys() != set(range(self._world_size)):
            wrong = min(found.keys() ^ set(range(self._world_size)))
            what = "has no edge" if wrong < self._world_size else f"is none of the {self._world_size} ranks"
            raise BadInput(f"topology: step {number}: rank {wrong} {what}")
        return [found[rank] for rank in range(self._world_size)]

    def get_edge(self, step: int) -> Edge:
        """Returns the edge of this rank in a step."""
        return self._edges[step % len(self._edges)]


class TopologyReg:
    """The topologies by name; users add theirs with `register`, or to the dictionary."""

    registry: ClassVar[dict[str, type[Topology]]] = {}

    @classmethod
    def register(cls, name: str) -> Callable[[type[Topology]], type[Topology]]:
        """Registers the decorated class; raises BadInput where the name is taken."""

        def add(topology: type[Topology]) -> type[Topology]:
            if name in cls.registry:
                raise BadInput(f"two topologies are named '{name}'")
            if not issubclass(topology, Topology):
                raise BadInput(f"topology '{name}' must be a subclass of decentnode.decent_dp.topo.Topology")
            cls.registry[name] = topology
            return topology

        return add

    @classmethod
    def make(cls, name: str, rank: int, size: int, local: int) -> Topology:
        """Makes a topology as one of `size` ranks, with `local` ranks on each machine; raises BadInput."""
        if not isinstance(name, str):
            raise BadInput(f"topology: must be one of {', '.join(cls.registry)}, not {in_python(name)}")
        if local < 1:
            raise BadInput(f"_local_world_size: must be a whole number > 0, not {local}")
        if name not in cls.registry:
            known = guess(name, cls.registry) or f" (known: {', '.join(cls.registry)});"
            raise BadInput(
                f"topology: unknown {quoted(name)}{known} DecentralizedDataParallel of decentnode has more"
            )
        with _at(rank, size):
            return cls.registry[name](local)


@contextmanager
def _at(rank: int, size: int) -> Iterator[None]:
    token = _place.set((rank, size))
    try:
        yield
    finally:
        _place.reset(token)


def _of_process() -> tuple[int, int]:
    """Returns the rank of this process, and the number of ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@TopologyReg.register("complete")
class CompleteTopology(Topology):
    """All ranks average in every step."""

    def _get_topo_edges(self) -> list[list[Edge]]:
        return [[Edge(list(range(self._world_size)), 1 / self._world_size)]]


@TopologyReg.register("ring")
class RingTopology(Topology):
    """Pairs on a ring: with the one neighbor in even steps, with the other one in odd steps."""

    def _get_topo_edges(self) -> list[list[Edge]]:
        n = self._world_size
        if n == 1:
            return [[Edge([0], 1.0)]]
        if n % 2:
            raise BadInput(
                f"topology: ring is for an even number of ranks, not {n}; alternating_ring of "
                "decentnode.DecentralizedDataParallel takes any"
            )
        return [[Edge([i, (i + side) % n], 0.5) for i in range(0, n, 2)] for side in (1, -1)]


@TopologyReg.register("one-peer-exp")
class OnePeerExpTopology(Topology):
    """In step t, i averages with i XOR 2^(t mod log2 n)."""

    def _get_topo_edges(self) -> list[list[Edge]]:
        n = self._world_size
        _check_power("one-peer-exp", n, "ranks")
        if n == 1:
            return [[Edge([0], 1.0)]]
        return [
            [Edge([i, i ^ 1 << bit], 0.5) for i in range(n) if not i >> bit & 1]
            for bit in range(n.bit_length() - 1)
        ]


@TopologyReg.register("alternating-exp-ring")
class AlternatingExpRingTopology(Topology):
    """Machines average in pairs as in one-peer-exp, in two steps.

    In the first step every second pair averages together, and the machines of the others within themselves;
    in the second step they swap. A machine alone averages within itself.
    """

    def _get_topo_edges(self) -> list[list[Edge]]:
        machines, k = self._n_nodes, self._local_world_size
        _check_power("alternating-exp-ring", machines, "machines")
        if machines == 1:
            return [[Edge([*range(k)], 1 / k)]]
        steps: list[list[Edge]] = []
        for bit in range(machines.bit_length() - 1):
            early: list[Edge] = []
            late: list[Edge] = []
            firsts = (machine for machine in range(machines) if not machine >> bit & 1)
            for number, machine in enumerate(firsts):
                ranks = [[*range(m * k, (m + 1) * k)] for m in (machine, machine ^ 1 << bit)]
                together, apart = (late, early) if number % 2 == 0 else (early, late)
                together.append(Edge([*ranks[0], *ranks[1]], 1 / (2 * k)))
                apart += [Edge(part, 1 / k) for part in ranks]
            steps += [early, late]
        return steps


def _check_power(name: str, count: int, what: str) -> None:
    if not is_power_of_two(count):
        raise BadInput(f"topology: {name} is for 1, 2, 4, 8, ... {what}, not {count}")


class EdgeGraph(Graph):
    """The graph of a topology, with the weights of its edges.

    Decent-DP's first exchange is that of step 1, and its second one that of step 3: so x(1) is mixed by edge
    1, and x(t) by edge t + 1 from t = 2 on. Before it all models are equal.
    """

    has_weights = True

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    @property
    def num_nodes(self) -> int:
        return self.topology._world_size

    @property
    def period(self) -> int | None:
        return 1 if len(self.topology.steps) == 1 else None

    def edge(self, rank: int, round: int) -> Edge:
        """Returns the edge of a rank in a step of the wrapper."""
        steps = self.topology.steps
        return steps[(round + (round > 1)) % len(steps)][rank]

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return tuple(j for j in self.edge(rank, round).ranks if j != rank)

    def weights(self, rank: int, round: int) -> dict[int, float]:
        edge = self.edge(rank, round)
        return {j: edge.share for j in edge.ranks if j != rank}


__all__ = ["Edge", "Topology", "TopologyReg"]
