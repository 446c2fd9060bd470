"""The network accountant: what nodes, alone or together, learn of each node in a run, before it starts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import ceil, inf, sqrt

import numpy as np
from numpy.typing import NDArray

from decentnode.config.settings import Settings
from decentnode.core.registry import name_of
from decentnode.errors import BadInput
from decentnode.graph.mixing import WeightedGraph
from decentnode.node.experiment import Experiment
from decentnode.node.privacy.plans import doubts_of, steps_of
from decentnode.sharing.base import SharingBase
from decentnode.sharing.blocks import network_privacy
from decentnode.sharing.blocks.network_privacy import Matrix, gaussian_epsilon
from decentnode.sharing.muffliato import Muffliato
from decentnode.training.privacy.dp_sgd import DpSgd

MOST_NODES = 1024
"""The matrices have n^2 numbers."""
MOST_WORK = 4e11
"""Multiplications for what all messages tell together, about a minute."""
DELTA = 1e-5
SEEDED = ("the noise is drawn from the seed of the run, which peers know (generator: seeded)",)
Observers = Sequence[Collection[int]]


@dataclass(frozen=True)
class NetworkPrivacy:
    """The bounds on what each group of observers learns of each node; matrices have shape (nodes, groups)."""

    unit: str
    """The subject of epsilon."""
    delta: float
    observers: Observers
    proven: Matrix
    """Epsilon whatever the training does; infinite for observers themselves."""
    fixed: Matrix | None
    """Epsilon of all messages together, for updates that do not depend on models received."""
    published: Matrix | None
    """Epsilon by the theorem of the scheme's paper, of single observers; another figure, not a bound."""
    local: list[float]
    """Epsilon of each node against all others together."""
    central: list[float]
    """Epsilon of each node against one that sees only the mean of the models after each step."""
    notes: tuple[str, ...]
    doubts: tuple[str, ...]
    """The reasons why nothing is claimed; empty where these are claims."""


def account(
    settings: Settings, delta: float | None = None, colluders: Sequence[int] | None = None
) -> NetworkPrivacy:
    """Accounts for each node as the observer, or for colluders; raises BadInput if no accountant fits."""
    if delta is not None and not 0 < delta < 1:
        raise BadInput(f"--delta must be between 0 and 1, not {delta:g}")
    nodes = settings.graph.make().num_nodes
    if nodes > MOST_NODES:
        raise BadInput.at("graph", f"{nodes:,} nodes are too many for pairs; at most {MOST_NODES:,}")
    if unknown := [rank for rank in colluders or () if not 0 <= rank < nodes]:
        raise BadInput(f"--colluders: ranks of this graph are 0..{nodes - 1}, not {unknown[0]}")
    if colluders is not None and not 0 < len({*colluders}) < nodes:
        raise BadInput("--colluders: name some of the nodes, not none or all")
    scheme = settings.sharing.make()
    mechanism: Mechanism
    # Where both are there, what muffliato sends is post-processing of the private steps.
    if settings.training.privacy is not None:
        mechanism = PrivateStepsOfNodes(settings, delta)
    elif isinstance(scheme, Muffliato):
        mechanism = NoiseOfMuffliato(settings, scheme, DELTA if delta is None else delta)
    else:
        raise BadInput.at(
            "sharing.name",
            f"{settings.sharing.name} adds no noise that an accountant covers; "
            "training.privacy does, with any scheme, and muffliato",
        )
    observers: Observers = [(v,) for v in range(nodes)] if colluders is None else [sorted({*colluders})]
    sources, notes = _flow(mechanism.graph, mechanism.scheme)
    seen = [
        network_privacy.rounds_seen(
            sources, nodes, mechanism.rounds, exchanges=mechanism.scheme.promises.phases, observers=group
        )
        for group in observers
    ]
    proven = np.array(
        [
            [mechanism.spent(u, rounds[u], group) for group, rounds in zip(observers, seen, strict=True)]
            for u in range(nodes)
        ]
    )
    # A node knows its own updates, so nothing bounds what it learns of itself.
    for column, group in enumerate(observers):
        proven[[*group], column] = inf
    fixed, more = mechanism.fixed(observers)
    return NetworkPrivacy(
        unit=mechanism.unit,
        delta=mechanism.delta,
        observers=observers,
        proven=proven,
        fixed=fixed,
        published=mechanism.published() if colluders is None else None,
        local=[mechanism.spent(u, mechanism.rounds, {*range(nodes)} - {u}) for u in range(nodes)],
        central=[mechanism.central(u) for u in range(nodes)],
        notes=(*notes, *mechanism.notes, *more),
        doubts=mechanism.doubts,
    )


def before_mixing(noise: float, rounds: int) -> tuple[float, float]:
    """delta, and the epsilon of all updates that a node sends by muffliato with that noise: local privacy."""
    return DELTA, gaussian_epsilon(sqrt(rounds) / noise, DELTA)


def _flow(
    graph: WeightedGraph, scheme: SharingBase
) -> tuple[Callable[[int, int], Collection[int]], list[str]]:
    """Returns the sources of a rank by round, all ranks where they depend on the run, and the reasons why."""
    plain = graph.graph
    reason = (
        "the graph depends on the run"
        if plain.is_negotiated or plain.needs_service or plain.needs_labels
        else f"{name_of(scheme)} sends by servers or levels"
        if scheme.requirements.server or scheme.requirements.levels
        else ""
    )  # fmt: skip
    if reason:
        # Then all updates count, which is the safe side.
        all_ranks = range(plain.num_nodes)
        return lambda rank, round: all_ranks, [f"{reason}, so each pair has the bound of local privacy"]
    if scheme.promises.sends == "nothing":
        return lambda rank, round: (), []
    return plain.sources, []


class Mechanism(ABC):
    """The noise of a run."""

    unit: str
    delta: float
    graph: WeightedGraph
    scheme: SharingBase
    rounds: int
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @abstractmethod
    def spent(self, rank: int, rounds: int, observers: Collection[int]) -> float:
        """Epsilon of all noisy updates of the first rounds of a node, against nodes that see all of them."""

    @abstractmethod
    def central(self, rank: int) -> float:
        """Epsilon of the mean of the updates of all nodes, after each step."""

    def fixed(self, observers: Observers) -> tuple[Matrix | None, list[str]]:
        """Epsilon of all messages together, for fixed updates; and why there is none."""
        return None, []

    def published(self) -> Matrix | None:
        """Epsilon by the theorem of the scheme's paper, for each pair."""
        return None


class PrivateStepsOfNodes(Mechanism):
    """DP-SGD at each node, under any scheme: what is sent is post-processing of private steps."""

    def __init__(self, settings: Settings, delta: float | None) -> None:
        experiment = Experiment.from_settings(settings)
        options = settings.training.privacy.make() if settings.training.privacy else None
        if not isinstance(options, DpSgd) or options.accountant == "none":
            raise BadInput.at("training.privacy", "the network accountant needs dp_sgd with rdp or pld")
        self.delta = options.delta if delta is None else delta
        self.unit = "one training sample of a node, in all its steps"
        self.graph, self.scheme = experiment.graph, experiment.schemes.plain()
        self.rounds = experiment.settings.rounds
        self.doubts = () if options.generator == "secure" else SEEDED
        self.doubts += ("noise: 0",) if options.noise == 0 else ()
        self.doubts += doubts_of(self.graph.graph, experiment.samples.dataset)
        self._plans = experiment.privacy
        shards = [*map(experiment.samples.shard, range(self.graph.num_nodes))]
        self._steps = [steps_of(settings, shard, self.graph.graph) for shard in shards]
        self._edges = options.edges
        if self._edges is not None:
            adjacency = np.zeros((len(self._plans), len(self._plans)))
            for rank, plan in enumerate(self._plans):
                adjacency[rank, [*(plan.edges.neighbors if plan.edges else ())]] = 1
            self._amplification = cache(partial(self._edges.amplification, adjacency))
        delta_left = self.delta - (options.release.delta if options.release else 0.0)
        if delta_left <= 0:
            raise BadInput(f"--delta must be above that of categories, {self.delta - delta_left:g}")
        pairs = zip(self._plans, shards, strict=True)
        batches = [plan.rate * shard.size / plan.period for plan, shard in pairs]
        matrices = [np.eye(1) if plan.strategy is None else plan.strategy.matrix for plan in self._plans]
        self._are_alike = (
            len({(plan.steps, plan.rounds) for plan in self._plans}) == 1
            and max(batches) <= min(batches) * (1 + 1e-9)
            and all(np.array_equal(matrix, matrices[0]) for matrix in matrices)
        )
        if not self._are_alike:
            what = "nodes differ in steps or batches, so the central extreme is that of a node alone"
            self.notes = (what,)
        # Most nodes have the same plan.
        self._epsilon = cache(partial(options.spent, delta=delta_left))

    def spent(self, rank: int, rounds: int, observers: Collection[int]) -> float:
        plan = self._plans[rank]
        if self._edges is not None and plan.edges is not None:
            # Observers know the noise of their own edges.
            ratio = plan.edges.edge / plan.edges.own if plan.edges.own else 0.0
            known = tuple(sorted({*observers} - {rank}))
            # Up, to four digits: few different values are accounted faster.
            far = ceil(1e4 * float(self._amplification(ratio, known)[rank])) / 1e4
            plan = replace(plan, noise=plan.edges.own / sqrt(far))
        # A node whose budget is spent makes no more steps.
        return self._epsilon(plan, sum(self._steps[rank][: min(rounds, plan.rounds)]))

    def central(self, rank: int) -> float:
        alone = [plan.noise if plan.edges is None else plan.edges.own for plan in self._plans]
        # Where noises do not simply add up, the mean tells at most what all models tell.
        noise = sqrt(sum(one**2 for one in alone)) if self._are_alike else alone[rank]
        return self._epsilon(replace(self._plans[rank], noise=noise), sum(self._steps[rank][: self.rounds]))


class NoiseOfMuffliato(Mechanism):
    """Noise once in a round, then mixing: messages are mixes of all noisy updates."""

    def __init__(self, settings: Settings, scheme: Muffliato, delta: float) -> None:
        self.unit = "all local updates of a node, each of the length of the clip"
        self.graph = WeightedGraph(settings.graph.make(), settings.make_mixing(), settings.seed)
        self.scheme, self.rounds, self.delta = scheme, settings.rounds, delta
        self.doubts = () if scheme.generator == "secure" else SEEDED
        self._noise, self._c = scheme.noise, scheme.coefficients(self.graph)

    def spent(self, rank: int, rounds: int, observers: Collection[int]) -> float:
        return gaussian_epsilon(sqrt(rounds) / self._noise, self.delta)

    def central(self, rank: int) -> float:
        return gaussian_epsilon(sqrt(self.rounds / self.graph.num_nodes) / self._noise, self.delta)

    def fixed(self, observers: Observers) -> tuple[Matrix | None, list[str]]:
        n, exchanges, graph = self.graph.num_nodes, len(self._c), self.graph.graph
        # The work is that of one singular value decomposition for each group.
        degrees = [max(graph.in_degree(v, round) for v in range(n)) for round in range(self.rounds)]
        row_counts = [
            sum(min(n, degree * len(group)) for degree in degrees) * exchanges for group in observers
        ]
        if sum(rows * self.rounds * n * min(rows, self.rounds * n) for rows in row_counts) > MOST_WORK:
            return None, [
                "all messages together are too many to compute; fewer rounds, or --colluders, are not"
            ]
        sent = [*network_privacy.sent_mixes(self.graph.matrix, self.rounds, self._c)]
        columns = []
        for group in observers:
            rows = [
                mixes[w]
                for round, _, mixes in sent
                for w in sorted({w for v in group for w in graph.sources(v, round)} - {*group})
            ]
            seen = np.array(rows) if rows else np.zeros((1, self.rounds * n))
            sensitivities = network_privacy.sensitivity(seen, n, self._noise, observers=group)
            columns.append([gaussian_epsilon(float(mu), self.delta) for mu in sensitivities])
        return np.array(columns).T, []

    def published(self) -> Matrix:
        # Divergences of the rounds add up. Of a graph that changes, each round has its own.
        cycle = range(self.rounds) if self.graph.graph.period is None else self.graph.graph.changes.rounds()
        divergences = [network_privacy.pairwise_renyi(self._steps(round), self._noise) for round in cycle]
        mean: Matrix = np.mean(divergences, axis=0)
        return network_privacy.epsilon(mean, self.rounds, self.delta)

    def _steps(self, round: int) -> Iterator[tuple[Matrix, NDArray[np.bool_]]]:
        """Yields what is sent in each step of a round, as a mix of its noisy updates, and the receivers."""
        hears = self.graph.matrix(round) != 0
        np.fill_diagonal(hears, False)
        *sent, _ = network_privacy.mixes(self.graph.matrix(round), self._c, np.eye(len(hears)))
        yield from ((mixes, hears) for mixes in sent)
