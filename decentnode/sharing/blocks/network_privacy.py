"""What each node learns of each other by mixing noisy models: pairwise network differential privacy."""

from collections.abc import Iterable, Sequence
from math import inf, log

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def pairwise_renyi(steps: Iterable[tuple[Matrix, NDArray[np.bool_]]], noise: float) -> Matrix:
    """e with e[u, v] a = the Renyi divergence of order a that v can see of u's signal (Cyffers et al., 2022).

    Shape (n, n). Every node adds noise N(0, noise^2) per unit of sensitivity once, before the first step. For
    each step t: the matrix P_t by which nodes send mixes of their noisy signals, P_0 = I and W^t in plain
    gossip, and who hears whom, hears[v, w].

    e[u, v] = 1/(2 noise^2) sum_t sum_{w in N_t(v)} (P_t)_wu^2 / |row w of P_t|^2

    (Theorem 1, with t from 0). It is at most what all others together see, 1/(2 noise^2): local privacy. The
    diagonal is infinite, because a node knows its own signal.
    """
    total: Matrix = np.zeros((1, 1))
    for sent, hears in steps:
        share = sent**2 / (sent**2).sum(1, keepdims=True)
        total = total + (hears.astype(float) @ share).T
    found: Matrix = np.minimum(total, 1.0) / (2 * noise**2)
    np.fill_diagonal(found, inf)
    return found


def epsilon(renyi: Matrix, rounds: int, delta: float, orders: Sequence[float] = ()) -> Matrix:
    """The least epsilon at that delta after so many rounds, by the conversion of Mironov (2017, Prop. 3).

    min over a of a rounds e + log(1/delta) / (a - 1), shape as `renyi`.
    """
    grid = np.array(orders or [1 + 1.25**k / 100 for k in range(60)])
    values = grid[:, None, None] * rounds * renyi + (log(1 / delta) / (grid - 1))[:, None, None]
    found: Matrix = values.min(0)
    # Where nothing is seen, nothing is spent.
    return np.where(renyi == 0, 0.0, found)
