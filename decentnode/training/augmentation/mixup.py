"""Mixtures of two samples."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from decentnode.core.registry import AUGMENTATIONS
from decentnode.datasets.base import Batch, LoadedDataset
from decentnode.errors import BadInput
from decentnode.options import PositiveFloat
from decentnode.training.augmentation.base import Augmentation


@AUGMENTATIONS.register("mixup")
@dataclass(kw_only=True)
class Mixup(Augmentation):
    """Trains on mixtures of each two samples of a batch (Zhang et al., 2018, section 2).

        x <- lam x_i + (1 - lam) x_j,   loss = lam loss(y_i) + (1 - lam) loss(y_j),   lam ~ Beta(alpha, alpha)

    As in the paper's code, j is a random permutation of the batch, and a batch has one lam. The training loss
    is that of the mixtures, so it is higher than that of an evaluation.
    """

    alpha: PositiveFloat = 0.2
    """The paper's; 0.1 to 0.4 for ImageNet, 1 for CIFAR-10."""

    def apply(self, batch: Batch, random: np.random.Generator) -> Batch:
        share = float(random.beta(self.alpha, self.alpha))
        other = torch.from_numpy(random.permutation(len(batch)))
        inputs = batch.fields[0]
        mixture = inputs.lerp(inputs[other], 1 - share)
        return replace(batch, fields=(mixture,), mixed=(batch.labels[other], share))

    def check(self, dataset: LoadedDataset) -> None:
        labels = dataset.train.labels
        if dataset.train.has_ids or dataset.train.more:
            raise BadInput.at("training.augmentation", "mixup needs one input of numbers, and ids are none")
        if labels.is_floating_point() or labels.dim() != 1:
            kind = "numbers" if labels.is_floating_point() else f"of shape {tuple(labels.shape[1:])} each"
            raise BadInput.at(
                "training.augmentation", f"mixup needs one class for each sample; the labels are {kind}"
            )
