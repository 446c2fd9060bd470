"""Random parts of images, all in one size."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from decentnode.core.registry import AUGMENTATIONS
from decentnode.core.vector import accumulator
from decentnode.errors import BadInput
from decentnode.options import Fraction, Positive, PositiveFloat
from decentnode.training.augmentation.base import ImageAugmentation


@AUGMENTATIONS.register("random_resized_crop")
@dataclass(kw_only=True)
class RandomResizedCrop(ImageAugmentation):
    """A random part of each image, scaled to one size (Szegedy et al., 2015, GoogLeNet, section 6).

    As RandomResizedCrop of torchvision, for ImageNet: bilinear; a part that is too long for the image is as
    long as the image.
    """

    least_area: Fraction = 0.08
    """The smallest part, as a fraction of the image's area; the largest is the whole."""
    most_stretch: PositiveFloat = 4 / 3
    """The largest ratio of the part's sides, relative to that of the image."""
    size: Positive | None = None
    """The sides of the result in pixels; null: those of the images."""

    def __post_init__(self) -> None:
        if self.most_stretch < 1:
            raise BadInput.at("most_stretch", f"must be a ratio of 1 or more, not {self.most_stretch:g}")

    def images(self, images: Tensor, random: np.random.Generator) -> Tensor:
        count, _, *sizes = images.shape
        height, width = sizes if self.size is None else (self.size, self.size)
        area = random.uniform(self.least_area, 1.0, count)
        stretch = np.exp(random.uniform(-1.0, 1.0, count) * math.log(self.most_stretch) / 2)
        # As fractions of the image, so that 2 y - 1 is grid_sample's coordinate of y.
        sides = np.minimum(np.sqrt(area) * np.stack([1 / stretch, stretch]), 1.0)
        first = random.uniform(0.0, 1.0, (2, count)) * (1.0 - sides)
        rows, columns = (
            torch.from_numpy(2 * (first[axis, :, None] + sides[axis, :, None] * _centers(extent)) - 1)
            for axis, extent in enumerate((height, width))
        )
        # There is no grid_sample in bfloat16.
        exact = images.to(accumulator(images.dtype))
        grid = exact.new_empty(count, height, width, 2)
        grid[..., 0], grid[..., 1] = columns[:, None, :], rows[:, :, None]
        # At the edge: a pixel of the border, not the color of a padding.
        parts = grid_sample(exact, grid, mode="bilinear", padding_mode="border", align_corners=False)
        return parts.to(images.dtype)


def _centers(extent: int) -> np.ndarray:
    """The centers of the pixels of an axis, as fractions of its length."""
    return (np.arange(extent) + 0.5) / extent
