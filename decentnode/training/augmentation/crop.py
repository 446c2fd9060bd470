"""Random crops of padded images."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from decentnode.core.registry import AUGMENTATIONS
from decentnode.options import Positive
from decentnode.training.augmentation.base import ImageAugmentation


@AUGMENTATIONS.register("crop")
@dataclass(kw_only=True)
class Crop(ImageAugmentation):
    """A crop of the old size at a random place of the padded image (He et al., 2016, ResNet, section 4.2).

    As RandomCrop of torchvision, but the padding is 0 in the normalized image, so the mean color.
    """

    padding: Positive = 4
    """Pixels that are added on each side."""

    def images(self, images: Tensor, random: np.random.Generator) -> Tensor:
        count, _, height, width = images.shape
        places = random.integers(0, 2 * self.padding + 1, (2, count))
        windows = pad(images, (self.padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
        top, left = torch.from_numpy(places)
        return windows[torch.arange(count), :, top, left]
