"""Mirrored images."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decentnode.core.registry import AUGMENTATIONS
from decentnode.options import Probability
from decentnode.training.augmentation.base import ImageAugmentation


@AUGMENTATIONS.register("flip")
@dataclass(kw_only=True)
class Flip(ImageAugmentation):
    """Mirrors images from left to right (Krizhevsky et al., 2012, AlexNet, section 4.1).

    As RandomHorizontalFlip of torchvision. Not for digits or letters.
    """

    probability: Probability = 0.5
    """The fraction of images that are mirrored."""

    def images(self, images: Tensor, random: np.random.Generator) -> Tensor:
        is_mirrored = torch.from_numpy(random.random(len(images)) < self.probability)
        return torch.where(is_mirrored[:, None, None, None], images.flip(3), images)
