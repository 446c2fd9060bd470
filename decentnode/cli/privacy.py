"""The output of `decentnode privacy`: what each node learns of each other in a run with muffliato."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from decentnode.config.settings import Settings
from decentnode.core.text import counted
from decentnode.errors import BadInput
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.blocks.network_privacy import Matrix, epsilon, pairwise_renyi
from decentnode.sharing.muffliato import Muffliato

MOST_NODES = 1024
"""The matrices of a step have n^2 numbers."""


def report(settings: Settings, delta: float) -> Iterator[str]:
    """The lines to print; raises BadInput where the scheme has no such accountant."""
    scheme = settings.sharing.make()
    if not isinstance(scheme, Muffliato):
        raise BadInput(
            f"sharing.name: {settings.sharing.name} has no pairwise accountant; muffliato has one, and "
            "training.privacy accounts for local privacy"
        )
    if not 0 < delta < 1:
        raise BadInput(f"--delta must be between 0 and 1, not {delta:g}")
    graph = WeightedGraph(settings.graph.make(), settings.weights.make())
    if graph.num_nodes > MOST_NODES:
        raise BadInput(f"graph: {graph.num_nodes:,} nodes are too many for pairs; at most {MOST_NODES:,}")
    scheme.fit(graph)
    spent = epsilon_of_pairs(graph, scheme, settings.rounds, delta)
    rounds = counted(settings.rounds, "round")
    yield f"{rounds} of {counted(scheme.steps, 'step')}, noise {scheme.noise:g} in units of the clip"
    yield f"epsilon of a node's local updates for another node, at delta {delta:g}"
    yield ""
    yield f"{'distance':>8} {'pairs':>7} {'least':>10} {'median':>10} {'most':>10}"
    apart = _distances(graph)
    for hops in sorted({*apart[apart > 0].tolist()}):
        values = spent[apart == hops]
        least, most = values.min(), values.max()
        yield f"{hops:8} {len(values):7} {least:10.4g} {np.median(values):10.4g} {most:10.4g}"
    local = epsilon(np.array([[1 / (2 * scheme.noise**2)]]), settings.rounds, delta)[0, 0]
    central = epsilon(np.array([[1 / (2 * scheme.noise**2 * graph.num_nodes)]]), settings.rounds, delta)[0, 0]
    yield ""
    yield f"local extreme      {local:.4g}: all others together, as without a graph"
    yield f"central extreme    {central:.4g}: who sees only the mean of all models"
    if scheme.generator == "seeded":
        yield "no claim: the noise is drawn from the seed of the run, which peers know (generator: seeded)"


def epsilon_of_pairs(graph: WeightedGraph, scheme: Muffliato, rounds: int, delta: float) -> Matrix:
    """epsilon[u, v] after all rounds, shape (n, n): the Renyi divergences of the rounds add up.

    Of a graph that changes, each round has its own; the least of the orders is taken for their sum.
    """
    cycle = range(rounds) if graph.graph.period is None else graph.graph.cycle
    found = [pairwise_renyi(_steps(graph, scheme, round), scheme.noise) for round in cycle]
    mean: Matrix = np.mean(found, axis=0)
    return epsilon(mean, rounds, delta)


def _steps(graph: WeightedGraph, scheme: Muffliato, round: int) -> Iterator[tuple[Matrix, NDArray[np.bool_]]]:
    """What is sent in each step, as a mix of all noisy signals, and who hears it."""
    weights = graph.matrix(round)
    hears = weights != 0
    np.fill_diagonal(hears, False)
    sent = before = np.eye(len(weights))
    for c in scheme.c:
        yield sent, hears
        sent, before = c * weights @ sent + (1 - c) * before, sent


def _distances(graph: WeightedGraph) -> NDArray[np.int64]:
    """The distances of all pairs in hops; 1 for all where the graph changes."""
    n = graph.num_nodes
    if not graph.static:
        return 1 - np.eye(n, dtype=np.int64)
    linked = graph.matrix() != 0
    apart, reached, hops = np.full((n, n), -1), np.eye(n, dtype=bool), 0
    while (reached & (apart < 0)).any():
        apart[reached & (apart < 0)] = hops
        reached, hops = reached | (reached.astype(float) @ linked > 0), hops + 1
    return apart
