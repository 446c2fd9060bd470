"""Noise of private steps that neighbors share and that cancels in their sum."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from decentnode.core.pair_keys import KeyedSource, PairKeys
from decentnode.core.registry import CORRELATIONS
from decentnode.core.rng import RandomSource, SeededSource
from decentnode.core.state import Stateful
from decentnode.errors import BadInput
from decentnode.options import NonNegativeFloat
from decentnode.training.privacy.correlation import Independent, Matrix

MOST_RATIO = 30.0
"""The largest ratio that is tried; more changes little, and its noise stays in full where an edge is lost."""
MOST_NODES = 400
"""The most nodes that are looked at as adversaries, which takes n^4 operations: some seconds."""
RATIOS = (0.0, *np.geomspace(0.01, MOST_RATIO, 200).tolist())


@CORRELATIONS.register("edges", "decor")
@dataclass
class Decor(Independent):
    """Each edge has noise that one end adds and the other subtracts (DECOR: Allouah et al., ICML 2024).

    n_i = z_i + ratio sum over neighbors j of s_ij v_ij,   v_ij = v_ji, s_ij = 1 for i < j and -1 for i > j,

    with z_i and v_ij independent and normal, new in each step. The covariance over nodes is I + ratio^2 L,
    with L the Laplacian of the graph. Mixing cancels noise of edges; the mean of all models has none of it.
    Both ends draw v_ij from a key that they agree on before the first round (X25519).
    """

    has_edges: ClassVar[bool] = True

    ratio: NonNegativeFloat | Literal["auto"] = "auto"
    """The deviation of v over that of z; auto: the one that moves models least at the epsilon of the run (the
    aim of Rodio et al., 2025, among covariances of this form)."""
    adversary: Literal["node", "outsider"] = "node"
    """Against whom epsilon holds: each single node, which sees all messages and knows the noise of its own
    edges; or one who sees all messages and knows no noise, as in the paper."""

    def covariance(self, adjacency: Matrix, ratio: float) -> Matrix:
        """I + ratio^2 L, shape (n, n)."""
        degrees = np.diag(adjacency.sum(1))
        return np.eye(len(adjacency)) + ratio**2 * (degrees - adjacency)

    def amplification(self, adjacency: Matrix, ratio: float, known: tuple[int, ...] = ()) -> Matrix:
        """(S^-1)_ii of each node, shape (n,): the square of its sensitivity, in units of its own noise.

        `known`: nodes that tell the noise of their edges, so that these, and they, are left out; they get 1.
        """
        return spectrum(adjacency, known).amplification(ratio)

    def sensitivities(self, adjacency: Matrix, ratio: float) -> Matrix:
        """How far a sample moves what the adversary sees of each node, in deviations of its own noise."""
        return np.sqrt(self._worst(self._spectra(adjacency), ratio))

    def _spectra(self, adjacency: Matrix) -> list["Spectrum"]:
        """Returns the spectrum of the graph, or one without each possible adversary; raises BadInput."""
        n = len(adjacency)
        if self.adversary == "outsider" or n == 1:
            return [spectrum(adjacency, ())]
        if n > MOST_NODES:
            what = f"edges looks at each node as the adversary, and {n:,} are too many (at most {MOST_NODES})"
            raise BadInput.at("training.privacy.correlation", f"{what}; set adversary: outsider")
        return [spectrum(adjacency, (one,)) for one in range(n)]

    def _worst(self, each_spectrum: Sequence["Spectrum"], ratio: float) -> Matrix:
        seen = np.array([one.amplification(ratio) for one in each_spectrum])
        if len(each_spectrum) > 1:
            seen[np.eye(len(each_spectrum), dtype=bool)] = 0.0  # a node knows its own samples
        worst: Matrix = seen.max(0)
        return worst

    def chosen_ratio(self, adjacency: Matrix, gram: Matrix) -> float:
        """The ratio of the options, or the one with the least max_i (S^-1)_ii tr(S G).

        `gram`: G of nodes, shape (n, n): noise of covariance S moves models by tr(S G), squared and added up.
        """
        if self.ratio != "auto":
            return float(self.ratio)

        spectra = self._spectra(adjacency)

        def error(ratio: float) -> float:
            worst = float(self._worst(spectra, ratio).max())
            return worst * float((self.covariance(adjacency, ratio) * gram).sum())

        best: float = min(RATIOS, key=error)
        return best


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues and eigenvectors of the Laplacian of a graph, or of what is left of it."""

    nodes: int
    left: list[int]
    eigenvalues: Matrix
    weights: Matrix
    """The squares of the eigenvectors, which are columns."""

    def amplification(self, ratio: float) -> Matrix:
        """((I + ratio^2 L)^-1)_ii, shape (n,); 1 for nodes that are left out."""
        found = np.ones(self.nodes)
        found[self.left] = self.weights @ (1 / (1 + ratio**2 * self.eigenvalues))
        return found


def spectrum(adjacency: Matrix, known: Sequence[int]) -> Spectrum:
    """Returns the spectrum of the graph without the known nodes."""
    left = [i for i in range(len(adjacency)) if i not in known]
    part = adjacency[np.ix_(left, left)]
    eigenvalues, vectors = np.linalg.eigh(np.diag(part.sum(1)) - part)
    return Spectrum(len(adjacency), left, eigenvalues.clip(0), vectors**2)


@dataclass(frozen=True)
class EdgeShare:
    """The noise that a node adds in each step, in units of the clipping norm."""

    own: float
    """The deviation of the noise of its own."""
    edge: float
    """The deviation of the noise of each edge."""
    neighbors: tuple[int, ...]


class EdgeNoise(Stateful):
    """The noise of the steps of one node, of which that of edges cancels with its neighbors'."""

    state: ClassVar = ("step",)

    def __init__(self, share: EdgeShare, rank: int, seed: int | None) -> None:
        """`seed`: of noise that anybody can draw again; None: keys that only both ends of an edge know."""
        self.step = 0
        """The number of steps so far, the same at all nodes."""
        self._share = share
        self._rank = rank
        self._seed = seed
        self._keys = PairKeys(os.urandom(32)) if seed is None else None

    def handshake(self) -> bytes:
        """The public key for the other nodes; empty where the seed tells the noise."""
        return b"" if self._keys is None else self._keys.public

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        """Takes the public keys by rank."""
        if self._keys is not None:
            self._keys.receive_handshakes(handshakes)

    def draw(self, source: RandomSource, count: int) -> Tensor:
        """The noise of the next step, shape (count,), float64."""
        noise = source.normal(count).mul_(self._share.own)
        for other in self._share.neighbors if self._share.edge else ():
            sign = 1.0 if self._rank < other else -1.0
            noise.add_(self._source_with(other).normal(count), alpha=sign * self._share.edge)
        self.step += 1
        return noise

    def _source_with(self, other: int) -> RandomSource:
        """What both ends of an edge draw from in this step."""
        if self._keys is not None:
            return KeyedSource(self._keys.key(self._rank, other, self.step))
        assert self._seed is not None
        return SeededSource(self._seed, *sorted((self._rank, other)), self.step, purpose="edges")
