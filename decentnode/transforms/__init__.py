"""Transforms: payload to payload, with an inverse; one per file."""

from decentnode.transforms.auto import Auto
from decentnode.transforms.bitmap import Bitmap
from decentnode.transforms.cast import Cast
from decentnode.transforms.clip import Clip
from decentnode.transforms.elias_gamma import EliasGamma
from decentnode.transforms.error_feedback import ErrorFeedback
from decentnode.transforms.fourier import Fourier
from decentnode.transforms.fpzip import Fpzip
from decentnode.transforms.gaussian_noise import GaussianNoise
from decentnode.transforms.low_rank import LowRank
from decentnode.transforms.lz4 import Lz4
from decentnode.transforms.pcodec import Pcodec
from decentnode.transforms.qsgd import Qsgd
from decentnode.transforms.random_k import RandomK
from decentnode.transforms.rice import Rice
from decentnode.transforms.sign import Sign
from decentnode.transforms.ternary import Ternary
from decentnode.transforms.threshold import Threshold
from decentnode.transforms.top_k import TopK
from decentnode.transforms.uniform import Uniform
from decentnode.transforms.wavelet import Wavelet
from decentnode.transforms.zstd import Zstd

__all__ = [
    "Auto", "Bitmap", "Cast", "Clip", "EliasGamma", "ErrorFeedback", "Fourier", "Fpzip", "GaussianNoise",
    "LowRank", "Lz4", "Pcodec", "Qsgd", "RandomK", "Rice", "Sign", "Ternary", "Threshold", "TopK",
    "Uniform", "Wavelet", "Zstd",
]  # fmt: skip
