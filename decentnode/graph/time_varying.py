"""Graphs that change from round to round by a formula, so that a node has few neighbors at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from decentnode.core.registry import GRAPHS, name_of
from decentnode.errors import Defect, GraphError, refuse
from decentnode.graph.base import MOST_NODES, PeriodicGraph
from decentnode.options import Positive


@dataclass(frozen=True)
class Alternating(PeriodicGraph):
    """A family with one sequence of graphs for every number of nodes."""

    nodes: Positive

    def __post_init__(self) -> None:
        if self.nodes > MOST_NODES:
            raise GraphError(f"{self.nodes:,} nodes are too many for a graph; at most {MOST_NODES:,}")
        refuse((f"{name_of(self)}: {defect}" for defect in self.defects()), GraphError)

    @property
    def num_nodes(self) -> int:
        return self.nodes

    def defects(self) -> Iterator[Defect]:
        """Yields the reasons why no such graph exists."""
        yield from ()


def hops(count: int) -> int:
    """The number of powers of two below `count`: ceil(log2)."""
    return (count - 1).bit_length()


def is_power_of_two(count: int) -> bool:
    """Whether `count` is 1, 2, 4, 8, ..."""
    return count & (count - 1) == 0


@GRAPHS.register("alternating_ring")
@dataclass(frozen=True)
class AlternatingRing(Alternating):
    """A cycle whose nodes exchange left and right in turns, one at a time (Wang et al., 2025, Decent-DP).

    Even n: 0-1, 2-3, .. and then 1-2, 3-4, ... Odd n: the same, but node t mod n has no neighbor in round t,
    where one matching changes into the other. So every node has no neighbor in one of n rounds.
    """

    @property
    def period(self) -> int:
        if self.nodes <= 2:
            return 1
        return self.nodes if self.nodes % 2 else 2

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        n = self.nodes
        place = (rank - round) % n
        if n % 2 == 0:
            return ((rank + (1 if place % 2 == 0 else -1)) % n,)
        if place == 0:
            return ()
        return ((rank + (1 if place % 2 else -1)) % n,)


@GRAPHS.register("one_peer_exponential", "dynamic_one_peer", "one_peer_exponential_two")
@dataclass(frozen=True)
class OnePeerExponential(Alternating):
    """Directed: in round t, i sends to i + 2^(t mod ceil(log2 n)) mod n alone (Ying et al., NeurIPS 2021).

    With weights 1/2 and n = 2^r, r rounds average exactly.
    """

    directed = True

    @property
    def period(self) -> int:
        return max(1, hops(self.nodes))

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self._shifted(rank, round, 1)

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return self._shifted(rank, round, -1)

    def _shifted(self, rank: int, round: int, sign: int) -> tuple[int, ...]:
        if self.nodes == 1:
            return ()
        return ((rank + sign * (1 << round % self.period)) % self.nodes,)


@GRAPHS.register("one_peer_hypercube", "one_peer_exp")
@dataclass(frozen=True)
class OnePeerHypercube(Alternating):
    """In round t, i exchanges with i XOR 2^(t mod r), n = 2^r (Wang et al., 2025: Decent-DP's one-peer-exp).

    Undirected; r rounds average exactly.
    """

    def defects(self) -> Iterator[Defect]:
        if is_power_of_two(self.nodes):
            return
        yield Defect(
            (),
            f"nodes must be 1, 2, 4, 8, ..., not {self.nodes}; "
            "one_peer_exponential and base_k_plus_one take any number",
        )

    @property
    def period(self) -> int:
        return max(1, hops(self.nodes))

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return (rank ^ (1 << round % self.period),) if self.nodes > 1 else ()


@GRAPHS.register("alternating_exponential_ring", "alternating_exp_ring", "AER")
@dataclass(frozen=True)
class AlternatingExponentialRing(Alternating):
    """Machines exchange as in a hypercube, half of the pairs at a time (Wang et al., 2025, Decent-DP: AER).

    Machine a has the ranks a*k .. a*k + k-1. Rounds 2s and 2s + 1 belong to the pairs of machines that differ
    in bit s. Every second pair exchanges in the first of them while the other machines average within
    themselves; in the second they swap. After 2 log2(machines) rounds all are averaged exactly.
    """

    per_machine: Positive
    """k, ranks on each machine."""
    between: Literal["all", "one"] = "all"
    """How two machines exchange: all 2k ranks with each other, or each rank only with its counterpart."""

    def defects(self) -> Iterator[Defect]:
        n, k = self.nodes, self.per_machine
        if n % k:
            yield Defect((), f"nodes must be a multiple of per_machine, got {n} and {k}")
            return
        if not is_power_of_two(n // k):
            yield Defect(
                (),
                f"there must be 1, 2, 4, 8, ... machines, got {n} / {k} = "
                f"{n // k}; base_k_plus_one takes any number of nodes",
            )
            return

    @property
    def period(self) -> int:
        return max(1, 2 * hops(self.nodes // self.per_machine))

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        k = self.per_machine
        machine, local = divmod(rank, k)
        other = self._partner_of(machine, round % self.period)
        if other is not None and self.between == "one":
            return (other * k + local,)
        machines = [machine] if other is None else sorted((machine, other))
        return tuple(j for m in machines for j in range(m * k, m * k + k) if j != rank)

    def _partner_of(self, machine: int, phase: int) -> int | None:
        """The machine that this one exchanges with; None while it averages within itself."""
        if self.nodes == self.per_machine:
            return None
        bit, turn = divmod(phase, 2)
        above, below = machine >> bit + 1, machine & (1 << bit) - 1
        pair = above << bit | below  # the number of the pair: the rank of the machine without that bit
        return machine ^ 1 << bit if pair % 2 == turn else None
