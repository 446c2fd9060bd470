"""What the nodes of a run have released of their samples before the first step, drawn once and kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.rng import RandomSource, SecureSource, SeededSource
from decentnode.core.text import shortened
from decentnode.datasets.base import COUNTED_IMAGES, NORMALIZATION, LoadedDataset, Samples
from decentnode.datasets.normalizer import Normalizer
from decentnode.errors import BadInput
from decentnode.formats.reader import SCHEMA, read_object
from decentnode.formats.records import write_atomically
from decentnode.training.privacy.pipeline import BoundedMoments, Release

FILE = Path("privacy/pipeline.json")
"""The file of a run that has what was released."""
BOUNDS = "training.privacy.pipeline.bounds"
PIXELS = (0.0, 255.0)


@dataclass(frozen=True, eq=False)
class Released:
    """Sums with noise over the samples of each node, which others may know."""

    release: Release
    moments: BoundedMoments
    sums: NDArray[np.float64]
    """Shape (nodes, numbers); zeros for a node without samples."""

    @classmethod
    def drawn(cls, release: Release, dataset: LoadedDataset, parts: Sequence[Tensor], seed: int) -> Self:
        """Adds up the samples of each node, with new noise; raises BadInput for bounds that do not fit."""
        moments = moments_of(release, dataset)
        sums = np.zeros((len(parts), 1 + 2 * moments.count))
        for rank, part in enumerate(parts):
            if len(part):
                source: RandomSource = SecureSource()
                if not release.is_secret:
                    source = SeededSource(seed, rank, purpose="pipeline")
                blocks = torch.split(part, COUNTED_IMAGES)
                rows = (moments.rows(dataset.train.rows(block, ())[0]).sum(0) for block in blocks)
                sums[rank] = moments.released(sum(rows, torch.zeros(sums.shape[1])), release.noise, source)
        return cls(release, moments, sums)

    @classmethod
    def read(cls, release: Release, dataset: LoadedDataset, parts: Sequence[Tensor], run_dir: Path) -> Self:
        """Reads what a run has released before it is continued; raises BadInput."""
        path, moments = run_dir / FILE, moments_of(release, dataset)
        if not path.exists():
            raise BadInput(
                f"{path}: missing, and another release would spend again; restore it, or begin a new run"
            )
        try:
            sums = np.array(msgspec.convert(read_object(path).get("sums"), list[list[float]]))
        except (msgspec.ValidationError, ValueError) as error:
            raise BadInput(f"{path}: has no sums with noise: {error}; restore it") from error
        if sums.shape != (shape := (len(parts), 1 + 2 * moments.count)):
            raise BadInput(f"{path}: has sums of shape {sums.shape}, not {shape}; restore that of this run")
        return cls(release, moments, sums)

    def write(self, run_dir: Path) -> None:
        """Writes the file of a run; raises OSError."""
        path = run_dir / FILE
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, {"schema": SCHEMA, "noise": self.release.noise, "sums": self.sums.tolist()})

    def normalized(self, dataset: LoadedDataset) -> LoadedDataset:
        """Returns the samples, normalized by what all nodes have released."""
        common = self._normalizer(dataset.train, [rank for rank, row in enumerate(self.sums) if row.any()])
        return replace(
            dataset.changed(common.of), fitted=tuple(what for what in dataset.fitted if what != NORMALIZATION)
        )

    def of_node(self, samples: Samples, rank: int) -> Normalizer:
        """How a node normalizes samples by what it has released itself, if it has samples."""
        return self._normalizer(samples, [rank] if self.sums[rank].any() else [])

    def _normalizer(self, samples: Samples, ranks: Sequence[int]) -> Normalizer:
        mean, std = samples.mean.clone(), samples.std.expand_as(samples.mean).clone()
        if ranks:
            deviation = self.release.noise * self.moments.sensitivity * len(ranks) ** 0.5
            found = self.moments.mean_and_deviation(self.sums[[*ranks]].sum(0), deviation)
            mean[self.moments.chosen], std[self.moments.chosen] = (part.to(mean.dtype) for part in found)
        return Normalizer(mean, std)


def moments_of(release: Release, dataset: LoadedDataset) -> BoundedMoments:
    """Returns the sums that the nodes release; raises BadInput for bounds that do not fit the samples."""
    train, bounds = dataset.train, release.bounds
    if NORMALIZATION not in dataset.fitted:
        raise BadInput.at(
            "training.privacy.pipeline",
            "there is nothing to release: the dataset computes no mean and deviation of inputs; leave it out",
        )
    chosen = torch.ones(train.mean.shape, dtype=torch.bool)
    if dataset.standardized is not None:
        chosen = dataset.standardized
    if bounds is None and train.inputs.dtype != torch.uint8:
        names = [*dict.fromkeys(_names(dataset, chosen))]
        features = f" for {shortened(', '.join(names))}" if names else ""
        raise BadInput.at(
            BOUNDS, f"missing{features}; give the least and the greatest value, known without the samples"
        )
    ends = torch.tensor(PIXELS if bounds is None or isinstance(bounds, Mapping) else bounds).double()
    low, high = (end.expand(train.mean.shape).clone() for end in ends)
    if isinstance(bounds, Mapping):
        low[chosen], high[chosen] = _of_features(bounds, [*_names(dataset, chosen)])
    return BoundedMoments((low + high) / 2, (high - low) / 2, chosen)


def _names(dataset: LoadedDataset, chosen: Tensor) -> Sequence[str]:
    """The name of each input that is normalized, where inputs have names."""
    return [name for name, is_one in zip(dataset.names, chosen.flatten().tolist(), strict=False) if is_one]


def _of_features(bounds: Mapping[str, tuple[float, float]], names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The least and the greatest value of each feature; raises BadInput."""
    if not names:
        raise BadInput.at(BOUNDS, "inputs have no names; give one pair of numbers for all")
    if missing := [name for name in dict.fromkeys(names) if name not in bounds]:
        raise BadInput.at(BOUNDS, f"lacks {shortened(', '.join(missing))}, which the dataset normalizes")
    if unknown := [name for name in bounds if name not in names]:
        raise BadInput.at(BOUNDS, f"{unknown[0]!r} is no feature that the dataset normalizes; leave it out")
    low, high = torch.tensor([bounds[name] for name in names]).double().T
    return low, high
