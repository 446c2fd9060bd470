"""Transforms: payload to payload, with an inverse; one per file."""

from decentnode.transforms.auto import Auto
from decentnode.transforms.bitmap import Bitmap
from decentnode.transforms.cast import Cast
from decentnode.transforms.elias_gamma import EliasGamma
from decentnode.transforms.rice import Rice

__all__ = ["Auto", "Bitmap", "Cast", "EliasGamma", "Rice"]
