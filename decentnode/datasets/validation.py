"""Samples that are held out to choose by: neither trained on nor part of the test set."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from decentnode.core.registry import is_third_party
from decentnode.core.rng import generator
from decentnode.datasets.base import LoadedDataset, Samples
from decentnode.datasets.partition import Partition
from decentnode.datasets.ragged import Rows
from decentnode.errors import DatasetError
from decentnode.options import Positive

Share = Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True, kw_only=True)
class ValidationSettings:
    """Which samples are held out for validation."""

    source: Literal["train", "test"]
    """The part that they are drawn from by the seed; it keeps the others."""
    size: Positive | Share
    """The number of samples, or a fraction of that part."""

    def rows(self, total: int, seed: int) -> tuple[Tensor, Tensor]:
        """The rows held out and those that stay, of `total`, both sorted; raises DatasetError."""
        count = self.size if isinstance(self.size, int) else round(self.size * total)
        if not 0 < count < total:
            raise DatasetError.at(
                "dataset.validation.size",
                f"{self.size} of the {total} {self.source} samples are {count}; "
                f"it must be from 1 to {total - 1}",
            )
        order = torch.from_numpy(generator(seed, "validation").permutation(total))
        return order[:count].sort().values, order[count:].sort().values


def hold_out(
    dataset: LoadedDataset, validation: ValidationSettings | None, seed: int
) -> tuple[LoadedDataset, Tensor | None]:
    """The dataset with its validation samples, and the rows of the training set that nodes may train on.

    None: all of them. The training set itself stays whole, because it may be mapped from a file.
    """
    if validation is None:
        return dataset, None
    if validation.source == "train" and dataset.train.is_stream:
        problem = "no training samples can be held out of a stream; hold them out of the test samples"
        raise DatasetError.at("dataset.validation.source", problem)
    if validation.source == "train":
        held, others = validation.rows(len(dataset.train), seed)
        return replace(dataset, validation=dataset.train.subset(held)), others
    held, others = validation.rows(len(dataset.test), seed)
    test = dataset.test
    return replace(dataset, validation=test.subset(held), test=test.subset(others)), None


def split_rows(
    partition: Partition, samples: Samples, rows: Tensor | None, num_nodes: int, seed: int
) -> list[Tensor]:
    """The parts of `partition` over these rows of the samples, as rows of the samples; None: over all."""
    if rows is None:
        return partition.split(samples, num_nodes, seed)
    among = samples.subset(rows) if is_third_party(partition) else _outline(samples, rows)
    return [rows[part] for part in partition.split(among, num_nodes, seed)]


def _outline(samples: Samples, rows: Tensor) -> Samples:
    """Returns what the built-in partitions read: labels and groups, without a copy of large tensors."""

    def repeated(values: Rows) -> Rows:
        if isinstance(values, Tensor):
            return values[:1].expand(len(rows), *values.shape[1:])
        return values[rows]

    labels = samples.labels[rows] if samples.labels.dim() == 1 else repeated(samples.labels)
    groups = None if samples.groups is None else samples.groups[rows]
    return Samples(repeated(samples.inputs), labels, groups=groups)
