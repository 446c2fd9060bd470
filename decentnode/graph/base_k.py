"""The Base-(k+1) graph: exact averaging after a few rounds, for any n and any degree k.

Takezawa, Sato, Bao, Niwa and Yamada: Beyond Exponential Graph (NeurIPS 2023), Algorithms 1 to 3. Numbers of
the parts follow the paper; ours start at 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations

from decentnode.core.registry import GRAPHS
from decentnode.graph.time_varying import Alternating
from decentnode.options import Positive

Links = dict[tuple[int, int], float]
"""The weight of each undirected edge of one round."""
Rounds = list[Links]


@GRAPHS.register("base_k_plus_one", "base_k", "base")
@dataclass(frozen=True)
class BaseKPlusOne(Alternating):
    """Averages exactly after at most 2 log_(k+1)(n) + 2 rounds, for any n (Takezawa et al., NeurIPS 2023).

    Every node exchanges with at most k others in a round, and each edge has a weight of its own
    (`from_graph`). `simple` does not split n into factors first: the paper's Simple Base-(k+1) graph, never
    shorter.
    """

    has_weights = True

    degree: Positive = 1
    """k, the most neighbors in a round; more than n - 1 count as n - 1."""
    simple: bool = False

    @property
    def period(self) -> int:
        return len(self._rows)

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return tuple(self._rows[round % self.period][rank])

    def weights(self, rank: int, round: int) -> dict[int, float]:
        return self._rows[round % self.period][rank]

    @cached_property
    def _rows(self) -> list[list[dict[int, float]]]:
        """Returns the weights of each rank's neighbors, ascending, for each round of the period."""
        build = simple_base if self.simple else base
        rounds = build(range(self.nodes), min(self.degree + 1, self.nodes)) or [{}]
        return [_rows_of(links, self.nodes) for links in rounds]


def _rows_of(links: Links, nodes: int) -> list[dict[int, float]]:
    rows: list[dict[int, float]] = [{} for _ in range(nodes)]
    for (i, j), weight in links.items():
        rows[i][j] = rows[j][i] = weight
    return [dict(sorted(row.items())) for row in rows]


@cache
def factors(count: int, most: int) -> tuple[int, ...] | None:
    """The fewest factors from 2 to `most` whose product is `count`, descending; None when there are none."""
    if count == 1:
        return ()
    shortest: tuple[int, ...] | None = None
    for factor in range(min(count, most), 1, -1):
        others = factors(count // factor, most) if count % factor == 0 else None
        if others is not None and (shortest is None or 1 + len(others) < len(shortest)):
            shortest = (factor, *others)
    return shortest


def hyper_hypercube(members: Sequence[int], sizes: Iterable[int]) -> Rounds:
    """Averages exactly in one round per factor of the number of members (Algorithm 1).

    In each round those members exchange whose numbers, with these factors as bases, differ in one digit.
    """
    rounds, stride = [], 1
    for size in sizes:
        firsts = (i for i in range(len(members)) if i // stride % size == 0)
        groups = ([members[first + digit * stride] for digit in range(size)] for first in firsts)
        rounds.append(merged(clique(group) for group in groups))
        stride *= size
    return rounds


def clique(members: Sequence[int]) -> Links:
    """An edge between any two members, with equal weights."""
    return dict.fromkeys(combinations(sorted(members), 2), 1 / max(1, len(members)))


def merged(parts: Iterable[Links]) -> Links:
    """The edges of one round in all parts."""
    return {edge: weight for part in parts for edge, weight in part.items()}


@dataclass(frozen=True)
class NodeGroup:
    """V_l of Algorithm 2: a * base^power nodes, in `a` blocks that average within themselves alike."""

    members: Sequence[int]
    a: int
    base: int
    power: int

    @property
    def blocks(self) -> list[Sequence[int]]:
        """The blocks V_l1 .. V_la."""
        size = self.base**self.power
        return [self.members[i * size : (i + 1) * size] for i in range(self.a)]

    def averages(self, round: int) -> Links:
        """Returns the links of round `round` of averaging the whole group, in repetition."""
        return self._whole[round % len(self._whole)] if self._whole else {}

    def averages_blocks(self, round: int) -> Links:
        """Returns the links of round `round` of averaging within each block, in repetition."""
        return self._blockwise[round % self.power] if self.power else {}

    @cached_property
    def _whole(self) -> Rounds:
        return hyper_hypercube(self.members, factors(len(self.members), self.base) or ())

    @cached_property
    def _blockwise(self) -> Rounds:
        cubes = [hyper_hypercube(block, (self.base,) * self.power) for block in self.blocks]
        return [merged(links) for links in zip(*cubes, strict=True)]

    def teaches(self, learners: Sequence[int]) -> Links:
        """Each learner exchanges with one node of each block, with weight |V_l| / (a (|V_l| + learners)).

        So the mean of the learners becomes the mean of all. The other nodes average among themselves.
        """
        weight = len(self.members) / (self.a * (len(self.members) + len(learners)))
        links = {
            (min(u, v), max(u, v)): weight
            for block in self.blocks
            for u, v in zip(block, learners, strict=False)
        }
        idle = [u for block in self.blocks for u in block[len(learners) :]]
        groups = (idle[i : i + self.base] for i in range(0, len(idle), self.base))
        return merged([links, *map(clique, groups)])


def split(members: Sequence[int], most: int) -> list[NodeGroup]:
    """V_1, V_2, ..: the number of members in base `most`, with a part for each digit other than 0."""
    parts, begin, power = [], 0, 0
    while most ** (power + 1) <= len(members):
        power += 1
    for exponent in range(power, -1, -1):
        a = (len(members) - begin) // most**exponent
        if a:
            end = begin + a * most**exponent
            parts.append(NodeGroup(members[begin:end], a, most, power=exponent))
            begin = end
    return parts


def simple_base(members: Sequence[int], most: int) -> Rounds:
    """The Simple Base-(k+1) graph, k + 1 = `most` (Algorithm 2).

    First every part averages within itself. Then the first part teaches all later ones, whose mean becomes
    the mean of all. The mean of the first part becomes the same, and this part averages again. Then the
    second part teaches the later ones, and so on.
    """
    sizes = factors(len(members), most)
    if sizes is not None:
        return hyper_hypercube(members, sizes)
    parts = split(members, most)
    alone = len(factors(len(parts[0].members), most) or ())
    return [
        merged(_part_in_round(parts, index, round, alone=alone) for index in range(len(parts)))
        for round in range(alone + 1 + parts[0].power)
    ]


def _part_in_round(groups: list[NodeGroup], index: int, round: int, alone: int) -> Links:
    """The edges of one part in one round; in the first `alone` rounds parts average within themselves."""
    part, later = groups[index], [member for part in groups[index + 1 :] for member in part.members]
    since = round - alone - index
    if round < alone or (since >= 0 and not later):
        return part.averages(round)
    if since < 0:
        return {}  # a learner: the teaching part has its edges
    return part.teaches(later) if since == 0 else part.averages_blocks(since - 1)


def base(members: Sequence[int], most: int) -> Rounds:
    """The Base-(k+1) graph (Algorithm 3): n = p q, where p has only factors up to `most`, and q none.

    p groups of q nodes average within themselves, then across; or all at once, where that takes fewer rounds.
    """
    n = len(members)
    p = max(d for d in range(1, n + 1) if n % d == 0 and factors(d, most) is not None)
    q, whole = n // p, simple_base(members, most)
    if p == 1 or q == 1:
        return whole
    groups = [simple_base(members[i * q : (i + 1) * q], most) for i in range(p)]
    across = [
        hyper_hypercube([members[i * q + j] for i in range(p)], factors(p, most) or ()) for j in range(q)
    ]
    parted = [merged(links) for links in (*zip(*groups, strict=True), *zip(*across, strict=True))]
    return whole if len(whole) < len(parted) else parted
