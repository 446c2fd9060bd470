"""What the contract tests must know of each registered transform: a chain that exercises it, and its error.

Add yours with one entry (or several: the transform's name is the first word of the key):

    "top_k": Case(lambda: [TopK(0.1)], lambda v: 0.9**0.5 * v.norm()),
    "rice": Case(lambda: [TopK(0.1), Rice()], reference=lambda: [TopK(0.1)]),
    "cast fp16": Case(lambda: [Cast("fp16")], lambda v: 2.0**-11 * v.abs() + 2.0**-25),
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.core.vector import Entry, ParameterLayout
from decentnode.transforms import Auto, Bitmap, Cast, EliasGamma, Qsgd, Rice, Sign, Ternary, Uniform
from decentnode.transforms.base import Transform
from decentnode.transforms.basis.dct import Dct
from decentnode.transforms.basis.fourier import Fourier
from decentnode.transforms.basis.low_rank import LowRank
from decentnode.transforms.basis.wavelet import Wavelet
from decentnode.transforms.coding.fpzip import Fpzip
from decentnode.transforms.coding.lz4 import Lz4
from decentnode.transforms.coding.pcodec import Pcodec
from decentnode.transforms.coding.zstd import Zstd
from decentnode.transforms.error_feedback import ErrorFeedback
from decentnode.transforms.privacy.clip import Clip
from decentnode.transforms.privacy.gaussian_noise import GaussianNoise
from decentnode.transforms.sparsify.chunk_top_k import ChunkTopK
from decentnode.transforms.sparsify.fragments import Fragments
from decentnode.transforms.sparsify.random_k import RandomK
from decentnode.transforms.sparsify.selection import count
from decentnode.transforms.sparsify.threshold import Threshold
from decentnode.transforms.sparsify.top_k import TopK

Bound = Callable[[Tensor], Tensor | float]


@dataclass(frozen=True)
class Case:
    """One chain of fresh transforms, and how far what it decodes may be from what went in."""

    chain: Callable[[], list[Transform]]
    bound: Bound | None = None
    """Of the signal, in its own dtype: its error at most, by element (a tensor of its shape) or the error's
    Euclidean norm (one number); None: exact. Lengths of 0, 1 and 2 and the zero signal included."""
    reference: Callable[[], list[Transform]] = list
    """The same chain without what is tested: the error is counted from what this one decodes."""
    parameters: Callable[[int], ParameterLayout | None] = lambda length: None
    """Which parameters a signal of that length has, for transforms that work by parameter."""
    unbiased: bool = False
    """Right on average with these options, though not with all (then the class says so)."""
    may_alias: bool = False
    """What is encoded may be a view of the signal; say why beside the entry."""


def by_element(factor: float, least: float = 0.0) -> Bound:
    """An error of each element of at most `factor` times its magnitude, plus `least`."""
    return lambda v: factor * v.abs() + least


def by_norm(factor: float) -> Bound:
    """An error whose norm is at most `factor` times the signal's."""
    return lambda v: factor * float(torch.linalg.vector_norm(v, dtype=torch.float64)) + 1e-12


def of_range(factor: float) -> Bound:
    """An error of each element of at most that part of the distance of the least from the largest value."""
    return lambda v: (
        torch.full_like(v, factor * float(v.max() - v.min()) + 2e-7 * float(v.abs().max())) if len(v) else v
    )


def of_norm(factor: float, order: float = 2.0) -> Bound:
    """An error of each element of at most that part of the signal's norm."""
    return lambda v: (
        torch.full_like(v, factor * float(torch.linalg.vector_norm(v, order, dtype=torch.float64)))
        if len(v)
        else v
    )


def behind(*before: Callable[[], Transform], last: Callable[[], Transform]) -> Case:
    """What takes nothing away from the chain in front of it."""
    return Case(lambda: [*(make() for make in before), last()], reference=lambda: [make() for make in before])


def of_precision(factor: float, least: float = 0.0) -> Bound:
    """An error whose norm is at most `factor` times that of one rounding, or `least` times the signal's."""
    return lambda v: by_norm(max(factor * torch.finfo(v.dtype).eps, least))(v)


def left_out(fraction: float) -> Bound:
    """The most that all but the largest k of n values can weigh: (1 - k / n) of the squared norm."""
    return lambda v: by_norm(max(0.0, 1 - count(fraction, len(v)) / max(1, len(v))) ** 0.5 * 1.00001)(v)


def of_noise(sigma: float) -> Bound:
    """The norm of normal noise, which is longer once in a hundred million draws."""
    return lambda v: sigma * (len(v) ** 0.5 + 6)


def two_tensors(length: int) -> ParameterLayout:
    """A model of that many values."""
    first = length // 3
    sizes = (("weight", first, 0), ("bias", length - first, first))
    return ParameterLayout(tuple(Entry(name, torch.Size([n]), offset) for name, n, offset in sizes))


CODERS = {"auto": Auto, "bitmap": Bitmap, "elias_gamma": EliasGamma, "rice": Rice}
SELECTIONS = {
    "behind top_k": lambda: TopK(0.1),
    "behind all or a tenth": lambda: TopK([0.1, 0.3, 1.0], metadata_cap=0.4),
    "behind threshold": lambda: Threshold(0.8),
}

CASES: dict[str, Case] = {
    "cast fp16": Case(lambda: [Cast("fp16")], by_element(2.0**-11, 2.0**-25)),
    "cast bf16": Case(lambda: [Cast("bf16")], by_element(2.0**-8, 2.0**-134)),
    "qsgd": Case(lambda: [Qsgd()], of_norm(1.0001 / 127)),
    "qsgd max": Case(lambda: [Qsgd(3, norm="max")], of_norm(1.0001 / 3, torch.inf)),
    "uniform": Case(lambda: [Uniform()], of_range(0.5001 / 255)),
    "uniform stochastic": Case(
        lambda: [Uniform(4, rounding="stochastic")], of_range(1.0001 / 15), unbiased=True
    ),
    "sign": Case(lambda: [Sign()], by_norm(1.0)),
    "ternary": Case(lambda: [Ternary()], of_norm(1.0001, torch.inf), unbiased=True),
    "ternary threshold": Case(lambda: [Ternary("threshold")], by_norm(1.0)),
}
CASES |= {
    f"{name} {where}": behind(select, last=coder)
    for name, coder in CODERS.items()
    for where, select in SELECTIONS.items()
}
CASES |= {
    f"{name} behind codes": behind(SELECTIONS["behind threshold"], Qsgd, last=coder)
    for name, coder in CODERS.items()
}
CASES |= {
    "top_k": Case(lambda: [TopK(0.1)], left_out(0.1)),
    "top_k change": Case(lambda: [TopK(0.1, by="change")], left_out(0.1)),
    "top_k drawn": Case(lambda: [TopK([0.1, 0.3, 1.0], by="change", metadata_cap=0.5)], left_out(0.1)),
    "top_k per layer": Case(lambda: [TopK(0.3, per_layer=True)], by_norm(1.0), parameters=two_tensors),
    "top_k and others": Case(lambda: [TopK(0.1, relative=0.1, random=0.2)], by_norm(1.0)),
    "top_k and rare ones": Case(lambda: [TopK(0.1, random=0.2, random_below=0.5)], by_norm(1.0)),
    "top_k by rounds": Case(lambda: [TopK(0.1, fraction_from=((1, 0.2), (2, [0.3, 1.0])))], left_out(0.1)),
    "random_k": Case(lambda: [RandomK(0.3)], by_norm(1.0)),
    "random_k shared": Case(lambda: [RandomK(0.7, shared_mask=True)], by_norm(1.0)),
    "random_k whole at times": Case(lambda: [RandomK(0.3, whole_every=2), Qsgd()], by_norm(1.0)),
    "random_k per layer": Case(lambda: [RandomK(0.3, per_layer=True)], by_norm(1.0), parameters=two_tensors),
    "fragments": Case(lambda: [Fragments(2)], by_norm(1.0), parameters=two_tensors),
    "fragments sequential": Case(
        lambda: [Fragments(2, "sequential"), Qsgd()], by_norm(1.0), parameters=two_tensors
    ),
    "fragments of values": Case(lambda: [Fragments(fraction=0.3, start="drawn")], by_norm(1.0)),
    "threshold": Case(lambda: [Threshold(0.8)], lambda v: torch.full_like(v, 0.8)),
    "threshold relative": Case(lambda: [Threshold(0.5, relative=True)], of_norm(0.5, torch.inf)),
    "wavelet": Case(lambda: [Wavelet()], of_precision(10, 1e-10)),
    "wavelet bior4.4": Case(lambda: [Wavelet("bior4.4", 2)], of_precision(20, 1e-10)),
    "wavelet top_k": Case(lambda: [Wavelet("haar"), TopK(0.2)], by_norm(1.0)),
    "fourier": Case(lambda: [Fourier()], of_precision(10)),
    "fourier blocks": Case(lambda: [Fourier(block=6)], of_precision(10)),
    "clip": Case(lambda: [Clip(2.0)], lambda v: max(0.0, float(v.double().norm()) - 2) + 1e-5),
    "clip per layer": Case(lambda: [Clip(2.0, per_layer=True)], by_norm(1.0), parameters=two_tensors),
    "gaussian_noise": Case(lambda: [GaussianNoise(0.1)], of_noise(0.1)),
    "gaussian_noise neighbor": Case(lambda: [GaussianNoise(0.1, "neighbor")], of_noise(0.1)),
    "error_feedback": Case(lambda: [ErrorFeedback(), TopK(0.1)], left_out(0.1)),
    "error_feedback cast": Case(lambda: [ErrorFeedback(), RandomK(0.4), Cast()], by_norm(1.0)),
    "error_feedback basis": Case(lambda: [ErrorFeedback(), Wavelet(), TopK(0.5)], by_norm(1.0)),
}


def a_matrix(length: int) -> ParameterLayout:
    """A model of that many values, most of them in a matrix."""
    rows = int(length**0.5)
    sizes = (((rows, rows), 0), ((length - rows**2,), rows**2))
    return ParameterLayout(tuple(Entry(f"at {start}", torch.Size(shape), start) for shape, start in sizes))


CASES |= {
    "chunk_top_k": Case(lambda: [ChunkTopK(0.1, 16)], by_norm(0.95)),
    "chunk_top_k change": Case(lambda: [ChunkTopK(0.1, 300, by="change")], by_norm(0.95)),
    "chunk_top_k not packed": Case(lambda: [ChunkTopK(0.1, 16, packed=False), Rice()], by_norm(0.95)),
    "chunk_top_k coded": Case(lambda: [ErrorFeedback(), ChunkTopK(0.1, 9), Cast()], by_norm(1.0)),
    "dct": Case(lambda: [Dct()], of_precision(10)),
    "dct matrices": Case(lambda: [Dct(6, matrices=True)], of_precision(10), parameters=a_matrix),
    "dct selected": Case(
        lambda: [Dct(4, matrices=True), ChunkTopK(0.2, 16)], by_norm(1.0), parameters=a_matrix
    ),
}

BYTE_CODERS = {"zstd": Zstd, "lz4": Lz4, "pcodec": Pcodec, "fpzip": Fpzip}
CASES |= {name: Case(lambda coder=coder: [coder()]) for name, coder in BYTE_CODERS.items()}
CASES |= {
    f"{name} behind codes": behind(lambda: TopK(0.1), Uniform, Rice, last=coder)
    for name, coder in BYTE_CODERS.items()
}
CASES |= {
    "fpzip lossy": Case(lambda: [Fpzip(16)], by_element(2.0**-4, 2.0**-126)),
    "low_rank": Case(lambda: [LowRank(2)], by_norm(1.00001), parameters=a_matrix),
}
