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
from decentnode.sharing.blocks.network_privacy import Matrix, sensitivity

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


def distinguished(
    rows: Matrix, values: Matrix, updates: NDArray[np.float64], observers: Sequence[int], victim: int,
    deviations: Matrix, clip: float, rounding: float = 0.0, encoder: Matrix | None = None,
) -> Distinguished:  # fmt: skip
    """Plays the adversary of differential privacy: it knows all updates but those of the victim, no noise.

    Node j adds noise N(0, deviations_j^2 I) to its updates. What is left of the messages is whitened, Q
    (u_victim / deviation + noise), with Q a basis of the space of their rows without the columns of
    observers. The likelihood ratio between an update and none is then a matched filter (Koskela and Kulkarni,
    2025), and each coordinate one trial.

    `rows`, `values`: the messages, shape (m, rounds * n) and (m, d), without what observers have added;
    `updates`: those of all nodes without noise, shape (rounds, n, d); `rounding`: the relative precision of
    the messages; `encoder`: C, where the noise of a node over its rounds is C^-1 Z.
    """
    rounds, nodes, d = updates.shape
    code, deviation = np.eye(rounds) if encoder is None else encoder, float(deviations[victim])
    # In the space of Z, where all noise is white.
    seen = np.einsum("mtj,ts->msj", rows.reshape(-1, rounds, nodes) * deviations, np.linalg.inv(code))
    seen[:, :, [*observers]] = 0.0
    left, sizes, right = np.linalg.svd(seen.reshape(len(rows), -1), full_matrices=False)
    kept = sizes > max(UNSEEN, rounding) * max(float(sizes[0]), 1e-300)
    known = updates.copy()
    known[:, [*observers, victim]] = 0.0
    others = values - rows @ known.reshape(-1, d)
    white = (left[:, kept].T @ others) / sizes[kept, None]
    # Without the rounding errors of what no message has.
    share = right[kept].reshape(-1, rounds, nodes)[:, :, victim] * seen[:, :, victim].any(0) @ code
    mu = float(sensitivities(rows, deviations, observers, encoder)[victim]) * clip / deviation
    residual = white - share @ updates[:, victim] / deviation
    signs = np.sign(np.linalg.eigh(share.T @ share)[1][:, -1])
    matched = share @ np.where(signs == 0, 1.0, signs)
    length = float(np.linalg.norm(matched))
    scores: Scores = np.zeros(d) if length < UNSEEN else matched @ residual / length
    return Distinguished(
        auc=auc(scores + length * clip / deviation, scores),
        bound=auc_of(mu),
        deviations=float(np.sqrt(np.mean(residual**2))) if len(residual) else 0.0,
        mu=mu,
        estimate=np.linalg.pinv(share, rcond=1e-9) @ white * deviation,
    )


def sensitivities(
    rows: Matrix, deviations: Matrix, observers: Sequence[int], encoder: Matrix | None = None
) -> Matrix:
    """How far updates of length 1 of each node move all messages, times the deviation of its noise.

    With an encoder sqrt(sum_ts |X_ts|), X = C' P C (Bellet et al., 2026), at most that of all messages.
    """
    nodes = len(deviations)
    rounds = rows.shape[1] // nodes
    scaled = rows.reshape(-1, rounds, nodes) * deviations
    if encoder is None:
        return sensitivity(scaled.reshape(len(rows), -1), nodes, 1.0, observers)
    seen = np.einsum("mtj,ts->msj", scaled, np.linalg.inv(encoder))
    seen[:, :, [*observers]] = 0.0
    basis = row_basis(seen.reshape(len(rows), -1)).reshape(-1, rounds, nodes) * seen.any(0)
    shares = np.einsum("ksu,st->ktu", basis, encoder)
    sums = np.abs(np.einsum("ktu,ksu->uts", shares, shares)).sum((1, 2))
    moved: Matrix = np.sqrt(np.minimum(sums, np.abs(encoder.T @ encoder).sum()))
    moved[[*observers]] = inf
    return moved


def auc_of(mu: float) -> float:
    """The area under the curve of the best test of a Gaussian mechanism: Phi(mu / sqrt 2)."""
    return (1 + erf(mu / 2)) / 2
