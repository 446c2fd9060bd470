"""Wrong labels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from decentnode.attacks.base import Attack, Seen
from decentnode.core.registry import ATTACKS
from decentnode.datasets.base import LoadedDataset, Samples, counts
from decentnode.datasets.ragged import dense
from decentnode.datasets.skew import Skew, SkewedRank
from decentnode.errors import Defect
from decentnode.graph.base import View


@ATTACKS.register("label_flip", "label_flipping")
@dataclass(kw_only=True)
class LabelFlip(Attack):
    """Trains on wrong labels, l -> classes - 1 - l, and is honest otherwise (Biggio et al., ICML 2012)."""

    knowledge = "its own training samples"

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        return model

    def skew(self) -> Skew:
        return FlippedLabels(ranks=self.ranks)


@dataclass(kw_only=True)
class FlippedLabels(Skew):
    """Flips the labels of some ranks."""

    ranks: tuple[int, ...]

    def defects(self, dataset: LoadedDataset, count: int) -> Iterator[Defect]:
        if dataset.train.labels.dim() != 1 or dataset.num_classes < 2:
            yield Defect((), "label_flip needs samples that have one class each, of two or more")

    def change(self, samples: Samples, rank: SkewedRank, rng: np.random.Generator) -> Samples:
        if rank.rank not in self.ranks:
            return samples
        labels = dense(samples.labels)
        flipped = torch.where(counts(labels, samples.ignored), rank.num_classes - 1 - labels, labels)
        return replace(samples, labels=flipped)
