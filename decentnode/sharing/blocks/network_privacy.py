"""What nodes learn of each other: pairwise network differential privacy.

The observers are one node or several that share what they receive. Three figures, of which the first alone
holds for any training:

- `rounds_seen`: whatever has not reached the observers by the end tells them nothing (a light cone);
- `sensitivity`: all that they see together, for updates that do not depend on models received;
- `pairwise_renyi`: the published bound of Muffliato.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import erfc, exp, inf, log, log1p, pi, sqrt

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
UNSEEN = 1e-14
"""A direction of so little weight, beside the largest, is not one that numbers in float64 can carry."""


def rounds_seen(
    sources: Callable[[int, int], Collection[int]],
    nodes: int,
    rounds: int,
    exchanges: int,
    observers: Collection[int],
) -> list[int]:
    """For each rank the number of its first rounds whose updates can have reached the observers by the end.

    `sources(rank, round)` are the ranks that it receives from, in each of the `exchanges` of the round, which
    follow the local steps. All that observers receive is a function of the updates of these rounds, so it
    tells no more than they do (post-processing). Observers themselves count 0.
    """
    seen, reached = [0] * nodes, set(observers)
    for round in reversed(range(rounds)):
        for _ in range(exchanges):
            reached |= {j for i in reached for j in sources(i, round)}
        for rank in reached:
            seen[rank] = seen[rank] or round + 1
        if len(reached) == nodes:
            break
    return [0 if rank in observers else count for rank, count in enumerate(seen)]


def mixes(weights: Matrix, coefficients: Sequence[float], models: Matrix) -> Iterator[Matrix]:
    """Yields the models before each exchange of a round, and after the last one, as `multi_gossip` mixes."""
    before = models
    for c in coefficients:
        yield models
        models, before = c * weights @ models + (1 - c) * before, models
    yield models


def sent_mixes(
    weights: Callable[[int], Matrix], rounds: int, coefficients: Sequence[float]
) -> Iterator[tuple[int, int, Matrix]]:
    """Yields round, exchange, and what each node sends then as a mix of the updates of all rounds and nodes.

    `weights(round)` is W, and `coefficients` has one for each exchange of a round; shape (n, rounds * n).
    """
    n = len(weights(0))
    models: Matrix = np.zeros((n, rounds * n))
    for round in range(rounds):
        # Each model carries what is left of earlier rounds, and its own new update.
        models[:, round * n : (round + 1) * n] += np.eye(n)
        *sent, models = mixes(weights(round), coefficients, models)
        yield from ((round, phase, each) for phase, each in enumerate(sent))


def sensitivity(seen: Matrix, nodes: int, noise: float, observers: Collection[int]) -> Matrix:
    """Returns for each rank how far all its updates move what the observers see, in deviations of its noise.

    Each row of `seen` is a message that the observers receive, as a mix of all noisy updates y = u + N(0,
    noise^2 I), |u| <= 1, one column for each round and node: shape (messages, rounds * nodes). With the
    columns of the observers, who know theirs, left out, let P project onto the space of the rows. Then

    mu_u^2 = max over |d_r| <= 1 of sum_rs P_ur,us <d_r, d_s> / noise^2 <= sum_rs |P_ur,us| / noise^2,

    and what they see is a Gaussian mechanism of that sensitivity (Koskela and Kulkarni, 2025; Bellet et al.,
    2025: generalized least squares with one matrix for signal and noise). At most rounds / noise^2, which is
    local privacy. The updates must not depend on models that nodes receive: a neighbor whose steps depend on
    them can repeat what it heard louder than its weight.
    """
    rounds = seen.shape[1] // nodes
    known = [r * nodes + v for r in range(rounds) for v in observers]
    rows = seen.copy()
    rows[:, known] = 0.0
    deviations = np.zeros(nodes)
    if rows.any():
        _, sizes, directions = np.linalg.svd(rows[np.any(rows, axis=1)], full_matrices=False)
        basis = directions[sizes > UNSEEN * sizes[0]].reshape(-1, rounds, nodes)
        deviations = np.minimum(most_moved(basis), sqrt(rounds)) / noise
        # Without the rounding errors of what no message has.
        deviations *= rows.any(0).reshape(rounds, nodes).any(0)
    deviations[[*observers]] = inf
    return deviations


def most_moved(shares: Matrix) -> Matrix:
    """Returns for each rank sqrt(max over |d_r| <= 1 of |sum_r shares_ru d_r|^2), or a little more.

    `shares`: how the update of each round and rank moves what is seen, shape (directions, rounds, nodes).
    """
    blocks = np.einsum("kru,ksu->urs", shares, shares, optimize=True)
    together = shares.shape[1] * np.linalg.eigvalsh(blocks)[:, -1]
    moved: Matrix = np.sqrt(np.minimum(np.abs(blocks).sum((1, 2)), together).clip(0))
    return moved


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon at delta of a Gaussian mechanism of sensitivity mu deviations: exact, by bisection.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)   (Balle and Wang, 2018,
    theorem 8)
    """
    if mu == 0:
        return 0.0
    if mu == inf:
        return inf

    def exceeds(epsilon: float) -> bool:
        low, high = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return exp(_log_phi(low)) - exp(epsilon + _log_phi(high)) > delta

    low, high = 0.0, mu * mu / 2 + mu * sqrt(2 * log(1 / delta)) + 1e-9
    if not exceeds(0.0):
        return 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


def _log_phi(x: float) -> float:
    """The logarithm of the normal distribution, also where it underflows."""
    if x > -30:
        return log(erfc(-x / sqrt(2)) / 2)
    return -x * x / 2 - log(-x * sqrt(2 * pi)) + log1p(-1 / x**2 + 3 / x**4 - 15 / x**6)


def pairwise_renyi(steps: Iterable[tuple[Matrix, NDArray[np.bool_]]], noise: float) -> Matrix:
    """Returns e with e[u, v] a = the Renyi divergence of order a of what v sees of u's signal.

    Cyffers et al., NeurIPS 2022, theorem 1, shape (n, n). Every node adds noise N(0, noise^2) per unit of
    sensitivity once, before the first step. For each step t: the matrix P_t by which nodes send mixes of
    their noisy signals, P_0 = I and W^t in plain gossip, and who hears whom, hears[v, w].

    e[u, v] = 1/(2 noise^2) sum_t sum_{w in N_t(v)} (P_t)_wu^2 / |row w of P_t|^2

    (t from 0), at most 1/(2 noise^2): local privacy. The diagonal is infinite, because a node knows its own
    signal. It adds up messages as if the noise of each were fresh. They share their noise, so a node that
    solves for it learns more: on a ring, the first two messages of a neighbor tell the noisy signal of the
    next node exactly. `sensitivity` has what all messages together tell.
    """
    total: Matrix = np.zeros((1, 1))
    for sent, hears in steps:
        share = sent**2 / (sent**2).sum(1, keepdims=True)
        total = total + (hears.astype(float) @ share).T
    renyi: Matrix = np.minimum(total, 1.0) / (2 * noise**2)
    np.fill_diagonal(renyi, inf)
    return renyi


def epsilon(renyi: Matrix, rounds: int, delta: float, orders: Sequence[float] = ()) -> Matrix:
    """The least epsilon at that delta after so many rounds, by the conversion of Mironov (2017, Prop. 3).

    min over a of a rounds e + log(1/delta) / (a - 1), shape as `renyi`.
    """
    grid = np.array(orders or [1 + 1.25**k / 100 for k in range(60)])
    values = grid[:, None, None] * rounds * renyi + (log(1 / delta) / (grid - 1))[:, None, None]
    least: Matrix = values.min(0)
    # Where nothing is seen, nothing is spent.
    return np.where(renyi == 0, 0.0, least)
