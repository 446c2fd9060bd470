"""Labelled samples that are loaded once per machine and read by all its processes.

The launcher loads before it forks, so the tensors below are shared copy-on-write. Nothing here may write to
them, or make a float copy of a whole image set.
"""

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.registry import name_of
from decentnode.core.rng import generator, permutation
from decentnode.core.text import counted, shortened
from decentnode.core.vector import accumulator
from decentnode.datasets.ragged import LazyRows, Ragged, Rows, Vocabulary, largest, lengths_of
from decentnode.errors import BadInput, DatasetError, Defect, explained, is_out_of_memory, refuse
from decentnode.options import Positive, PositiveFloat

ID_TYPES = (torch.uint16, torch.int16, torch.int32, torch.int64)
IGNORED = -100
"""The label of what does not count in a batch, as in torch's losses."""
COUNTED_IMAGES = 1024
"""Images whose pixels are counted at a time."""
COMPARED_VALUES = 1 << 20
COMPARED_ROWS = 4096
"""The most numbers, and rows, that are compared with what a format has left of them."""
NORMALIZATION = (
    "mean and deviation of inputs (give dataset.mean and dataset.std, or normalized inputs, or let "
    "training.privacy.pipeline release them with noise)"
)
GIVEN = "mean and deviation of inputs (dataset.mean, dataset.std)"
ROUNDING = 16
"""Values of 64 bits that differ by less, in units of their last bit, were equal before they were computed."""
LEAST_KEPT = 0.75
"""The least part of the distinct values of a feature that must be left in another format."""
Reading = tuple[int, ...]
"""The counters that seed what rows draw while they are read: the run's seed, a rank and an epoch, say."""


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Some samples, as a network and its loss take them; unpacks as (inputs, labels)."""

    fields: tuple[Tensor, ...]
    """The arguments of the network, each of shape (batch, ...)."""
    labels: Tensor
    """What does not count is IGNORED."""
    weights: Tensor | None = None
    """Shape (batch,), float32: what each sample counts in the loss; None: all count the same."""
    mixed: tuple[Tensor, float] | None = None
    """For mixtures of two samples: the labels of the second ones, and the share of the first ones."""

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.fields[0], self.labels))


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs with labels; inputs stay in their compact type and are normalized batch by batch."""

    inputs: Rows
    """Shape (n, *shape); uint8 images, float features, or ids (may be Ragged; see `ids`)."""
    labels: Rows
    """Shape (n,), or (n, *label_shape) such as one for each token; int64, 0..num_classes-1.

    Or floating, numbers to predict, with one class.
    """
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Broadcasts against one sample; float64 where the inputs are, and else float32. Not for ids."""
    std: Tensor = field(default_factory=lambda: torch.ones(()))
    groups: Tensor | None = None
    """Shape (n,), int64: the writer or client of each sample; None: unknown."""
    dtype: torch.dtype = torch.float32
    """The dtype of the inputs of a batch, except ids: that of the model."""
    more: tuple[Rows, ...] = ()
    """Further arguments of the network, each of shape (n, ...): ids, or floats that are not normalized."""
    weights: Tensor | None = None
    """Shape (n,), positive: what each sample counts in the loss; None: all count the same."""
    vocabulary: Vocabulary | None = None
    """How ids become text; None: unknown."""
    ids: bool = False
    """Inputs of 8 bits are ids, not images: a text of at most 256 characters takes half the memory so."""
    ignored: int = IGNORED
    """A label that does not count, like IGNORED: the one that the loss ignores."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def tokens(self) -> Tensor:
        """The ids of each sample on its longest side, shape (n,), int64."""
        # Labels are compared, not fed, but their scores take the same room.
        sides = [lengths_of(side) for side in (self.inputs, *self.more, self.labels)]
        return torch.stack(sides).amax(0)

    def tensors(self) -> Iterator[Tensor]:
        """The tensors of the samples, without their normalization."""
        weights = () if self.weights is None else (self.weights,)
        for rows in (self.inputs, self.labels, *self.more, *weights):
            yield from (rows,) if isinstance(rows, Tensor) else rows.tensors()

    @property
    def is_ragged(self) -> bool:
        """Whether samples have unequal lengths, so that a batch has padding."""
        return any(isinstance(side, Ragged) for side in (self.inputs, *self.more, self.labels))

    is_stream: ClassVar[bool] = False
    """Whether samples come in an order of their own, one after another."""

    @property
    def is_in_memory(self) -> bool:
        """Whether the same indices give the same batch, whatever is read."""
        return not isinstance(self.inputs, LazyRows)

    def alone_and_padded(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The arguments of a network for the shortest sample, and for it and the longest one."""
        tokens = self.tokens
        both = torch.stack([tokens.argmin(), tokens.argmax()])
        return self.batch(both[:1]).fields, self.batch(both).fields

    def in_batches(self, size: int) -> tuple[Tensor, ...]:
        """The indices of all samples, so many at a time; where lengths differ, similar ones are together."""
        order = self.tokens.argsort(stable=True) if self.is_ragged else torch.arange(len(self))
        return torch.split(order, size)

    @property
    def has_ids(self) -> bool:
        """Whether inputs are ids, for an embedding: integers of more than 8 bits, or of 8 by `ids`."""
        return self.inputs.dtype in ID_TYPES or (self.ids and self.inputs.dtype == torch.uint8)

    def rows(self, indices: Tensor, reading: Reading) -> tuple[Tensor, ...]:
        """The inputs, the further arguments and the labels of samples, from where they are kept."""
        del reading
        columns = (self.inputs, *self.more, self.labels)
        return tuple(column.index_select(0, indices) for column in columns)

    def expect(self, indices: Tensor, reading: Reading) -> None:
        """Is told which samples the next batch of a rank has, in case they are read ahead."""

    def order(self, indices: Tensor, epoch: int, seed: int, rank: int) -> Tensor:
        """These samples of a rank in the order of an epoch, int64 indices."""
        order = permutation(len(indices), seed, "shuffle", rank, epoch)
        return indices.index_select(0, torch.from_numpy(order))

    def relabelled(self, numbers: Tensor) -> "Samples":
        """These samples with class c as `numbers[c]`; labels that do not count stay."""
        assert isinstance(self.labels, Tensor), "labels of unequal length have no classes with names"
        counted = counts(self.labels, self.ignored)
        return replace(self, labels=torch.where(counted, numbers[self.labels.clamp(min=0)], self.labels))

    def batch(self, indices: Tensor, reading: Reading = ()) -> Batch:
        """Samples with normalized inputs, or ids unchanged, in int64.

        `reading`: seeds what rows draw that are read now; samples in memory do not depend on it.
        """
        inputs, *others, labels = self.rows(indices, reading)
        # Labels of a mapped file have its type.
        labels = labels.long() if labels.dtype in ID_TYPES else labels
        if self.ignored != IGNORED:
            labels = labels.masked_fill(labels == self.ignored, IGNORED)
        if self.has_ids:
            inputs = inputs.long()
        else:
            # Rounded after it is normalized: in 32 bits, times of one year are a few numbers.
            wide = inputs.dtype if inputs.dtype == torch.float64 else accumulator(self.dtype)
            inputs = inputs.to(wide).sub_(self.mean).div_(self.std).to(self.dtype)
        more = (self._argument(values) for values in others)
        weights = None if self.weights is None else self.weights.index_select(0, indices).float()
        return Batch((inputs, *more), labels, weights)

    def zeros(self, count: int) -> tuple[Tensor, ...]:
        """The arguments of a network for so many samples of zeros."""
        dtype = torch.int64 if self.has_ids else self.dtype
        inputs = torch.zeros(count, *self.inputs.shape[1:], dtype=dtype)
        more = (
            self._argument(torch.zeros(count, *values.shape[1:], dtype=values.dtype)) for values in self.more
        )
        return inputs, *more

    def largest_ids(self) -> tuple[Tensor, ...]:
        """The arguments of a network for one sample: the largest id at each place, and zeros elsewhere."""
        are_ids = [self.has_ids, *(not values.is_floating_point() for values in self.more)]
        fields = zip(self.zeros(1), (self.inputs, *self.more), are_ids, strict=True)
        return tuple(
            torch.from_numpy(largest(values)).long().expand_as(zero) if is_id else zero
            for zero, values, is_id in fields
        )

    def _argument(self, values: Tensor) -> Tensor:
        return values.to(self.dtype) if values.is_floating_point() else values.long()

    def subset(self, indices: Tensor) -> "Samples":
        """The selected samples, normalized as before."""
        groups, weights = (None if part is None else part[indices] for part in (self.groups, self.weights))
        return replace(
            self, inputs=self.inputs[indices], labels=self.labels[indices], groups=groups, weights=weights,
            more=tuple(values[indices] for values in self.more),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class LoadedDataset:
    """A training and a test set of the same kind."""

    train: Samples
    test: Samples
    num_classes: int
    shape: tuple[int, ...]
    """The shape of one input."""
    validation: Samples | None = None
    """Samples that are held out of one of both to choose by; None: there are none."""
    names: tuple[str, ...] = ()
    """The name of each number of a sample, for messages; empty: they have none."""
    fitted: tuple[str, ...] = ()
    """What was computed from training samples besides them, without noise, such as a vocabulary: a run then
    makes no claim of epsilon. Normalization need not be named."""
    public: tuple[str, ...] = ()
    """What options say about the samples instead, known without them, and which options, in parentheses."""
    class_names: tuple[str, ...] = ()
    """The name of each class; empty: they have none."""
    arguments: tuple[str, ...] = ()
    """The names of the inputs, for those of the parameters of the network; empty: they have none."""
    notices: tuple[str, ...] = ()
    """What was decided about the samples that the user should know, a line each."""
    schema: tuple[str, ...] = ()
    """What `decentnode validate` prints about the samples, a line each."""
    categories: Mapping[str, range] = field(default_factory=dict)
    """The inputs of each column of categories whose values are those of training rows, by its name. A sample
    has a 1 in at most one of them, and else 0; without such an input it is of a category that nobody knows.
    `fitted` has `values_of` these columns."""
    standardized: Tensor | None = None
    """Which inputs are normalized by training samples, bool, of the shape of `mean`; None: all, if any."""
    by_node: bool = False
    """Whether each node normalizes these by its own training samples. A model that is no node's takes `mean`
    and `std` of the samples."""

    def changed(self, change: Callable[[Samples], Samples]) -> "LoadedDataset":
        """Returns the dataset with all its parts changed."""
        validation = None if self.validation is None else change(self.validation)
        return replace(self, train=change(self.train), test=change(self.test), validation=validation)

    def to(self, dtype: torch.dtype) -> "LoadedDataset":
        """Returns these samples, with batches of that dtype.

        Raises DatasetError where most distinct values of a feature of 64 bits would be equal in it.
        """
        for samples in (self.train, self.test) if accumulator(dtype) != torch.float64 else ():
            if samples.inputs.dtype != torch.float64 or not isinstance(samples.inputs, Tensor):
                continue
            rows = compared_rows(samples.inputs.shape)
            left = replace(samples, dtype=torch.float32).batch(torch.from_numpy(rows)).fields[0]
            merged = np.flatnonzero(merges(samples.inputs[rows].numpy(), left.numpy()))
            if len(merged):
                name = f"feature {self.names[merged[0]]!r}" if self.names else f"feature {merged[0]}"
                raise DatasetError.at(
                    "dataset",
                    f"{name} has distinct values that are equal in the 32 bits that models get; scale it so "
                    "that they differ (subtract its mean, take its logarithm, cut off outliers), or set "
                    "training.dtype: float64",
                )
        return self.changed(lambda samples: replace(samples, dtype=dtype))


@dataclass(frozen=True)
class Source:
    """A file that `decentnode download` fetches."""

    url: str
    size: int
    """Bytes; for messages and the check of free space, not for that of the content."""
    checksum: str
    """md5:... or sha256:..., of the file as it is fetched."""
    folder: str = ""
    """The folder that the file goes to, below the folder of all datasets."""
    unpack: bool = False
    """Whether it is an archive (.tar.gz, .zip) or a packed file (.gz) whose content is needed."""


@dataclass(kw_only=True)
class Dataset(ABC):
    """A source of samples; the fields of a subclass are its YAML options."""

    train_size: Positive | None = None
    """The number of training samples, drawn by the seed; null: all."""
    test_size: Positive | None = None
    """The number of test samples, drawn by the seed; null: all."""
    mean: float | tuple[float, ...] | None = None
    """What is subtracted from inputs: one number, or one for each channel or feature, in the unit of the
    file (pixels are 0 to 255); null: the mean of the training samples, where the dataset normalizes."""
    std: PositiveFloat | tuple[PositiveFloat, ...] | None = None
    """What inputs are divided by, after `mean`; null: the deviation of the training samples."""
    sample: bool = False
    """Read a tiny generated sample in the format of the files instead of the files, so that the experiment
    runs on any machine. Sizes beyond it are lowered to it. Without effect where no files are needed."""

    task: ClassVar[str] = "classification"
    """The task that the samples are for, unless the configuration names another."""
    uses_seed: ClassVar[bool] = True
    """Whether `read` returns other samples for another seed."""
    reads_files: ClassVar[bool] = True
    """Whether `read` needs files that may be missing; without them, `sample` changes nothing."""
    licence: ClassVar[str] = ""

    @property
    def sources(self) -> Sequence[Source]:
        """The files that `decentnode download` fetches; empty where that takes steps of your own."""
        return ()

    @property
    def steps(self) -> str:
        """How to get the files where there are no sources, with `{folder}` for the folder of datasets."""
        return "no place is known from which its files can be fetched"

    @abstractmethod
    def read(self, seed: int) -> LoadedDataset:
        """All samples; raises DatasetError when they are missing or broken."""

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        """Writes a tiny sample, in the format that `read` reads, into an empty directory.

        Returns the options with which `read` finds it. The files are equal on all machines, made in less than
        two seconds, and have samples and groups for 96 nodes. They are deleted once they are read.
        """
        raise DatasetError.at(
            "dataset.sample", f"{name_of(self)} makes none; add a method write_sample(directory) to the class"
        )

    @property
    def is_sample(self) -> bool:
        """Whether `read` gets a generated sample instead of the files."""
        return self.sample and self.reads_files

    def load(self, seed: int) -> LoadedDataset:
        """The samples of the experiment: all, or as many as `train_size` and `test_size` specify.

        Raises DatasetError, with a line for each defect of what was read.
        """
        return self.drawn(self.whole(seed), seed)

    def whole(self, seed: int, ignored: int = IGNORED) -> LoadedDataset:
        """All samples, checked; raises DatasetError with a line for each defect.

        `ignored`: the label that the loss ignores.
        """
        whole = self._read(seed)
        if ignored != IGNORED:
            whole = self.ignoring(whole, ignored)
        whole = self.in_order(whole)
        refuse((Defect.at("dataset", problem) for problem in defects_of(whole)), DatasetError)
        return self._normalized(whole)

    def in_order(self, loaded: LoadedDataset) -> LoadedDataset:
        """Returns the samples with classes numbered as the options say; raises DatasetError."""
        return loaded

    def _normalized(self, loaded: LoadedDataset) -> LoadedDataset:
        """Returns the samples, normalized by the options; raises DatasetError where these do not fit."""
        train = loaded.train
        if self.mean is None and self.std is None:
            is_fitted = train.mean.any() or (train.std != 1).any()
            return replace(loaded, fitted=(*loaded.fitted, NORMALIZATION)) if is_fitted else loaded
        given = []
        for option, value in (("mean", self.mean), ("std", self.std)):
            key = f"dataset.{option}"
            if value is None:
                raise DatasetError.at(key, "missing; inputs are normalized by both, mean and std")
            if train.has_ids:
                raise DatasetError.at(key, "the inputs are ids, which are not normalized; leave it out")
            numbers = value if isinstance(value, tuple) else (value,)
            if len(numbers) not in (fitting := sorted({1, *loaded.shape[:1]})):
                counts = " or ".join(map(str, fitting))
                raise DatasetError.at(
                    key, f"has {len(numbers)} numbers; samples of shape {tuple(loaded.shape)} need {counts}"
                )
            dtype = train.inputs.dtype if train.inputs.dtype == torch.float64 else torch.float32
            given.append(torch.tensor(numbers, dtype=dtype).reshape(-1, *[1] * (len(loaded.shape) - 1)))
        mean, std = given
        if train.inputs.dtype == torch.uint8 and max(mean.max(), std.max()) <= 1:
            raise DatasetError.at(
                "dataset.mean", "pixels are 0 to 255 here, not 0 to 1; give 255 times mean and std"
            )
        none = torch.zeros(mean.shape, dtype=torch.bool)
        known = replace(loaded, public=(*loaded.public, GIVEN), standardized=none)
        return known.changed(lambda samples: replace(samples, mean=mean, std=std))

    def ignoring(self, loaded: LoadedDataset, label: int) -> LoadedDataset:
        """Returns these samples, of which a label does not count."""
        return loaded.changed(lambda samples: replace(samples, ignored=label))

    def drawn(self, dataset: LoadedDataset, seed: int) -> LoadedDataset:
        """Draws as many of these samples as `train_size` and `test_size` specify; raises DatasetError."""
        train = draw(dataset.train, self.available(self.train_size, dataset.train), "train", seed)
        test = draw(dataset.test, self.available(self.test_size, dataset.test), "test", seed)
        return replace(dataset, train=train, test=test)

    def available(self, size: int | None, samples: Samples) -> int | None:
        """A number of samples that is asked for; of a generated sample at most all."""
        return min(size, len(samples)) if size is not None and self.is_sample else size

    def _read(self, seed: int) -> LoadedDataset:
        step = "read"
        try:
            if self.is_sample:
                step = "write_sample"
                with tempfile.TemporaryDirectory(prefix="decentnode-sample-") as folder:
                    # Deleted afterwards: what is mapped from it stays, and no run finds another's sample.
                    options = dict(self.write_sample(Path(folder)))
                    return replace(self, **options, sample=False)._read(seed)
            loaded = self.read(seed)
        except Exception as error:  # the user's own class may raise anything
            if isinstance(error, BadInput) or is_out_of_memory(error):
                raise
            raise DatasetError.at("dataset", f"{name_of(self)}.{step} raises {explained(error)}") from error
        if not isinstance(loaded, LoadedDataset):
            defect = f"{name_of(self)}.read returns {type(loaded).__name__}; it must return a LoadedDataset"
            raise DatasetError.at("dataset", f"{defect}")
        return loaded


@dataclass(kw_only=True)
class NamedClasses(Dataset):
    """A dataset whose labels may be texts."""

    classes: tuple[str | int | float | bool, ...] | None = None
    """The classes in the order of their numbers, as labels have them, or names for the classes 0, 1, ...;
    null: texts are numbered in the order of the alphabet."""

    def in_order(self, loaded: LoadedDataset) -> LoadedDataset:
        if self.classes is None:
            return loaded
        names, own = tuple(map(str, self.classes)), loaded.class_names
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise DatasetError.at("dataset.classes", f"has {twice!r} twice")
        if not own and loaded.num_classes == 1:
            raise DatasetError.at("dataset.classes", "labels are numbers to predict; leave it out")
        if not own and len(names) < loaded.num_classes:
            raise DatasetError.at(
                "dataset.classes", f"has {len(names)} names, and there are {loaded.num_classes} classes"
            )
        if unknown := next((name for name in own if name not in names), None):
            raise DatasetError.at("dataset.classes", f"lacks {unknown!r}, which is the label of some samples")
        if own and own != names:
            numbers = torch.tensor([names.index(name) for name in own])
            loaded = loaded.changed(lambda samples: samples.relabelled(numbers))
        return replace(loaded, class_names=names, num_classes=len(names))


def defects_of(loaded: LoadedDataset) -> Iterator[str]:
    """The defects of both parts, a line each; reads every number of them once."""
    classes = loaded.num_classes
    if type(classes) is not int or classes < 1:
        yield f"num_classes is {classes!r}; it must be a whole number from 1 on"
        return
    parts = {"training": loaded.train, "test": loaded.test, "validation": loaded.validation}
    for part, samples in parts.items():
        if samples is None:
            continue
        wrong = list(_wrong_types(samples))
        yield from (f"the {part} {defect}" for defect in wrong or _wrong_numbers(samples, loaded))
    if len(loaded.train.labels.shape) != len(loaded.test.labels.shape):
        yield "the training labels have another number of dimensions than the test labels"


def _wrong_types(samples: Samples) -> Iterator[str]:
    fields = {f"field {2 + index}": more for index, more in enumerate(samples.more)}
    for name, values in {"inputs": samples.inputs, "labels": samples.labels, **fields}.items():
        if isinstance(values, LazyRows):
            continue
        if isinstance(values, Ragged):
            yield from (f"{name} {defect}" for defect in values.defects())
        elif not isinstance(values, Tensor) or not values.dim():
            kind = "a number" if isinstance(values, Tensor) else type(values).__name__
            yield f"{name} are {kind}; they must be a torch.Tensor with one row for each sample"
    labels = samples.labels
    is_mapped = samples.has_ids and isinstance(labels, Tensor) and labels.dtype == samples.inputs.dtype
    are_classes = isinstance(labels, Tensor) and (labels.dtype == torch.int64 or is_mapped)
    if isinstance(labels, Tensor) and not are_classes and not labels.is_floating_point():
        yield f"labels are {labels.dtype}; they must be classes, torch.int64 (labels.long()), or floats"


def _wrong_numbers(samples: Samples, loaded: LoadedDataset) -> Iterator[str]:
    inputs, labels = samples.inputs, samples.labels
    if len(inputs) != len(labels):
        yield f"set has {len(labels)} labels for {len(inputs)} inputs; there must be one row for each"
    elif samples.groups is not None and len(samples.groups) != len(labels):
        yield f"set has {len(samples.groups)} groups for {len(labels)} samples; there must be one for each"
    if not len(inputs) or not len(labels):
        return
    shape = tuple(inputs.shape[1:])
    if isinstance(inputs, Ragged):
        if len(loaded.shape) != 1 or shape > tuple(loaded.shape):
            yield f"inputs are up to {shape[0]} long, the dataset has {tuple(loaded.shape)}"
    elif shape != tuple(loaded.shape):
        yield f"inputs have the shape {tuple(inputs.shape[1:])} each, the dataset has {tuple(loaded.shape)}"
    yield from _wrong_labels(samples, loaded.num_classes)
    fields = {f"field {2 + index}": more for index, more in enumerate(samples.more)}
    for name, values in {**fields, "weights": samples.weights}.items():
        if values is not None and len(values) != len(labels):
            yield f"set has {len(values)} rows in {name} for {len(labels)} samples; there must be one each"
    if samples.weights is not None and not (samples.weights > 0).all():
        yield f"weight of sample {_rows(~(samples.weights > 0))[0]} is not above 0"
    if samples.has_ids and (samples.mean.any() or (samples.std != 1).any()):
        yield f"inputs are {inputs.dtype}, so ids, which are not normalized; leave out mean and std"
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        yield from _not_finite(inputs)


def _not_finite(inputs: Tensor) -> Iterator[str]:
    if not all(math.isfinite(end) for end in inputs.aminmax()):
        rows = _rows(~inputs.isfinite())
        yield f"inputs of {counted(len(rows), 'sample')} are not finite, first those of sample {rows[0]}"


def _wrong_labels(samples: Samples, classes: int) -> Iterator[str]:
    labels = samples.labels
    if isinstance(labels, LazyRows):
        return
    if not isinstance(labels, Ragged) and labels.is_floating_point():
        if classes != 1:
            yield f"labels are numbers, so num_classes must be 1, not {classes}"
        if not labels.isfinite().all():
            yield f"label of sample {_rows(~labels.isfinite())[0]} is not finite"
        return
    # Of a view of a mapped file numpy makes no copy, and torch has no comparison of 16 bits without sign.
    if isinstance(labels, Ragged):
        # Without a copy first, which may be larger than the memory: rows have nothing but these numbers.
        whole = labels.values.numpy()
        numbers = whole if whole.min() >= 0 and whole.max() < classes else labels.flatten().numpy()
    else:
        numbers = labels.numpy()
    least, most = int(numbers.min()), int(numbers.max())
    if least >= 0 and most < classes and not least == most == samples.ignored:
        return
    counted = counts(numbers, samples.ignored)
    if not counted.any():
        yield f"labels are all {least}, so nothing counts"
        return
    least, most = (int(end(where=counted, initial=0)) for end in (numbers.min, numbers.max))
    if least < 0 or most >= classes:
        wrong, allowed = least if least < 0 else most, f"0..{classes - 1}"
        place = int(np.argwhere(numbers == wrong)[0, 0])
        row = labels.row_of(place) if isinstance(labels, Ragged) else place
        yield f"label of sample {row} is {wrong}; it must be one of {allowed}"


def counts(labels: Any, ignored: int = IGNORED) -> Any:
    """Whether each label counts: in losses, in metrics, and where labels are counted.

    `labels`: a tensor or an array; in those of a batch only IGNORED does not count.
    """
    is_counted = labels != IGNORED
    return is_counted if ignored == IGNORED else is_counted & (labels != ignored)


def _rows(wrong: Tensor) -> list[int]:
    """The samples with any defect."""
    rows: list[int] = wrong.reshape(len(wrong), -1).any(1).nonzero()[:, 0].tolist()
    return rows


def compared_rows(shape: Sequence[int]) -> NDArray[np.int64]:
    """Rows of an array of that shape, evenly over it, that are enough to compare two formats by."""
    count = min(shape[0], COMPARED_ROWS, max(2, COMPARED_VALUES // max(1, math.prod(shape[1:]))))
    return np.linspace(0, shape[0] - 1, count).astype(np.int64)


def merges(values: NDArray[Any], rounded: NDArray[Any]) -> NDArray[np.bool_]:
    """For each number of a row, whether rounding has made many of its distinct values equal, by some rows."""

    def distinct(array: NDArray[Any], rounding: int = 0) -> NDArray[np.int64]:
        rows = np.sort(array[compared_rows(array.shape)].reshape(-1, math.prod(array.shape[1:])), axis=0)
        changes = rows[1:] != rows[:-1]
        if rounding and rows.dtype == np.float64:
            changes &= rows[1:] - rows[:-1] > rounding * np.spacing(np.abs(rows[1:]))
        counted: NDArray[np.int64] = 1 + changes.sum(0)
        return counted

    # 0.1 + 0.2 is no other value than 0.3.
    return np.asarray(distinct(rounded) < LEAST_KEPT * distinct(values, ROUNDING))


def values_of(names: Iterable[str]) -> str:
    """What `fitted` says about columns of categories."""
    return f"the values of {shortened(', '.join(names))} (list them in dataset.columns)"


def draw(samples: Samples, size: int | None, part: str, seed: int) -> Samples:
    """Draws `size` samples without replacement, in their old order; all of them when `size` is None."""
    if size is None:
        return samples
    if size > len(samples):
        raise DatasetError.at(
            f"dataset.{part}_size", f"{size} samples asked for, the {part} set has {len(samples)}"
        )
    chosen = generator(seed, f"{part}_size").permutation(len(samples))[:size]
    return samples.subset(torch.from_numpy(chosen).sort().values)


def mean_and_deviation(rows: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of each number of a row; the deviation of what is the same in all rows is 1."""
    mean, std = rows.mean(0, dtype=np.float64), rows.std(0, dtype=np.float64)
    # Rounding gives a column of one number a mean beside it, and a deviation that is not 0.
    std[(std == 0) | (rows == rows[:1]).all(0)] = 1
    return mean, std


def image_dataset(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], num_classes: int
) -> LoadedDataset:
    """A dataset of uint8 images (n, channels, height, width); normalized by the training images."""
    mean, std = channel_statistics(train[0])
    parts = [Samples(images, labels, mean, std=std) for images, labels in (train, test)]
    return LoadedDataset(parts[0], parts[1], num_classes, shape=tuple(train[0].shape[1:]))


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """The `statistics_of` images of shape (n, channels, height, width)."""
    # In blocks, because a view of a mapped file may be larger than the memory.
    return statistics_of(torch.split(images, COUNTED_IMAGES), images.shape[1])


def statistics_of(blocks: Iterable[Tensor], channels: int) -> tuple[Tensor, Tensor]:
    """Exact mean and deviation of each channel of uint8 images, shape (channels, 1, 1), from histograms.

    `blocks`: the images, each of shape (n, channels, height, width).
    """
    values = torch.arange(256, dtype=torch.float64)
    counts = torch.zeros(channels, 256, dtype=torch.float64)
    for block in blocks:
        for channel, count in enumerate(counts):
            count += torch.bincount(block[:, channel].reshape(-1), minlength=256)
    frequency = counts / counts.sum(1, keepdim=True)
    mean = frequency @ values
    variance = (frequency * (values - mean[:, None]) ** 2).sum(1)
    std = torch.where(variance > 0, variance, 1.0).sqrt()
    return mean.float()[:, None, None], std.float()[:, None, None]
