"""Which training samples each rank has, in numbers: the content of `partition.json`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decentnode.errors import BadInput
from decentnode.formats.reader import NOT_OURS, SCHEMA, StrPath, read_object, read_value

PARTITION_FILE = "partition.json"
LABELS, SAMPLES, GROUPS = "labels_per_rank", "samples_per_rank", "groups_per_rank"
NAMES = "class_names"


MOST_ROWS, ROWS_OF_MORE = 256, 128
"""The most nodes with a row each in pictures; of more there are so many rows, of nodes that are alike."""


@dataclass(frozen=True)
class PartitionTable:
    """The training samples of each rank in numbers."""

    samples: Sequence[int]
    """The number of training samples by rank."""
    labels: Sequence[Sequence[int]] = ()
    """The samples by rank and label; empty where samples have no labels to count, or too many."""
    groups: Sequence[int] = ()
    """The number of groups of each rank; empty where samples have none."""
    skew: Sequence[dict[str, Any]] = ()
    """The `name` of each skew, and its `levels` by rank."""
    class_names: Sequence[str] = ()
    """The name of each label; empty: they have none."""

    @property
    def content(self) -> dict[str, Any]:
        """Returns the content of `partition.json`."""
        return {
            "schema": SCHEMA, LABELS: self.labels, SAMPLES: self.samples, GROUPS: self.groups,
            "skew": self.skew, NAMES: self.class_names, "figures": self.figures,
        }  # fmt: skip

    @property
    def figures(self) -> dict[str, float | None]:
        """The whole in a few numbers; None where the samples have no labels or groups."""
        sizes = [count for count in self.samples if count]
        held = [sum(count > 0 for count in row) for row in self.labels if any(row)]
        mean = fmean(sizes) if sizes else 0.0
        return {
            "nodes": len(self.samples),
            "training_ranks": len(sizes),
            "samples": sum(sizes),
            "smallest": min(sizes, default=0),
            "largest": max(sizes, default=0),
            "mean": mean,
            "size_variation": pstdev(sizes) / mean if sizes else 0.0,
            "labels": sum(any(column) for column in zip(*self.labels, strict=True)) if held else None,
            "mean_labels": fmean(held) if held else None,
            "label_distance": label_distance(self.labels) if held else None,
            "mean_groups": fmean(filter(None, self.groups)) if any(self.groups) else None,
        }


def label_rows(labels: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Returns the samples by row of a picture and label: a row for each rank, or for a group of many nodes.

    Groups are of nodes with the same most frequent label and about its share, and have the mean of their
    nodes. The mean of any nodes would hide how nodes differ.
    """
    counts = np.array(labels, dtype=np.float64)
    if len(counts) <= MOST_ROWS:
        return counts
    share = counts.max(1) / counts.sum(1).clip(min=1)
    alike = counts[np.lexsort((-share, counts.argmax(1)))]
    return np.array([group.mean(0) for group in np.array_split(alike, ROWS_OF_MORE)])


def label_distance(labels: Sequence[Sequence[int]]) -> float:
    """How far the labels of a rank are from those of all: the mean over ranks that have some.

    The distance is the total variation, half of the sum over labels of |p_i - p|: 0 where all distributions
    are equal, near 1 where ranks share no label. It is half the distance of Zhao et al. (2018, section 3).
    """
    totals = [sum(column) for column in zip(*labels, strict=True)]
    whole = sum(totals)
    distances = [
        sum(abs(count / size - total / whole) for count, total in zip(row, totals, strict=True)) / 2
        for row in labels
        if (size := sum(row))
    ]
    return fmean(distances) if distances else 0.0


def read_partition(run_dir: StrPath) -> PartitionTable | None:
    """The table in the directory of a run; None where there is no file. Raises BadInput."""
    path = Path(run_dir) / PARTITION_FILE
    if not path.exists():
        return None
    labels = read_value(path, LABELS, list[list[int]])
    if len(set(map(len, labels))) > 1 or [] in labels:
        raise BadInput(f"{path}: {NOT_OURS}: {LABELS} has one number per label for each rank")
    samples, groups = read_value(path, SAMPLES, list[int]), read_value(path, GROUPS, list[int])
    names = read_value(path, NAMES, list[str]) if NAMES in read_object(path) else []
    return PartitionTable(samples, labels, groups, class_names=names)
