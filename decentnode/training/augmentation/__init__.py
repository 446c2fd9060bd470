"""Random changes of training batches that ship with decentnode."""

from decentnode.training.augmentation.base import Augmentation, ImageAugmentation
from decentnode.training.augmentation.crop import Crop
from decentnode.training.augmentation.cutout import Cutout
from decentnode.training.augmentation.flip import Flip
from decentnode.training.augmentation.mixup import Mixup
from decentnode.training.augmentation.random_resized_crop import RandomResizedCrop

__all__ = ["Augmentation", "Crop", "Cutout", "Flip", "ImageAugmentation", "Mixup", "RandomResizedCrop"]
