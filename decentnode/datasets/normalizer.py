"""The normalization of one node, by its own training samples."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from decentnode.datasets.base import Samples, mean_and_deviation
from decentnode.datasets.ragged import dense


@dataclass(frozen=True, eq=False)
class Normalizer:
    """What one node subtracts from inputs, and what it divides them by."""

    mean: Tensor
    std: Tensor

    @classmethod
    def fitted(cls, samples: Samples, rows: Tensor, chosen: Tensor) -> Self:
        """Returns mean and deviation of these rows for the chosen inputs, and else those of the samples.

        `chosen`: bool, of the shape of a sample. Without rows, all are those of the samples.
        """
        if not len(rows):
            return cls(samples.mean, samples.std)
        found = mean_and_deviation(dense(samples.inputs)[rows].numpy())
        mean, std = (
            torch.where(chosen, torch.from_numpy(own).to(shared.dtype), shared)
            for own, shared in zip(found, (samples.mean, samples.std), strict=True)
        )
        return cls(mean, std)

    def of(self, samples: Samples) -> Samples:
        """Returns samples that are normalized so."""
        return replace(samples, mean=self.mean, std=self.std)
