"""Squares of images without content."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decentnode.core.registry import AUGMENTATIONS
from decentnode.datasets.base import LoadedDataset
from decentnode.errors import BadInput
from decentnode.options import Positive
from decentnode.training.augmentation.base import ImageAugmentation


@AUGMENTATIONS.register("cutout")
@dataclass(kw_only=True)
class Cutout(ImageAugmentation):
    """Sets a square around a random pixel of each image to 0, the mean color (DeVries and Taylor, 2017).

    A part of the square may lie outside the image, as in the paper.
    """

    size: Positive = 8
    """The side of the square in pixels."""

    def images(self, images: Tensor, random: np.random.Generator) -> Tensor:
        count, _, height, width = images.shape
        rows = torch.from_numpy(self._covered(random, count, height))
        columns = torch.from_numpy(self._covered(random, count, width))
        return images.masked_fill_(rows[:, None, :, None] & columns[:, None, None, :], 0.0)

    def _covered(self, random: np.random.Generator, count: int, extent: int) -> np.ndarray:
        """Whether each position of an axis lies in the square, shape (count, extent)."""
        first = random.integers(0, extent, (count, 1)) - self.size // 2
        covered: np.ndarray = np.arange(extent) - first
        return (covered >= 0) & (covered < self.size)

    def check(self, dataset: LoadedDataset) -> None:
        super().check(dataset)
        if self.size > min(dataset.shape[1:]):
            height, width = dataset.shape[1:]
            raise BadInput.at(
                "training.augmentation",
                f"cutout of {self.size} x {self.size} pixels is larger than the images of {height} x {width}",
            )
