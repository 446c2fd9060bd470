"""Graphs defined by a formula; the numbering of ranks makes neighbors easy to compute."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from annotated_types import Ge, Le

from decentnode.core.registry import GRAPHS
from decentnode.errors import GraphError
from decentnode.graph.base import MOST_NODES, Adjacency, StaticGraph, neighbor_lists, refuse_dense
from decentnode.options import Positive

Edges = Iterable[tuple[int, int]]


class Family(StaticGraph):
    """A graph given by its number of nodes and its edges, each named once; loops are left out."""

    @property
    @abstractmethod
    def num_nodes(self) -> int: ...

    @abstractmethod
    def edges(self) -> Edges:
        """Pairs i, j; i sends to j, and j to i unless directed."""

    @cached_property
    def adjacency(self) -> Adjacency:
        if self.num_nodes > MOST_NODES:
            raise GraphError(f"{self.num_nodes:,} nodes are too many for a graph; at most {MOST_NODES:,}")
        return neighbor_lists(self.num_nodes, self.edges(), self.directed)


@dataclass(frozen=True)
class Sized(Family):
    """A family with one graph for every number of nodes."""

    nodes: Positive

    @property
    def num_nodes(self) -> int:
        return self.nodes


@GRAPHS.register("empty", "none", "isolated")
@dataclass(frozen=True)
class Empty(Sized):
    """No edges, so that every node trains alone (networkx's `empty_graph`: Hagberg et al., 2008).

    It is for rounds of `by_rounds`. A whole run with it has `sharing: none`.
    """

    def edges(self) -> Edges:
        return ()


@GRAPHS.register("ring", "cycle", "circle")
@dataclass(frozen=True)
class Ring(Sized):
    """A cycle, node i adjacent to i-1 and i+1 (Lian et al., 2017, Section 5: the D-PSGD experiments)."""

    def edges(self) -> Edges:
        return ((i, (i + 1) % self.nodes) for i in range(self.nodes))


@GRAPHS.register("chain", "path", "line")
@dataclass(frozen=True)
class Chain(Sized):
    """A path from node 0 to node n-1, the slowest to mix (Nedic, Olshevsky and Rabbat, 2018)."""

    def edges(self) -> Edges:
        return ((i, i + 1) for i in range(self.nodes - 1))


@GRAPHS.register("fully_connected", "complete", "clique", "all_to_all")
@dataclass(frozen=True)
class FullyConnected(Sized):
    """An edge between any two nodes: one round averages exactly, as all-reduce (Lian et al., 2017)."""

    def edges(self) -> Edges:
        refuse_dense(self.nodes * (self.nodes - 1) / 2)
        return ((i, j) for i in range(self.nodes) for j in range(i))


@GRAPHS.register("star")
@dataclass(frozen=True)
class Star(Sized):
    """Node 0 in the middle, as a server would be (Nedic, Olshevsky and Rabbat, 2018)."""

    def edges(self) -> Edges:
        return ((0, i) for i in range(1, self.nodes))


@GRAPHS.register("binary_tree", "tree")
@dataclass(frozen=True)
class BinaryTree(Sized):
    """A balanced binary tree with the root at node 0 (Vogels et al., 2021, RelaySGD)."""

    def edges(self) -> Edges:
        return (((i - 1) // 2, i) for i in range(1, self.nodes))


@GRAPHS.register("exponential", "exponential_two", "exp", "exp_two", "static_exp")
@dataclass(frozen=True)
class Exponential(Sized):
    """Directed: i sends to i + 1, i + 2, i + 4, .. mod n (Ying et al., 2021, the static graph).

    With uniform weights 1/(1 + ceil(log2 n)) and even n, disagreement shrinks by
    1 - 2/(1 + ceil(log2 n)) a round.
    """

    directed = True

    def edges(self) -> Edges:
        hops = [1 << k for k in range((self.nodes - 1).bit_length())]
        return ((i, (i + hop) % self.nodes) for i in range(self.nodes) for hop in hops)


@GRAPHS.register("hypercube")
@dataclass(frozen=True)
class Hypercube(Family):
    """2^dimension nodes; neighbors differ in one bit of their ranks (Ying et al., 2021)."""

    dimension: Annotated[int, Ge(0), Le(16)]

    @property
    def num_nodes(self) -> int:
        return 1 << self.dimension

    def edges(self) -> Edges:
        return ((i, i ^ (1 << k)) for i in range(self.num_nodes) for k in range(self.dimension))


@dataclass(frozen=True)
class Lattice(Family):
    """Rows times columns; the node in row r and column c has rank r * columns + c."""

    rows: Positive
    columns: Positive

    @property
    def num_nodes(self) -> int:
        return self.rows * self.columns


@GRAPHS.register("grid", "mesh_grid_2d", "grid_2d")
@dataclass(frozen=True)
class Grid(Lattice):
    """Rows and columns without wrapping: 2 to 4 neighbors (Nedic, Olshevsky and Rabbat, 2018)."""

    def edges(self) -> Edges:
        for i in range(self.num_nodes):
            if (i + 1) % self.columns:
                yield i, i + 1
            if i + self.columns < self.num_nodes:
                yield i, i + self.columns


@GRAPHS.register("torus", "torus_2d")
@dataclass(frozen=True)
class Torus(Lattice):
    """Rows and columns that wrap around: 4 neighbors (Nedic, Olshevsky and Rabbat, 2018)."""

    def edges(self) -> Edges:
        for row in range(self.rows):
            for column in range(self.columns):
                i = row * self.columns + column
                yield i, row * self.columns + (column + 1) % self.columns
                yield i, (row + 1) % self.rows * self.columns + column
