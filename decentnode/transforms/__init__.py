"""Transforms: payload to payload, with an inverse; one per file."""

from decentnode.transforms.basis.dct import Dct
from decentnode.transforms.basis.fourier import Fourier
from decentnode.transforms.basis.low_rank import LowRank
from decentnode.transforms.basis.wavelet import Wavelet
from decentnode.transforms.coding.auto import Auto
from decentnode.transforms.coding.bitmap import Bitmap
from decentnode.transforms.coding.elias_gamma import EliasGamma
from decentnode.transforms.coding.fpzip import Fpzip
from decentnode.transforms.coding.lz4 import Lz4
from decentnode.transforms.coding.pcodec import Pcodec
from decentnode.transforms.coding.rice import Rice
from decentnode.transforms.coding.zstd import Zstd
from decentnode.transforms.error_feedback import ErrorFeedback
from decentnode.transforms.privacy.clip import Clip
from decentnode.transforms.privacy.gaussian_noise import GaussianNoise
from decentnode.transforms.quantize.cast import Cast
from decentnode.transforms.quantize.qsgd import Qsgd
from decentnode.transforms.quantize.sign import Sign
from decentnode.transforms.quantize.ternary import Ternary
from decentnode.transforms.quantize.uniform import Uniform
from decentnode.transforms.sparsify.chunk_top_k import ChunkTopK
from decentnode.transforms.sparsify.fragments import Fragments
from decentnode.transforms.sparsify.random_k import RandomK
from decentnode.transforms.sparsify.threshold import Threshold
from decentnode.transforms.sparsify.top_k import TopK

__all__ = [
    "Auto", "Bitmap", "Cast", "ChunkTopK", "Clip", "Dct", "EliasGamma", "ErrorFeedback", "Fourier", "Fpzip",
    "Fragments", "GaussianNoise", "LowRank", "Lz4", "Pcodec", "Qsgd", "RandomK", "Rice", "Sign", "Ternary",
    "Threshold", "TopK", "Uniform", "Wavelet", "Zstd",
]  # fmt: skip
