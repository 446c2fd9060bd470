"""How the noise of a node's steps moves the models of all nodes: what `factorized` correlation minimizes."""

from collections.abc import Iterator, Sequence

import numpy as np

from decentnode.errors import BadInput
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.blocks.network_privacy import Matrix

MOST_WORK = 2 * 10**12
"""Multiplications for the products of mixing weights, some minutes."""


def gram_of(weighted_graph: WeightedGraph, steps: Sequence[int]) -> Matrix:
    """G of the steps of all rounds, shape (T, T) (Bellet et al., ICLR 2026, section 4).

    The noise of step p moves the models of all nodes after a later step t by M_tp, a product of mixing
    weights, for each number of the vector. G_pq is the sum over t of <M_tp, M_tq>, with t over each step that
    is not the last of its round, and over the mix at the end of each round. With one step in each round and W
    static,

        G_pq = sum over rounds t >= max(p, q) of <W^(t-p+1), W^(t-q+1)>.

    `steps`: how many steps a node makes in each round. Raises BadInput for weights that are not known before.
    """
    counts = np.asarray(steps)
    rounds = len(counts)
    # of_rounds: over rounds in which both are earlier; within: in the round of the later one.
    of_rounds, within = np.zeros((rounds, rounds)), np.zeros((rounds, rounds))
    for later, products in enumerate(_products(weighted_graph, rounds)):
        of_rounds[:later, :later] += products[:later, :later]
        if later < rounds:
            of_rounds[:later, :later] += max(0, counts[later] - 1) * products[:later, :later]
            within[: later + 1, later] = within[later, : later + 1] = products[:, later]
    of_step = np.repeat(np.arange(rounds), counts)
    place = np.concatenate([np.arange(count) for count in counts])
    later_round = np.maximum.outer(of_step, of_step)
    # The steps of a node are in their order, so the later one of two has the greater number.
    number = np.arange(len(of_step))
    left = counts[later_round] - 1 - place[np.maximum.outer(number, number)]
    gram: Matrix = of_rounds[np.ix_(of_step, of_step)] + left * within[np.ix_(of_step, of_step)]
    return gram


def _products(weighted_graph: WeightedGraph, rounds: int) -> Iterator[Matrix]:
    """For r = 0, ..., rounds: <W_(r-1) ... W_a, W_(r-1) ... W_b>, shape (r + 1, r + 1), for a, b <= r."""
    graph, n = weighted_graph.graph, weighted_graph.num_nodes
    if graph.is_negotiated or graph.needs_service:
        what = "needs mixing weights that are known before the start, not such as depend on the run"
        raise BadInput.at("training.privacy.correlation", f"factorized {what}; set workload: alone")
    is_static = weighted_graph.static
    is_symmetric = is_static and weighted_graph.mixing.symmetric
    of_powers = n**3 if is_symmetric else rounds * n**2 * (n + rounds)
    work = of_powers if is_static else rounds**2 * n**2 * (n + rounds)
    if work > MOST_WORK:
        what = f"takes {work:.0e} multiplications to plan {n:,} nodes and {rounds:,} rounds"
        raise BadInput.at("training.privacy.correlation", f"factorized {what}; set workload: alone")
    weights = weighted_graph.matrix(0)
    if is_static:
        # powers[i, j] = <W^i, W^j>
        exponents = np.arange(rounds + 1)
        if is_symmetric:
            spectrum = np.linalg.eigvalsh(weights)[:, None] ** exponents
            powers = spectrum.T @ spectrum
        else:
            each = [np.eye(n)]
            for _ in range(rounds):
                each.append(weights @ each[-1])
            flat = np.reshape(each, (rounds + 1, -1))
            powers = flat @ flat.T
        for later in range(rounds + 1):
            yield powers[later::-1, later::-1]
        return
    chains = np.eye(n)[None]
    for later in range(rounds + 1):
        flat = chains.reshape(later + 1, -1)
        yield flat @ flat.T
        if later < rounds:
            chains = np.concatenate([weighted_graph.matrix(later) @ chains, np.eye(n)[None]])


def edges_of(weighted_graph: WeightedGraph, steps: Sequence[Sequence[int]]) -> tuple[Matrix, Matrix]:
    """The adjacency of a graph, and how noise of its nodes moves models, both of shape (n, n).

    Noise of covariance S in each step moves models by tr(S G), squared and added up over all that `gram_of`
    counts. Raises BadInput for graphs and steps with which noise of edges does not cancel.
    """
    graph, n = weighted_graph.graph, weighted_graph.num_nodes
    if not weighted_graph.static or graph.directed or graph.is_negotiated or graph.needs_service:
        what = "edges needs an undirected graph that does not change, so that both ends add its noise"
        raise BadInput.at("training.privacy.correlation", what)
    if rank := next((rank for rank, of_node in enumerate(steps) if [*of_node] != [*steps[0]]), None):
        what = f"edges needs equally many steps at all nodes, and rank {rank} makes others than rank 0"
        remedy = "set training.steps_per_round, and let all train in the same rounds"
        raise BadInput.at("training.privacy.correlation", f"{what}; {remedy}")
    adjacency = np.zeros((n, n))
    for i in range(n):
        adjacency[i, [*graph.partners(i)]] = 1
    weights, moved, gram = weighted_graph.matrix(0), np.eye(n), np.zeros((n, n))
    counts, rounds = np.asarray(steps[0]), len(steps[0])
    # As in `gram_of`: after each step that is not the last of its round, and after each mix.
    gram += (counts * (counts - 1) // 2).clip(0).sum() * moved
    for apart in range(1, rounds + 1):
        moved = weights @ moved
        of_mixes = counts[: rounds - apart + 1].sum()
        of_steps = (counts[: rounds - apart] * (counts[apart:] - 1).clip(0)).sum()
        gram += (of_mixes + of_steps) * moved.T @ moved
    return adjacency, gram
