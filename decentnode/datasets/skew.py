"""Changes of the training samples of each rank: feature skew and label noise (`dataset.skew`).

Each sample belongs to one rank, so a changed copy of the training set, made once per machine before the fork,
serves all nodes. Inputs keep their type: images stay uint8.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.registry import SKEWS, is_third_party, name_of
from decentnode.core.rng import generator
from decentnode.datasets.base import LoadedDataset, Samples, counts, defects_of
from decentnode.datasets.ragged import dense
from decentnode.errors import DatasetError, Defect, refuse
from decentnode.options import PositiveFloat, Probability

Levels = tuple[float, ...]
"""The value that a skew has chosen for a rank, such as an angle."""
BLOCK = 1 << 22
"""Values that are changed at a time, because their floats take more memory."""
IMAGE = ("channels", "height", "width")
COLORS = 3
VALUES = 256
"""The number of values of a pixel."""
FIXED_POINT = 1 << 8
"""Weights of an interpolation are whole multiples of its inverse, so all machines compute the same pixels."""


@dataclass(frozen=True)
class SkewedRank:
    """A rank that trains."""

    rank: int
    place: int
    """The place of the node among the ranks that train, from 0."""
    count: int
    """How many ranks train."""
    num_classes: int
    levels: Levels = ()


@dataclass(kw_only=True)
class Skew(ABC):
    """A change of the training samples of each rank; the fields of a subclass are its YAML options."""

    def defects(self, dataset: LoadedDataset, count: int) -> Iterator[Defect]:
        """Yields the reasons why these samples cannot be changed so, if `count` ranks train."""
        yield from ()

    def levels(self, rank: SkewedRank, rng: np.random.Generator) -> Levels:
        """The numbers that make this rank differ from others; they are part of the run's record."""
        return ()

    @abstractmethod
    def change(self, samples: Samples, rank: SkewedRank, rng: np.random.Generator) -> Samples:
        """Returns samples of the rank with other `inputs` or `labels`, of the same types and shapes.

        It writes to none of the given ones. A rank has its samples changed in blocks, in their order.
        """


def apply(
    skews: Sequence[Skew], dataset: LoadedDataset, parts: Sequence[Tensor], seed: int
) -> tuple[LoadedDataset, list[list[Levels]]]:
    """The dataset whose training samples are changed, each by the chain of its rank; raises DatasetError.

    Also for each skew the levels of all ranks; empty for a rank that does not train.
    """
    if skews and not dataset.train.is_in_memory:
        problem = "samples are changed once at the start, and these are read per step"
        raise DatasetError.at("dataset.skew", f"{problem}; leave it out, or set dataset.rows: once")
    training = [rank for rank, part in enumerate(parts) if len(part)]
    defects = (
        defect.below(("dataset", "skew", index))
        for index, skew in enumerate(skews)
        for defect in skew.defects(dataset, len(training))
    )
    refuse(defects, DatasetError)
    chosen: list[list[Levels]] = [[() for _ in parts] for _ in skews]
    changes = _Changes(dataset.train)
    block = max(1, BLOCK // math.prod(dataset.shape))
    for place, rank in enumerate(training):
        for index, skew in enumerate(skews):
            about = SkewedRank(rank, place, len(training), num_classes=dataset.num_classes)
            rng = generator(seed, "skew", index, rank)
            chosen[index][rank] = levels = skew.levels(about, rng)
            for start in range(0, len(parts[rank]), block):
                rows = parts[rank][start : start + block]
                old = changes.samples.subset(rows)
                new = skew.change(old, replace(about, levels=levels), rng)
                for name in ("inputs", "labels"):
                    values, before = getattr(new, name), getattr(old, name)
                    if values.dtype != before.dtype or values.shape != before.shape:
                        defect = f"{name_of(skew)} returns {name} of another type or shape"
                        raise DatasetError.at(f"dataset.skew[{index}]", f"{defect}")
                    if values is not before:
                        changes.write(name, rows, values)
    result = replace(dataset, train=changes.samples)
    if any(map(is_third_party, skews)):
        refuse((Defect.at("dataset.skew", problem) for problem in defects_of(result)), DatasetError)
    return result, chosen


class _Changes:
    """Samples that are copied when something is first written to them, each part by itself."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self._copied: set[str] = set()

    def write(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Replaces some rows of the `inputs` or `labels`."""
        if name not in self._copied:
            copy = getattr(self.samples, name).clone(memory_format=torch.contiguous_format)
            self.samples = replace(self.samples, **{name: copy})
            self._copied.add(name)
        getattr(self.samples, name)[rows] = values


def _not_images(dataset: LoadedDataset, wanted: str) -> Iterator[Defect]:
    if dataset.train.has_ids or len(dataset.shape) != len(IMAGE):
        kind = "ids" if dataset.train.has_ids else "features"
        yield Defect(
            (), f"needs {wanted} (channels, height, width), the inputs are {kind} of shape {dataset.shape}"
        )


def _rounded(values: NDArray[np.float64], like: Tensor) -> Tensor:
    """The numbers in the type of the inputs; of uint8 the nearest that there is."""
    if like.dtype == torch.uint8:
        values = np.rint(values.clip(0, VALUES - 1))
    return torch.from_numpy(values).to(like.dtype)


@SKEWS.register("rotation")
@dataclass(kw_only=True)
class Rotation(Skew):
    """Rotates the images of each rank about their center (Ghosh et al., 2020, IFCA, section 6.1).

    Counterclockwise, with bilinear interpolation. What turns in from outside is 0, which is black.
    """

    degrees: PositiveFloat = 90.0
    angles: Literal["multiples", "uniform"] = "multiples"
    """multiples: 0, degrees, 2 degrees, ... in turn over the ranks that train, below 360; uniform: drawn for
    each rank from -degrees to degrees.
    """

    def defects(self, dataset: LoadedDataset, count: int) -> Iterator[Defect]:
        yield from _not_images(dataset, "images")

    def levels(self, rank: SkewedRank, rng: np.random.Generator) -> Levels:
        if self.angles == "uniform":
            return (float(rng.uniform(-self.degrees, self.degrees)),)
        return (rank.place % max(1, math.ceil(360 / self.degrees)) * self.degrees,)

    def change(self, samples: Samples, rank: SkewedRank, rng: np.random.Generator) -> Samples:
        (angle,) = rank.levels
        if not angle:
            return samples
        return replace(samples, inputs=rotated(dense(samples.inputs), angle))


def rotated(images: Tensor, angle: float) -> Tensor:
    """Images (..., height, width), turned counterclockwise by so many degrees about their center."""
    height, width = images.shape[-2:]
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    y, x = np.mgrid[:height, :width]
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    # Where each pixel comes from, in whole multiples of 1 / FIXED_POINT.
    from_y = np.rint((cos * y + sin * x + (height - 1) / 2) * FIXED_POINT).astype(np.int64)
    from_x = np.rint((cos * x - sin * y + (width - 1) / 2) * FIXED_POINT).astype(np.int64)
    rows, columns = from_y // FIXED_POINT, from_x // FIXED_POINT
    down, right = from_y % FIXED_POINT, from_x % FIXED_POINT
    flat = images.reshape(*images.shape[:-2], height * width).numpy()
    total = np.zeros(flat.shape, np.int32 if images.dtype == torch.uint8 else np.float64)
    for i, weight_y in enumerate((FIXED_POINT - down, down)):
        for j, weight_x in enumerate((FIXED_POINT - right, right)):
            row, column = rows + i, columns + j
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            weights = (weight_y * weight_x * inside).reshape(-1).astype(total.dtype)
            places = (row.clip(0, height - 1) * width + column.clip(0, width - 1)).reshape(-1)
            total += flat[..., places] * weights
    unit = FIXED_POINT**2
    if images.dtype == torch.uint8:
        total = (total + unit // 2) // unit
    else:
        total /= unit
    return torch.from_numpy(total).to(images.dtype).reshape(images.shape)


@SKEWS.register("noise")
@dataclass(kw_only=True)
class Noise(Skew):
    """Adds Gaussian noise, more from rank to rank (feature skew by noise; Li et al., 2022, section IV).

    Of n ranks that train, the i-th gets the standard deviation std * i / n. For uint8 images its unit is the
    range from black to white, for other inputs the deviation that they are normalized by.
    """

    std: PositiveFloat = 0.1
    """The standard deviation of the last rank."""

    def defects(self, dataset: LoadedDataset, count: int) -> Iterator[Defect]:
        if dataset.train.has_ids:
            yield Defect((), "needs images or features, the inputs are ids")

    def levels(self, rank: SkewedRank, rng: np.random.Generator) -> Levels:
        return (self.std * (rank.place + 1) / rank.count,)

    def change(self, samples: Samples, rank: SkewedRank, rng: np.random.Generator) -> Samples:
        inputs = dense(samples.inputs)
        unit = VALUES - 1 if inputs.dtype == torch.uint8 else samples.std.double().numpy()
        noise = rng.standard_normal(tuple(inputs.shape)) * rank.levels[0] * unit
        return replace(samples, inputs=_rounded(inputs.double().numpy() + noise, inputs))


@SKEWS.register("color")
@dataclass(kw_only=True)
class Color(Skew):
    """Scales red, green and blue of each rank's images by factors of its own (von Kries, 1902).

    That is what another light or camera does to an image. uint8 images stay between black and white.
    """

    strength: Probability = 0.3
    """Each factor is drawn from 1 - strength to 1 + strength."""

    def defects(self, dataset: LoadedDataset, count: int) -> Iterator[Defect]:
        if not_images := [*_not_images(dataset, "color images")]:
            yield from not_images
        elif (channels := dataset.shape[0]) != COLORS:
            yield Defect((), f"needs color images of 3 channels, these have {channels}")

    def levels(self, rank: SkewedRank, rng: np.random.Generator) -> Levels:
        return tuple(rng.uniform(1 - self.strength, 1 + self.strength, COLORS).tolist())

    def change(self, samples: Samples, rank: SkewedRank, rng: np.random.Generator) -> Samples:
        inputs, factors = dense(samples.inputs), np.array(rank.levels)
        if inputs.dtype != torch.uint8:
            return replace(samples, inputs=_rounded(inputs.double().numpy() * factors[:, None, None], inputs))
        tables = _rounded(np.arange(VALUES) * factors[:, None], inputs)
        channels = [tables[c][inputs[:, c].long()] for c in range(COLORS)]
        return replace(samples, inputs=torch.stack(channels, 1))


@SKEWS.register("label_noise")
@dataclass(kw_only=True)
class LabelNoise(Skew):
    """Replaces labels by other classes, all equally likely (symmetric noise; van Rooyen et al., 2015)."""

    rate: Probability | tuple[Probability, ...]
    """The probability for each sample: one for all ranks, or one for each rank that trains."""

    def defects(self, dataset: LoadedDataset, count: int) -> Iterator[Defect]:
        labels = dataset.train.labels
        if labels.dim() > 1 or labels.dtype != torch.int64 or dataset.num_classes < 2:
            yield Defect((), "needs samples that have one class each, of two or more")
        elif isinstance(self.rate, tuple) and len(self.rate) != count:
            yield Defect((), f"rate has {len(self.rate)} entries for {count} training ranks")

    def levels(self, rank: SkewedRank, rng: np.random.Generator) -> Levels:
        return (float(self.rate[rank.place] if isinstance(self.rate, tuple) else self.rate),)

    def change(self, samples: Samples, rank: SkewedRank, rng: np.random.Generator) -> Samples:
        labels = dense(samples.labels).numpy()
        # 1..classes-1 further on, modulo the classes: every other class, never the same.
        steps = rng.integers(1, rank.num_classes, len(labels))
        steps *= rng.random(len(labels)) < rank.levels[0]
        others = (labels + steps) % rank.num_classes
        return replace(
            samples, labels=torch.from_numpy(np.where(counts(labels, samples.ignored), others, labels))
        )
