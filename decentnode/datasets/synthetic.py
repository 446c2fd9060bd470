"""Data with a known amount of heterogeneity between nodes."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from decentnode.core.registry import DATASETS
from decentnode.core.rng import generator
from decentnode.datasets.base import Dataset, LoadedDataset, Samples
from decentnode.options import NonNegativeFloat, Positive

TEST_EVERY = 5
DECAY = -1.2
FEWEST = 50
"""The least size in the published generator, which adds it to each power-law size."""

Array = NDArray[np.float64]


@DATASETS.register("synthetic")
@dataclass(kw_only=True)
class Synthetic(Dataset):
    """Synthetic(alpha, beta), each node's own logistic model (Li et al., 2020, FedProx, section 5.1).

    On node k: y = argmax(softmax(W x + b)), W ~ N(u_k, 1), b ~ N(u_k, 1), u_k ~ N(0, alpha);
    x ~ N(v_k, Sigma), Sigma_jj = j^-1.2, v_k ~ N(B_k, 1), B_k ~ N(0, beta).
    alpha is how much the models differ, beta how much the inputs do. The second argument of N is a variance,
    as in the paper; the published generator uses it as a deviation (equal at 0 and 1). A fifth of each node's
    samples is for testing. `groups` is the node; use partition `natural`.
    """

    nodes: Positive = 30
    alpha: NonNegativeFloat = 1.0
    beta: NonNegativeFloat = 1.0
    samples_per_node: Annotated[int, Ge(TEST_EVERY)] | None = None
    """Equal for all nodes; default: 50 + lognormal(4, 2), the heavy tail of the published generator."""
    iid: bool = False
    """One W, b ~ N(0, 1) for all nodes and v_k = 0; alpha and beta have no effect."""
    features: Positive = 60
    classes: Positive = 10

    reads_files: ClassVar[bool] = False

    def read(self, seed: int) -> LoadedDataset:
        parts = [self._node(seed, k) for k in range(self.nodes)]
        x, y, k = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        is_test = np.concatenate([np.arange(len(labels)) % TEST_EVERY == 0 for _, labels, _ in parts])
        train, test = (gather(x, y, k, chosen=chosen) for chosen in (~is_test, is_test))
        return LoadedDataset(train, test, self.classes, shape=(self.features,))

    def _node(self, seed: int, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        rng = generator(seed, "synthetic", k)
        count = self.samples_per_node or FEWEST + int(rng.lognormal(4, 2))
        v = np.zeros(self.features)
        if not self.iid:
            v = rng.normal(rng.normal(0, np.sqrt(self.beta)), 1, self.features)
        deviation = np.arange(1, self.features + 1) ** (DECAY / 2)
        x = rng.normal(v, deviation, (count, self.features))
        W, b = self._model(seed, k)
        return x.astype(np.float32), (x @ W.T + b).argmax(1), np.full(count, k)

    def _model(self, seed: int, k: int) -> tuple[Array, Array]:
        """W, shape (classes, features), and b, shape (classes,), of node k."""
        rng = generator(seed, "synthetic model", 0 if self.iid else k)
        u = 0.0 if self.iid else rng.normal(0, np.sqrt(self.alpha))
        return rng.normal(u, 1, (self.classes, self.features)), rng.normal(u, 1, self.classes)


def gather(
    x: NDArray[np.float32], y: NDArray[np.int64], k: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> Samples:
    """The chosen rows as samples; not normalized, because their offsets are the heterogeneity."""
    inputs, labels, groups = (torch.from_numpy(column[chosen]) for column in (x, y, k))
    return Samples(inputs, labels, groups=groups)
