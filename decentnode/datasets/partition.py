"""Distributes samples to ranks: every sample goes to exactly one training rank.

`natural` with `rest: leave_out` leaves samples out; they go to none.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.registry import PARTITIONS, name_of
from decentnode.core.rng import generator
from decentnode.datasets.base import Samples, counts
from decentnode.datasets.ragged import LazyRows
from decentnode.errors import DatasetError
from decentnode.options import NonNegative, NonNegativeFloat, Positive, PositiveFloat

Indices = NDArray[np.int64]
SPLIT = "evaluation.node_test_split"


@dataclass(kw_only=True)
class Partition(ABC):
    """A rule that distributes samples to ranks; the fields of a subclass are its YAML options."""

    ranks: tuple[NonNegative, ...] | None = None
    """The ranks that train; all by default. The others have no samples and do not train."""

    @abstractmethod
    def divide(self, samples: Samples, parts: int, rng: np.random.Generator) -> Sequence[Indices]:
        """Indices for each training rank, in any order; raises DatasetError when it is impossible."""

    def divide_test(
        self, train: Samples, parts: Sequence[Tensor], test: Samples, rng: np.random.Generator
    ) -> Sequence[Indices]:
        """Indices of test samples for each rank, distributed as the training samples `parts` are.

        By default raises DatasetError: what is not known of a rule cannot be repeated.
        """
        raise DatasetError.at(
            SPLIT, f"{name_of(self)} has no rule for test samples; define divide_test, or leave it out"
        )

    def split_test(self, train: Samples, parts: Sequence[Tensor], test: Samples, seed: int) -> list[Tensor]:
        """Sorted int64 indices of each rank's own test samples, which may be none; no sample is of two.

        `parts`: its training samples. Raises DatasetError where that is impossible.
        """
        own = self.divide_test(train, parts, test, generator(seed, "node_test_split"))
        return [torch.from_numpy(np.sort(part)) for part in own]

    def split(self, samples: Samples, num_nodes: int, seed: int) -> list[Tensor]:
        """Sorted int64 indices for each rank, empty where a rank does not train."""
        ranks = self._training_ranks(num_nodes)
        if len(samples) < len(ranks):
            raise DatasetError.at(
                "dataset.partition",
                f"{len(ranks)} training ranks need a sample each, there are {len(samples)}",
            )
        if samples.is_stream and type(self) is not Iid:
            raise DatasetError.at(
                "dataset.partition",
                f"{name_of(self)} deals samples that are known, and those of a stream are not; leave it out",
            )
        parts = self.divide(samples, len(ranks), generator(seed, "partition"))
        part_of = {rank: torch.from_numpy(np.sort(part)) for rank, part in zip(ranks, parts, strict=True)}
        nothing = torch.empty(0, dtype=torch.int64)
        return [part_of.get(rank, nothing) for rank in range(num_nodes)]

    def _training_ranks(self, num_nodes: int) -> Sequence[int]:
        if self.ranks is None:
            return range(num_nodes)
        if not self.ranks:
            raise DatasetError.at("dataset.partition.ranks", "is empty; at least one rank must train")
        if max(self.ranks) >= num_nodes or min(self.ranks) < 0:
            wrong = next(rank for rank in self.ranks if not 0 <= rank < num_nodes)
            raise DatasetError.at(
                "dataset.partition.ranks", f"{wrong} is no rank; ranks are 0..{num_nodes - 1}"
            )
        if len(set(self.ranks)) < len(self.ranks):
            raise DatasetError.at("dataset.partition.ranks", "names a rank twice")
        return self.ranks


@PARTITIONS.register("iid", "random", "simple")
@dataclass(kw_only=True)
class Iid(Partition):
    """Distributes shuffled samples evenly, the IID baseline (McMahan et al., 2017, section 3)."""

    def divide(self, samples: Samples, parts: int, rng: np.random.Generator) -> Sequence[Indices]:
        if samples.is_stream:
            return [np.arange(part, len(samples), parts) for part in range(parts)]
        return np.array_split(rng.permutation(len(samples)), parts)

    def divide_test(
        self, train: Samples, parts: Sequence[Tensor], test: Samples, rng: np.random.Generator
    ) -> Sequence[Indices]:
        return shared_out(rng.permutation(len(test)), [len(part) for part in parts], rng)


@PARTITIONS.register("sizes", "size")
@dataclass(kw_only=True)
class Sizes(Partition):
    """Distributes shuffled samples in given amounts per rank (quantity skew; Li et al., 2022, section IV)."""

    sizes: tuple[NonNegativeFloat, ...]
    """One per training rank, in the order of `ranks`: fractions that sum to 1, or counts."""

    def divide(self, samples: Samples, parts: int, rng: np.random.Generator) -> Sequence[Indices]:
        if len(self.sizes) != parts:
            raise DatasetError.at(
                "dataset.partition.sizes", f"has {len(self.sizes)} entries for {parts} training ranks"
            )
        edges = np.cumsum(self._counts(len(samples)))[:-1]
        return np.split(rng.permutation(len(samples)), edges)

    def divide_test(
        self, train: Samples, parts: Sequence[Tensor], test: Samples, rng: np.random.Generator
    ) -> Sequence[Indices]:
        return shared_out(rng.permutation(len(test)), [len(part) for part in parts], rng)

    def _counts(self, total: int) -> Indices:
        sizes = np.array(self.sizes)
        if abs(sizes.sum() - 1) < 1e-6:
            return apportion(sizes, total)
        if sizes.sum() == total and (sizes == sizes.round()).all():
            return sizes.astype(np.int64)
        raise DatasetError.at(
            "dataset.partition.sizes",
            f"sum to {sizes.sum():g}; fractions must sum to 1, counts to the {total} training samples",
        )


def apportion(fractions: NDArray[np.float64], total: int) -> Indices:
    """Returns whole numbers that sum to `total`, each within one of its fraction (largest remainders)."""
    exact = fractions / fractions.sum() * total
    counts: Indices = np.floor(exact).astype(np.int64)
    most_left = np.argsort(counts - exact, kind="stable")
    counts[most_left[: total - counts.sum()]] += 1
    return counts


@PARTITIONS.register("quantity", "quantity_skew", "unbalance_dirichlet")
@dataclass(kw_only=True)
class Quantity(Partition):
    """Distributes shuffled samples in amounts from Dir(alpha) (quantity skew; Li et al., 2022, section IV).

    Small alpha: few ranks have most samples. Large alpha: all have equally many. Labels are distributed as in
    the whole. Ranks below `min_size` get single samples from the largest ones.
    """

    alpha: PositiveFloat = 0.5
    min_size: NonNegative = 1
    """The fewest samples of a training rank."""

    def divide(self, samples: Samples, parts: int, rng: np.random.Generator) -> Sequence[Indices]:
        check_min_size(self.min_size, parts, len(samples))
        q = rng.dirichlet(np.full(parts, self.alpha))
        edges = np.cumsum(apportion(q, len(samples)))[:-1]
        return fill(np.split(rng.permutation(len(samples)), edges), self.min_size)

    def divide_test(
        self, train: Samples, parts: Sequence[Tensor], test: Samples, rng: np.random.Generator
    ) -> Sequence[Indices]:
        return shared_out(rng.permutation(len(test)), [len(part) for part in parts], rng)


def check_min_size(min_size: int, parts: int, total: int) -> None:
    """Raises DatasetError if there are too few samples for parts of that size."""
    if parts * min_size > total:
        raise DatasetError.at(
            "dataset.partition.min_size",
            f"{parts} training ranks of at least {min_size} need "
            f"{parts * min_size} samples, there are {total}",
        )


@PARTITIONS.register("natural", "natural_id")
@dataclass(kw_only=True)
class Natural(Partition):
    """Assigns the dataset's own groups (writers, clients) whole (Caldas et al., 2018, LEAF, section 3).

    By default all groups are assigned in turn in the order of their numbers: with as many groups as training
    ranks, one each. `balanced` is the rule "longest processing time first" (Graham, 1969).
    """

    groups_per_node: Positive | None = None
    """The number of groups of each training rank; null: all groups are assigned, as evenly as possible."""
    rest: Literal["pool", "refuse", "leave_out"] = "pool"
    """Groups beyond those. pool: assigned in turn, too; refuse: an error; leave_out: no rank has them."""
    order: Literal["in_turn", "contiguous", "random", "balanced"] = "in_turn"
    """in_turn: group i to training rank i modulo their number; contiguous: neighboring groups to the same
    rank; random: in turn, shuffled by the seed; balanced: the largest first, to the rank with fewest samples.
    """

    def divide(self, samples: Samples, parts: int, rng: np.random.Generator) -> Sequence[Indices]:
        if samples.groups is None:
            raise DatasetError.at(
                "dataset.partition", "natural needs a dataset with groups; this one has none"
            )
        _, group_of, sizes = np.unique(samples.groups.numpy(), return_inverse=True, return_counts=True)
        self._check(len(sizes), parts)
        rank_of = self._ranks(sizes, parts, rng)[group_of]
        # One sort: a search for each of thousands of ranks would take longer than reading the data.
        by_rank = np.argsort(rank_of, kind="stable")
        ends = np.searchsorted(rank_of[by_rank], np.arange(parts + 1))
        return [by_rank[begin:end] for begin, end in pairwise(ends)]

    def divide_test(
        self, train: Samples, parts: Sequence[Tensor], test: Samples, rng: np.random.Generator
    ) -> Sequence[Indices]:
        if train.groups is None or test.groups is None:
            raise DatasetError.at(
                SPLIT, "natural needs test samples with groups; those of this dataset have none"
            )
        groups = test.groups.numpy()
        own = [np.flatnonzero(np.isin(groups, train.groups[part].numpy())) for part in parts]
        if not any(map(len, own)):
            remedy = "split each group's samples, or leave it out"
            raise DatasetError.at(SPLIT, f"no test sample is of a group that is trained on; {remedy}")
        return own

    def _check(self, groups: int, parts: int) -> None:
        if groups < parts:
            raise DatasetError.at(
                "dataset.partition",
                f"natural has {groups} groups for {parts} training ranks; each needs at least one",
            )
        k, where = self.groups_per_node, "dataset.partition.groups_per_node"
        if k is None:
            return
        if k * parts > groups:
            raise DatasetError.at(
                where,
                f"{parts} training ranks of {k} groups need {k * parts}, there are {groups}; "
                f"it must be at most {groups // parts}",
            )
        if k * parts < groups and self.rest == "refuse":
            raise DatasetError.at(
                where,
                f"{parts} training ranks of {k} groups leave {groups - k * parts} of {groups}; "
                "use rest: pool or leave_out",
            )

    def _ranks(self, sizes: Indices, parts: int, rng: np.random.Generator) -> Indices:
        """The training rank of each group, as its place among them; -1: no rank."""
        groups = len(sizes)
        order = rng.permutation(groups) if self.order == "random" else np.arange(groups)
        if self.order == "balanced":
            order = np.argsort(-sizes, kind="stable")
        most = groups if self.groups_per_node is None else self.groups_per_node * parts
        of_order = np.arange(groups) % parts
        if self.order == "contiguous":
            of_order[:most] = np.repeat(np.arange(parts), apportion(np.ones(parts), most))
        elif self.order == "balanced":
            of_order[:most] = balance(sizes[order[:most]], parts, self.groups_per_node)
        if self.rest == "leave_out":
            of_order[most:] = -1
        ranks = np.empty(groups, dtype=np.int64)
        ranks[order] = of_order
        return ranks


def balance(sizes: Indices, parts: int, most: int | None) -> Indices:
    """The part of each group, in this order always the smallest so far; at most `most` groups each."""
    smallest = [(0, 0, part) for part in range(parts)]
    balanced = []
    for size in sizes.tolist():
        total, held, part = heapq.heappop(smallest)
        balanced.append(part)
        # The first groups go to a rank each: a group has at least one sample.
        if held + 1 != most:
            heapq.heappush(smallest, (total + size, held + 1, part))
    return np.array(balanced, dtype=np.int64)


@PARTITIONS.register("dirichlet", "lda", "label_dirichlet", "hetero_dir")
@dataclass(kw_only=True)
class Dirichlet(Partition):
    """Splits each label by proportions from Dir(alpha) (Yurochkin et al., 2019, section 4; Hsu et al., 2019).

    Small alpha: few ranks have samples of a label. Large alpha: all have equally many. Time is bounded at any
    alpha, because no draw is repeated. Ranks below `min_size` get single samples from the largest ones.
    """

    alpha: PositiveFloat = 0.5
    min_size: NonNegative = 1
    """The fewest samples of a training rank."""

    def divide(self, samples: Samples, parts: int, rng: np.random.Generator) -> Sequence[Indices]:
        check_min_size(self.min_size, parts, len(samples))
        dealt: list[list[Indices]] = [[] for _ in range(parts)]
        for members in by_label(samples, rng):
            for part, share in zip(dealt, self._deal(members, parts, rng), strict=True):
                part.append(share)
        return fill([rng.permutation(np.concatenate(shares)) for shares in dealt], self.min_size)

    def divide_test(
        self, train: Samples, parts: Sequence[Tensor], test: Samples, rng: np.random.Generator
    ) -> Sequence[Indices]:
        return of_labels(train, parts, test, rng)

    def _deal(self, members: Indices, parts: int, rng: np.random.Generator) -> Sequence[Indices]:
        """Divides one label's samples; a random offset makes every part as large as its share on average."""
        p = rng.dirichlet(np.full(parts, self.alpha))
        edges = np.floor(np.cumsum(p)[:-1].clip(0, 1) * len(members) + rng.random())
        return np.split(members, edges.astype(np.int64))


def by_label(samples: Samples, rng: np.random.Generator) -> list[Indices]:
    """Returns the samples of each label that occurs, ascending, in random order."""
    if samples.labels.dim() > 1:
        raise DatasetError.at(
            "dataset.partition", "deals samples by their label, and here each has several; use iid or natural"
        )
    if samples.labels.is_floating_point():
        raise DatasetError.at(
            "dataset.partition",
            "deals samples by their class, and here labels are numbers; use iid or natural",
        )
    order = rng.permutation(len(samples))
    assert isinstance(samples.labels, torch.Tensor)  # it has one dimension
    labels = samples.labels.numpy()[order]
    if not (counted := counts(labels, samples.ignored)).all():
        raise DatasetError.at(
            "dataset.partition",
            f"deals samples by their label, and the loss ignores the label {labels[~counted][0]}; leave such "
            "samples out, or use iid or natural",
        )
    return [order[labels == label] for label in np.unique(labels)]


def shared_out(members: Indices, shares: Sequence[int], rng: np.random.Generator) -> list[Indices]:
    """Splits members in proportion to shares; a random offset makes each part as large as that on average."""
    total = max(1, sum(shares))
    edges = np.floor(np.cumsum(shares)[:-1] / total * len(members) + rng.random())
    return np.split(members, edges.astype(np.int64).clip(0, len(members)))


def of_labels(
    train: Samples, parts: Sequence[Tensor], test: Samples, rng: np.random.Generator
) -> list[Indices]:
    """Splits the test samples of each label in proportion to the training samples of that label.

    Test samples of a label that is not trained on are left out.
    """
    dealt: list[list[Indices]] = [[np.empty(0, dtype=np.int64)] for _ in parts]
    by_test_label = by_label(test, rng)
    assert isinstance(train.labels, Tensor) and isinstance(test.labels, Tensor)  # they have one dimension
    held, labels = train.labels.numpy(), test.labels.numpy()
    for members in by_test_label:
        label = int(labels[members[0]])
        shares = [int((held[part] == label).sum()) for part in parts]
        if any(shares):
            for own, share in zip(dealt, shared_out(members, shares, rng), strict=True):
                own.append(share)
    return [np.concatenate(own) for own in dealt]


def fill(parts: list[Indices], min_size: int) -> list[Indices]:
    """Moves single samples, always from the then largest part, until none is smaller than `min_size`."""
    largest = [(-len(part), i) for i, part in enumerate(parts)]
    heapq.heapify(largest)
    left = [len(part) for part in parts]
    gained: list[list[int]] = [[] for _ in parts]
    for i, part in enumerate(parts):
        for _ in range(min_size - len(part)):
            giver = largest[0][1]
            left[giver] -= 1
            gained[i].append(int(parts[giver][left[giver]]))
            heapq.heapreplace(largest, (-left[giver], giver))
    return [
        np.append(part[:n], more).astype(np.int64) for part, n, more in zip(parts, left, gained, strict=True)
    ]


@PARTITIONS.register("shards", "pathological", "k_shard", "shard")
@dataclass(kw_only=True)
class Shards(Partition):
    """Assigns each training rank exactly k labels, in similar shards (McMahan et al., 2017, section 3).

    The paper cuts and assigns the sorted samples, so a rank may get fewer or more labels. Here the number of
    ranks of each label is decided first (by highest averages, which makes the largest shard as small as
    possible). Then each rank takes the labels with most shards left, which always succeeds (Gale, 1957).
    """

    labels_per_node: Positive = 2

    def divide(self, samples: Samples, parts: int, rng: np.random.Generator) -> Sequence[Indices]:
        members = by_label(samples, rng)
        holders = self._holders([len(indices) for indices in members], parts)
        shards = [np.array_split(indices, n) for indices, n in zip(members, holders, strict=True)]
        result = []
        for _ in range(parts):
            left = np.array([len(shard) for shard in shards])
            chosen = np.lexsort((rng.random(len(left)), -left))[: self.labels_per_node]
            result.append(np.concatenate([shards[label].pop() for label in chosen]))
        return result

    def divide_test(
        self, train: Samples, parts: Sequence[Tensor], test: Samples, rng: np.random.Generator
    ) -> Sequence[Indices]:
        return of_labels(train, parts, test, rng)

    def _holders(self, sizes: list[int], parts: int) -> list[int]:
        """The number of ranks of each label: at least one, at most its number of samples."""
        self._check(sizes, parts)
        holders = [1] * len(sizes)
        largest = [(-float(size), label) for label, size in enumerate(sizes) if min(size, parts) > 1]
        heapq.heapify(largest)
        for _ in range(parts * self.labels_per_node - len(sizes)):
            label = heapq.heappop(largest)[1]
            holders[label] += 1
            if holders[label] < min(sizes[label], parts):
                heapq.heappush(largest, (-sizes[label] / holders[label], label))
        return holders

    def _check(self, sizes: list[int], parts: int) -> None:
        k, labels = self.labels_per_node, len(sizes)
        where = "dataset.partition.labels_per_node"
        if k > labels:
            raise DatasetError.at(where, f"is {k}, the training samples have {labels} labels")
        if k * parts < labels:
            raise DatasetError.at(
                where,
                f"{parts} training ranks of {k} labels cannot hold all {labels}; "
                f"it must be at least {-(-labels // parts)}",
            )
        if k * parts > sum(min(size, parts) for size in sizes):
            raise DatasetError.at(
                where, f"{parts} training ranks of {k} labels need more samples of rare labels"
            )


def label_histogram(samples: Samples, parts: Sequence[Tensor], num_classes: int) -> list[list[int]]:
    """Returns the number of samples of each label for each rank; numbers, and unknown ones, count as one."""
    if samples.labels.is_floating_point() or isinstance(samples.labels, LazyRows):
        return [[len(part)] for part in parts]
    # In 64 bits, because torch has no comparison of 16 without sign.
    held = [samples.labels[part].flatten().long() for part in parts]
    return [
        torch.bincount(labels[counts(labels, samples.ignored)], minlength=num_classes).tolist()
        for labels in held
    ]
