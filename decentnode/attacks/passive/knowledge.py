"""What messages of many rounds tell together: linear algebra of a party that knows the mixing matrix.

y^t = x^t + u^t,   x^(t+1) = W y^t: each message y_v^t is a mix of the updates u_j^s, s <= t, of all nodes.
One row of coefficients for each message, one column for each round and node, time first: s * n + j.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, inf

import numpy as np
from numpy.typing import NDArray

from decentnode.attacks.passive.measures import Scores, auc
from decentnode.sharing.blocks.network_privacy import Matrix, most_moved

LEAST_REST = 1e-8
"""A direction of which less is new, beside its length 1, is not new: rests are above 1e-3 or below 1e-11."""
LEAST_LEVERAGE = 1 - 1e-6
"""The least leverage of what is known exactly."""
UNSEEN = 1e-12
"""A singular value of so little weight, beside the largest, counts as 0."""


def krylov_basis(w: Matrix, starts: Matrix, steps: int) -> Matrix:
    """Returns an orthonormal basis of the rows `starts` W^t, t < steps, shape (rank, n).

    Arnoldi with blocks (Saad, Iterative Methods for Sparse Linear Systems, 2003, section 6.12). The powers
    themselves become parallel, so that elimination in float64 decides wrongly on graphs of 15 nodes.
    """
    basis: Matrix = np.zeros((0, w.shape[0]))
    new = list(starts)
    for _ in range(steps):
        added = []
        for row in new:
            rest = row / max(float(np.linalg.norm(row)), 1e-300)
            for _ in range(3):
                rest = rest - (basis @ rest) @ basis
            if (length := float(np.linalg.norm(rest))) > LEAST_REST:
                added.append(rest / length)
                basis = np.vstack([basis, added[-1]])
        new = [row @ w for row in added]
        if not new:
            break
    return basis


def row_basis(rows: Matrix) -> Matrix:
    """Returns an orthonormal basis of the space of any rows, by singular values above `UNSEEN`."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not lengths.any():
        return np.zeros((0, rows.shape[1]))
    _, sizes, directions = np.linalg.svd(rows[lengths[:, 0] > 0] / lengths[lengths > 0, None], False)
    basis: Matrix = directions[sizes > UNSEEN * sizes[0]]
    return basis


def leverage(basis: Matrix) -> Matrix:
    """The share of each column's unit vector that lies in a space: 1 where its value is known exactly."""
    shares: Matrix = (basis**2).sum(0)
    return shares


@dataclass
class Estimate:
    """The solution of least squares for some unknowns."""

    values: Matrix
    """Shape (unknowns, d)."""
    gain: Matrix
    """The deviation of each value for noise of deviation 1 in each message; shape (unknowns,)."""


def least_squares(rows: Matrix, values: Matrix, noise: float) -> Estimate:
    """Solves rows x = values by the smallest x; directions that noise of that relative size hides are 0."""
    left, sizes, right = np.linalg.svd(rows, full_matrices=False)
    most = sizes[0] if len(sizes) else 0.0
    inverse = np.where(sizes > max(noise, UNSEEN) * most, 1 / np.where(sizes > 0, sizes, 1), 0.0)
    seen = sizes > UNSEEN * most
    gain = np.sqrt(((right[seen].T / sizes[seen]) ** 2).sum(1))
    return Estimate((right.T * inverse) @ (left.T @ values), gain)


@dataclass
class Distinguished:
    """What the adversary of the accountant achieves against one node."""

    auc: float
    """The probability that an update along a coordinate, as long as the clip, scores higher than none."""
    bound: float
    """The most that the accountant allows: Phi(mu / sqrt 2)."""
    deviations: float
    """The root mean square of its errors over what the noise explains: 1, up to chance."""
    mu: float
    """The accountant's sensitivity, in deviations of the noise."""
    estimate: Matrix
    """Its estimate of the updates of the node, shape (rounds, d)."""


@dataclass(frozen=True)
class JointNoise:
    """The noise that nodes add to their updates over rounds, n^t = sum_s (C^-1)_ts F z^s, z white.

    One update of node u then moves what is seen, in the space of z, by C (x) F^-1.
    """

    factor: Matrix
    """F, shape (n, n): F F' is the covariance over nodes, given the noise that observers know."""
    encoder: Matrix
    """C, shape (rounds, rounds)."""

    def seen(self, rows: Matrix, observers: Sequence[int]) -> Matrix:
        """What messages have of z, which observers know of their own: shape (m, rounds, n)."""
        found: Matrix = np.einsum("mtj,ts->msj", self._by_round(rows), np.linalg.inv(self.encoder))
        found = found @ self.factor
        found[:, :, [*observers]] = 0.0
        return found

    def shares(self, rows: Matrix, basis: Matrix) -> Matrix:
        """How updates of length 1 move white combinations of messages, shape (k, rounds, n).

        `basis`: of the space of what messages have of z, shape (k, rounds * n).
        """
        by_round = self._by_round(basis) @ np.linalg.inv(self.factor)
        # Without the rounding errors of what no message has.
        found: Matrix = np.einsum("ksu,st->ktu", by_round, self.encoder) * self._by_round(rows).any(0)
        return found

    def sensitivities(self, rows: Matrix, observers: Sequence[int]) -> Matrix:
        """How far updates of length 1 of each node, in all rounds, move all messages: in deviations.

        mu_u^2 = sum_ts |X_ts|, X = S_u' S_u with the shares of the node (Bellet et al., 2026); at most that
        of all messages, X = C'C (Sigma^-1)_uu. Shape (n,); infinite for observers.
        """
        basis = row_basis(self.seen(rows, observers).reshape(len(rows), -1))
        seen = most_moved(self.shares(rows, basis))
        precisions = np.diag(np.linalg.inv(self.factor @ self.factor.T))
        most = np.sqrt(precisions * np.abs(self.encoder.T @ self.encoder).sum())
        moved: Matrix = np.minimum(seen, most)
        moved[[*observers]] = inf
        return moved

    def _by_round(self, rows: Matrix) -> Matrix:
        return rows.reshape(-1, len(self.encoder), len(self.factor))


def distinguished(
    rows: Matrix, values: Matrix, updates: NDArray[np.float64], observers: Sequence[int], victim: int,
    noise: JointNoise, clip: float, rounding: float = 0.0,
) -> Distinguished:  # fmt: skip
    """Plays the adversary of differential privacy: it knows all updates but those of the victim, no noise.

    What is left of the messages is whitened: S u_victim + white noise, the optimum among linear estimates
    (generalized least squares). The likelihood ratio between an update and none is then a matched filter
    (Koskela and Kulkarni, 2025), and each coordinate one trial.

    `rows`, `values`: the messages, shape (m, rounds * n) and (m, d), without what observers have added, and
    without the noise of others that they know; `updates`: those of all nodes without noise, shape (rounds, n,
    d); `rounding`: the relative precision of the messages, in deviations of the noise.
    """
    d = updates.shape[-1]
    left, sizes, right = np.linalg.svd(noise.seen(rows, observers).reshape(len(rows), -1), False)
    kept = sizes > max(UNSEEN, rounding) * max(float(sizes[0]), 1e-300)
    known = updates.copy()
    known[:, [*observers, victim]] = 0.0
    others = values - rows @ known.reshape(-1, d)
    white = (left[:, kept].T @ others) / sizes[kept, None]
    share = noise.shares(rows, right[kept])[:, :, victim]
    mu = float(noise.sensitivities(rows, observers)[victim]) * clip
    residual = white - share @ updates[:, victim]
    signs = np.sign(np.linalg.eigh(share.T @ share)[1][:, -1])
    matched = share @ np.where(signs == 0, 1.0, signs) * clip
    length = float(np.linalg.norm(matched))
    scores: Scores = np.zeros(d) if length < UNSEEN else matched @ residual / length
    return Distinguished(
        auc=auc(scores + length, scores),
        bound=auc_of(mu),
        deviations=float(np.sqrt(np.mean(residual**2))) if len(residual) else 0.0,
        mu=mu,
        estimate=np.linalg.pinv(share, rcond=1e-9) @ white,
    )


def auc_of(mu: float) -> float:
    """The area under the curve of the best test of a Gaussian mechanism: Phi(mu / sqrt 2)."""
    return (1 + erf(mu / 2)) / 2
