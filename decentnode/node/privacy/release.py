"""What the nodes of a run have released of their samples before the first step, drawn once and kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.rng import RandomSource, SecureSource, SeededSource
from decentnode.core.text import counted, shortened
from decentnode.datasets.base import COUNTED_IMAGES, NORMALIZATION, LoadedDataset, Samples, values_of
from decentnode.datasets.normalizer import Normalizer
from decentnode.errors import BadInput
from decentnode.formats.reader import SCHEMA, read_object
from decentnode.formats.records import write_atomically
from decentnode.training.privacy.pipeline import BoundedMoments, Release

FILE = Path("privacy/pipeline.json")
"""The file of a run that has what was released."""
BOUNDS = "training.privacy.pipeline.bounds"
PIXELS = (0, 255)


@dataclass(frozen=True, eq=False)
class Released:
    """What others may know of the samples of each node."""

    release: Release
    moments: BoundedMoments
    sums: NDArray[np.float64]
    """Shape (nodes, 1 + 2 d): sums with noise; zeros for a node without samples."""
    kept: tuple[str, ...] = ()
    """The inputs of categories that some node has released, by name."""

    @classmethod
    def drawn(cls, release: Release, dataset: LoadedDataset, parts: Sequence[Tensor], seed: int) -> Self:
        """Adds up the samples of each node, with new noise; raises BadInput for bounds that do not fit."""
        moments = moments_of(release, dataset)
        sums, kept = np.zeros((len(parts), moments.numbers)), set[int]()
        for rank, part in enumerate(parts):
            if not len(part):
                continue
            source: RandomSource = SecureSource()
            if not release.is_secret:
                source = SeededSource(seed, rank, purpose="pipeline")
            blocks = torch.split(part, COUNTED_IMAGES)
            total = sum(moments.rows(dataset.train.rows(block, ())[0]).sum(0) for block in blocks)
            assert isinstance(total, Tensor)
            noisy = moments.released(total, release.noise, source)
            sums[rank] = noisy[: moments.numbers]
            kept |= {*moments.selected(total, noisy, release.noise, release.delta)}
        return cls(release, moments, sums, tuple(dataset.names[index] for index in sorted(kept)))

    @classmethod
    def read(cls, release: Release, dataset: LoadedDataset, parts: Sequence[Tensor], run_dir: Path) -> Self:
        """Reads what a run has released before it is continued; raises BadInput."""
        path, moments = run_dir / FILE, moments_of(release, dataset)
        if not path.exists():
            raise BadInput(
                f"{path}: missing, and another release would spend again; restore it, or begin a new run"
            )
        try:
            content = msgspec.convert(read_object(path), _Content)
            sums = np.array(content.sums)
        except (msgspec.ValidationError, ValueError) as error:
            raise BadInput(f"{path}: has no sums with noise: {error}; restore it") from error
        if sums.shape != (shape := (len(parts), moments.numbers)):
            raise BadInput(f"{path}: has sums of shape {sums.shape}, not {shape}; restore that of this run")
        return cls(release, moments, sums, tuple(content.categories))

    def write(self, run_dir: Path) -> None:
        """Writes the file of a run; raises OSError."""
        path = run_dir / FILE
        path.parent.mkdir(exist_ok=True)
        content = _Content(SCHEMA, self.release.noise, self.sums.tolist(), [*self.kept])
        write_atomically(path, msgspec.to_builtins(content))

    def applied(self, dataset: LoadedDataset) -> LoadedDataset:
        """Returns the samples with the inputs of released categories alone, normalized by all nodes' sums.

        Raises BadInput where no input is left.
        """
        if self.moments.columns:
            dataset = self._selected(dataset)
        if self.moments.count:
            ranks = [rank for rank, row in enumerate(self.sums) if row.any()]
            dataset = dataset.changed(self._normalizer(dataset.train, chosen_in(dataset), ranks).of)
        return replace(dataset, fitted=tuple(what for what in dataset.fitted if what not in self.what))

    @property
    def what(self) -> tuple[str, ...]:
        """What `fitted` calls that which is released."""
        names = self.moments.columns
        return *((NORMALIZATION,) if self.moments.count else ()), *((values_of(names),) if names else ())

    def _selected(self, dataset: LoadedDataset) -> LoadedDataset:
        private = {index for column in self.moments.columns.values() for index in column}
        kept = [
            index for index, name in enumerate(dataset.names) if index not in private or name in self.kept
        ]
        if not kept:
            raise BadInput.at(
                "training.privacy.pipeline", "no category is frequent enough to be released; add less noise"
            )
        inputs = torch.tensor(kept)

        def select(samples: Samples) -> Samples:
            mean, std = samples.mean[inputs], samples.std[inputs]
            assert isinstance(samples.inputs, Tensor)
            return replace(samples, inputs=samples.inputs[:, inputs], mean=mean, std=std)

        standardized = dataset.standardized
        # Not of how many: one that a single sample has would count.
        known = counted(len(private & {*kept}), "frequent category", "frequent categories")
        line = (
            f"training.privacy.pipeline: {known} released; a larger epsilon_share, or `values` of the "
            "columns, keep more"
        )
        return replace(
            dataset.changed(select), notices=(*dataset.notices, line), shape=(len(kept),),
            names=tuple(dataset.names[index] for index in kept),
            standardized=None if standardized is None else standardized[inputs], categories={},
        )  # fmt: skip

    def values(self, dataset: LoadedDataset) -> dict[str, list[Any]]:
        """What all nodes have released together, for the summary; `dataset`: normalized by it."""
        found: dict[str, list[Any]] = {}
        if self.moments.count:
            mean, std = dataset.train.mean, dataset.train.std
            chosen = dataset.standardized
            if chosen is None:
                chosen = torch.full((mean + std).shape, True)
            found["inputs"] = [*_names(dataset, chosen)]
            found["mean"], found["deviation"] = (
                of.expand(chosen.shape)[chosen].tolist() for of in (mean, std)
            )
        if self.moments.columns:
            found["categories"] = [*self.kept]
        return found

    def of_node(self, dataset: LoadedDataset, rank: int) -> Normalizer:
        """How a node normalizes by what it has released itself, if it has samples."""
        ranks = [rank] if self.sums[rank].any() else []
        return self._normalizer(dataset.train, chosen_in(dataset), ranks)

    def _normalizer(self, samples: Samples, chosen: Tensor, ranks: Sequence[int]) -> Normalizer:
        mean, std = (of.expand(chosen.shape).clone() for of in (samples.mean, samples.std))
        if ranks:
            deviation = self.release.noise * self.moments.sensitivity * len(ranks) ** 0.5
            found = self.moments.mean_and_deviation(self.sums[[*ranks]].sum(0), deviation)
            mean[chosen], std[chosen] = (part.to(mean.dtype) for part in found)
        return Normalizer(mean, std)


class _Content(msgspec.Struct):
    """The content of the file."""

    schema: int
    noise: float
    sums: list[list[float]]
    categories: list[str]


def chosen_in(dataset: LoadedDataset) -> Tensor:
    """Returns which inputs are normalized by training samples, of the shape of mean and deviation."""
    if dataset.standardized is not None:
        return dataset.standardized
    shape = (dataset.train.mean + dataset.train.std).shape
    return torch.full(shape, NORMALIZATION in dataset.fitted)


def moments_of(release: Release, dataset: LoadedDataset) -> BoundedMoments:
    """Returns the sums that the nodes release; raises BadInput for bounds that do not fit the samples."""
    train, bounds, chosen = dataset.train, release.bounds, chosen_in(dataset)
    categories = dataset.categories if release.delta else {}
    if release.delta and not categories:
        raise BadInput.at(
            "training.privacy.pipeline.delta_share", "the dataset computes no categories; leave it out"
        )
    if not chosen.any() and not categories:
        raise BadInput.at(
            "training.privacy.pipeline",
            "there is nothing to release: the dataset computes no mean and deviation of inputs; leave it out",
        )
    if not chosen.any() and bounds is not None:
        raise BadInput.at(BOUNDS, "the dataset normalizes no inputs by samples; leave it out")
    if bounds is None and chosen.any() and train.inputs.dtype != torch.uint8:
        names = [*dict.fromkeys(_names(dataset, chosen))]
        features = f" for {shortened(', '.join(names))}" if names else ""
        raise BadInput.at(
            BOUNDS, f"missing{features}; give the least and the greatest value, known without the samples"
        )
    ends = torch.tensor(PIXELS if bounds is None or isinstance(bounds, Mapping) else bounds).double()
    low, high = (end.expand(chosen.shape).clone() for end in ends)
    if isinstance(bounds, Mapping):
        low[chosen], high[chosen] = _of_features(bounds, [*_names(dataset, chosen)])
    return BoundedMoments((low + high) / 2, (high - low) / 2, chosen, categories)


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
