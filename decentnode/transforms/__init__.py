"""Transforms: payload to payload, with an inverse; one per file."""

from decentnode.transforms.auto import Auto
from decentnode.transforms.bitmap import Bitmap
from decentnode.transforms.cast import Cast
from decentnode.transforms.elias_gamma import EliasGamma
from decentnode.transforms.qsgd import Qsgd
from decentnode.transforms.rice import Rice
from decentnode.transforms.sign import Sign
from decentnode.transforms.ternary import Ternary
from decentnode.transforms.uniform import Uniform

__all__ = ["Auto", "Bitmap", "Cast", "EliasGamma", "Qsgd", "Rice", "Sign", "Ternary", "Uniform"]
