"""Datasets of the Hugging Face library, as `save_to_disk` leaves them: Arrow streams and two JSON files."""

import codecs
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.registry import DATASETS, guess
from decentnode.datasets import samples
from decentnode.datasets.base import IGNORED, LoadedDataset, Samples, image_dataset
from decentnode.datasets.image_folder import Images, check_pillow
from decentnode.datasets.table import check_features, joined, loaded, numbered, places
from decentnode.datasets.table_columns import check_pyarrow, numbers
from decentnode.errors import UNDECODABLE, DatasetError
from decentnode.options import Positive

SAMPLE_FEATURES = 8
SAMPLE_LENGTH = 16
SAMPLE_IDS = 40
SPLIT_FILE = "state.json"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, NotImplementedError)
"""Errors of pyarrow, whose own derive from these."""

Array = NDArray[Any]


class _ArrowFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    """The content of state.json."""

    data_files: list[_ArrowFile] = msgspec.field(name="_data_files")
    index_files: list[_ArrowFile] | None = msgspec.field(name="_indices_data_files", default=None)


class _Feature(msgspec.Struct):
    names: list[str] | None = None


class _Description(msgspec.Struct):
    """The content of dataset_info.json; other kinds of features are lists or have no names."""

    features: dict[str, _Feature | list[Any]] | None = None


@dataclass(frozen=True)
class Split:
    """The rows of a part."""

    folder: Path
    table: Any
    """A table of pyarrow, whose memory is the mapped files."""

    def column(self, name: str, option: str) -> Any:
        """A column; raises DatasetError."""
        if name not in self.table.column_names:
            known = f"{guess(name, self.table.column_names)} (columns: {', '.join(self.table.column_names)})"
            raise DatasetError.at(f"dataset.{option}", f"{self.folder} has no column {name!r}{known}")
        column = self.table.column(name)
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise DatasetError.at("dataset.path", f"{self.folder}: column {name!r} has no value in row {row}")
        return column

    def values(self, name: str, option: str) -> Array:
        """The values of a column, of shape (n,), or (n, length) for lists of one length."""
        column = self.column(name, option).combine_chunks()
        if not is_list(column):
            return np.asarray(column)
        lengths = np.unique(list_lengths(column)).tolist()
        if len(lengths) > 1:
            raise DatasetError.at(
                f"dataset.{option}",
                f"{self.folder}: rows of {name!r} have {lengths[0]} to {lengths[-1]} "
                "values; all must have as many",
            )
        return np.asarray(column.flatten()).reshape(len(column), -1)


@DATASETS.register("hugging_face", "hf", "datasets")
@dataclass(kw_only=True)
class HuggingFace(Images):
    """A dataset that `save_to_disk` of the library datasets wrote (Lhoest et al., 2021, "Datasets").

    One of `image`, `features` and `ids` names what models get. The Arrow files are mapped and read with
    pyarrow; the library itself is not needed. Images need Pillow, and are decoded as in `image_folder`.
    """

    image: str | None = None
    """The column of images."""
    features: tuple[str, ...] | None = None
    """Columns of numbers, or of lists of so many numbers in each row."""
    ids: str | None = None
    """The column of lists of ids, such as those of a tokenizer; use task `next_token` for its next ids."""
    label: str | None = None
    """The column of the classes; null with `ids`: the label of each id is the next id."""
    group: str | None = None
    """The column of the groups, for the partition `natural`; null: there are none."""
    train_split: str = "train"
    test_split: str = "test"
    length: Positive = 128
    """Ids of a sample: longer rows are cut, in shorter ones id 0 fills up, whose labels do not count."""
    vocabulary: Positive | None = None
    """Ids are below it; null: the largest id of the training rows decides."""

    title = "hugging_face"
    folders = ("hugging_face",)

    def __post_init__(self) -> None:
        super().__post_init__()
        named = [name for name in ("image", "features", "ids") if getattr(self, name) is not None]
        if len(named) != 1 and not self.sample:
            listed = " and ".join(named) or "none"
            raise DatasetError.at("dataset", f"name one of image, features and ids, not {listed}")
        if self.label is None and self.ids is None and not self.sample:
            raise DatasetError.at("dataset.label", "missing; it names the column of the classes")

    @property
    def steps(self) -> str:
        load = "from datasets import load_dataset; load_dataset('NAME').save_to_disk('{folder}/hugging_face')"
        return f'write one with: pip install datasets && python -c "{load}"'

    def is_complete(self, directory: Path) -> bool:
        return all((directory / split / SPLIT_FILE).is_file() for split in self._splits)

    @property
    def _splits(self) -> tuple[str, str]:
        return self.train_split, self.test_split

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        check_pyarrow("hugging_face")
        features = self.features or (() if self.image or self.ids else ("features",))
        label = self.label or (None if self.ids else "label")
        for seed, split in enumerate(self._splits, 1):
            count = samples.IMAGES // 4 if seed == 1 else samples.TEST_IMAGES // 2
            made = samples.columns(count, SAMPLE_FEATURES, seed=seed)
            columns: dict[str, Any] = {name: made.values.tolist() for name in features}
            if self.image:
                columns[self.image] = [{"bytes": png, "path": None} for png in samples.pngs(count, seed)]
            if self.ids:
                starts = np.arange(count)[:, None] + np.arange(SAMPLE_LENGTH)
                columns[self.ids] = (1 + starts % SAMPLE_IDS).tolist()
            names = {label: made.labels, self.group: made.groups}
            columns |= {name: values.tolist() for name, values in names.items() if name}
            write_split(directory / "saved" / split, columns)
        chosen = None if self.image or self.ids else features
        cache = str(directory / "cache")
        return {"path": str(directory / "saved"), "features": chosen, "label": label, "cache_path": cache}

    def read(self, seed: int) -> LoadedDataset:
        check_pyarrow("hugging_face")
        directory = self.directory()
        splits = [read_split(directory / name) for name in self._splits]
        if self.ids is not None:
            return self._read_ids(self.ids, splits)
        labels, names = self._labels(splits)
        classes, groups = len(names), self._groups(splits)
        if self.image is None:
            columns = [self._columns(split) for split in splits]
            for name in columns[0]:
                shape, of_test = (part[name].shape[1:] for part in columns)
                if shape != of_test:
                    raise DatasetError.at(
                        "dataset.features",
                        f"{splits[1].folder}: rows of {name!r} have {of_test[0]} values, in "
                        f"{splits[0].folder.name} {shape[0]}",
                    )
            features = [joined(part)[0] for part in columns]
            found = loaded(features, labels, groups, classes=classes, names=joined(columns[0])[1])
            return replace(found, class_names=names)
        images = [self._images(split, self.image) for split in splits]
        train, test = ((image, torch.from_numpy(of)) for image, of in zip(images, labels, strict=True))
        return with_groups(replace(image_dataset(train, test, classes), class_names=names), groups)

    def _columns(self, split: Split) -> dict[str, Array]:
        names = self.features or ()
        check_features(names, self.label)
        columns = (numbers(split.values(n, "features"), f"{split.folder}: column {n!r}") for n in names)
        return {name: column.reshape(len(column), -1) for name, column in zip(names, columns, strict=True)}

    def _images(self, split: Split, name: str) -> Tensor:
        check_pillow("hugging_face")
        column = split.column(name, "image")
        states = [(file.resolve(), file.stat()) for file in _files(split.folder)]
        contents = [f"{file} {state.st_size} {state.st_mtime_ns}" for file, state in states]

        def square(row: int) -> NDArray[np.uint8]:
            cell, place = column[row].as_py(), f"{split.folder}: {name!r} of row {row}"
            content = cell.get("bytes") if isinstance(cell, dict) else cell
            path = cell.get("path") if isinstance(cell, dict) else None
            if not isinstance(content, bytes) and not path:
                raise DatasetError.at("dataset.image", f"{place} is no image, but {type(cell).__name__}")
            return self.square(io.BytesIO(content) if content else path, place)

        return self.decoded(len(column), square, [*contents, name])

    def _labels(self, splits: Sequence[Split]) -> tuple[list[Array], tuple[str, ...]]:
        """The labels of each split, and the names of the classes."""
        name = self.label or ""
        columns = [split.values(name, "label") for split in splits]
        described = [class_names(split.folder, name) for split in splits]
        classes = described[0]
        if classes is None or any(values.dtype.kind not in "iu" or values.ndim > 1 for values in columns):
            return numbered(columns, f"column {name!r}")
        # Classes keep the numbers that the training split has given them; another split may have others.
        labels = []
        for split, values, names in zip(splits, columns, described, strict=True):
            own = classes if names is None else names
            if values.min() < 0 or values.max() >= len(own):
                wrong = int(values.min()) if values.min() < 0 else int(values.max())
                defect = f"{split.folder}: {name!r} has {wrong}"
                raise DatasetError.at("dataset.label", f"{defect}; it must be one of 0..{len(own) - 1}")
            for number in np.unique(values) if own != classes else ():
                if own[number] not in classes:
                    raise DatasetError.at(
                        "dataset.label",
                        f"{split.folder}: {name!r} has the class {own[number]!r}, which "
                        f"{splits[0].folder.name} has not",
                    )
            place_of = np.array([classes.index(label) if label in classes else -1 for label in own])
            labels.append(place_of[values.astype(np.int64)])
        return labels, tuple(classes)

    def _groups(self, splits: Sequence[Split]) -> list[Array] | None:
        if self.group is None:
            return None
        return places([split.values(self.group, "group") for split in splits])[0]

    def _read_ids(self, name: str, splits: Sequence[Split]) -> LoadedDataset:
        more = 1 if self.label is None else 0
        rows = [self._padded(split, name, self.length + more) for split in splits]
        vocabulary = self.vocabulary or int(rows[0].max()) + 1
        for split, ids in zip(splits, rows, strict=True):
            if ids.max() >= vocabulary:
                defect = f"{split.folder}: {name!r} has the id {ids.max()}"
                raise DatasetError.at("dataset.vocabulary", f"{defect}; ids must be below {vocabulary}")
        inputs = [torch.from_numpy(ids[:, : self.length].clip(0).astype(np.int32)) for ids in rows]
        if self.label is not None:
            labels, names = self._labels(splits)
            classes = len(names)
        else:
            names = ()
            labels, classes = [np.where(ids[:, 1:] < 0, IGNORED, ids[:, 1:]) for ids in rows], vocabulary
        groups = self._groups(splits)
        train, test = (
            Samples(part, torch.from_numpy(label), ids=True)
            for part, label in zip(inputs, labels, strict=True)
        )
        fitted = ("the largest id (give dataset.vocabulary)",) if self.vocabulary is None else ()
        found = LoadedDataset(
            train, test, classes, shape=(self.length,), fitted=fitted, class_names=names
        )  # fmt: skip
        return with_groups(found, groups)

    def _padded(self, split: Split, name: str, length: int) -> NDArray[np.int64]:
        """Rows of ids, cut to a length; -1 fills up."""
        column = split.column(name, "ids").combine_chunks()
        if not is_list(column):
            raise DatasetError.at(
                "dataset.ids", f"{split.folder}: {name!r} has {column.type}, not lists of ids"
            )
        values = np.asarray(column.flatten())
        if values.dtype.kind not in "iu" or (len(values) and values.min() < 0):
            raise DatasetError.at(
                "dataset.ids", f"{split.folder}: {name!r} has values that are no ids from 0 on"
            )
        lengths = list_lengths(column)
        starts = np.cumsum(lengths) - lengths
        short = np.flatnonzero(lengths < length - self.length + 1)
        if len(short):
            raise DatasetError.at(
                "dataset.ids", f"{split.folder}: {name!r} has too few ids in row {short[0]}"
            )
        inside = np.arange(length) < lengths[:, None]
        # Places beyond the end of a row are those of other rows, or of none: they are not used.
        padded = values[np.minimum(starts[:, None] + np.arange(length), max(0, len(values) - 1))]
        return np.where(inside, padded.astype(np.int64), -1)


def is_list(column: Any) -> bool:
    """Whether each row of a column of pyarrow is a list."""
    return str(column.type).partition("<")[0] in ("list", "large_list", "fixed_size_list")


def list_lengths(column: Any) -> NDArray[np.int64]:
    """How many values each row has."""
    if str(column.type).startswith("fixed_size_list"):
        return np.full(len(column), column.type.list_size)
    return np.asarray(column.value_lengths()).astype(np.int64)


def with_groups(dataset: LoadedDataset, groups: Sequence[Array] | None) -> LoadedDataset:
    """The samples of a dataset, in groups."""
    if groups is None:
        return dataset
    train, test = (
        replace(part, groups=torch.from_numpy(of))
        for part, of in zip((dataset.train, dataset.test), groups, strict=True)
    )
    return replace(dataset, train=train, test=test)


def _files(folder: Path) -> list[Path]:
    """The Arrow files of a split; raises DatasetError."""
    state = folder / SPLIT_FILE
    try:
        recorded = msgspec.json.decode(state.read_bytes().removeprefix(codecs.BOM_UTF8), type=_State)
    except UNDECODABLE as error:
        raise DatasetError.at("dataset.path", f"{state}: not written by save_to_disk: {error}") from error
    except OSError as error:
        raise DatasetError.at("dataset.path", f"{state}: {error.strerror}") from error
    if recorded.index_files:
        raise DatasetError.at(
            "dataset.path", f"{folder}: its rows are selected; call flatten_indices() first"
        )
    names = [file.filename for file in recorded.data_files]
    if outside := [name for name in names if Path(name).name != name]:
        raise DatasetError.at("dataset.path", f"{state}: {outside[0]!r} is no file of its folder")
    return [folder / name for name in names]


def read_split(folder: Path) -> Split:
    """The rows of a split, mapped; raises DatasetError."""
    import pyarrow

    tables = []
    for file in _files(folder):
        try:
            with pyarrow.memory_map(str(file)) as mapped, pyarrow.ipc.open_stream(mapped) as stream:
                tables.append(stream.read_all())
        except UNREADABLE as error:
            reason = str(error).splitlines()[0]
            raise DatasetError.at("dataset.path", f"{file}: no Arrow stream, or cut off: {reason}") from error
    try:
        table = pyarrow.concat_tables(tables)
    except UNREADABLE as error:
        raise DatasetError.at("dataset.path", f"{folder}: its files do not fit together: {error}") from error
    if not len(table):
        raise DatasetError.at("dataset.path", f"{folder}: has no rows")
    return Split(folder, table)


def class_names(folder: Path, column: str) -> list[str] | None:
    """The names of the classes of a column, where dataset_info.json has them; raises DatasetError."""
    file = folder / "dataset_info.json"
    try:
        description = msgspec.json.decode(file.read_bytes().removeprefix(codecs.BOM_UTF8), type=_Description)
    except FileNotFoundError:
        return None
    except UNDECODABLE as error:
        raise DatasetError.at("dataset.path", f"{file}: not written by save_to_disk: {error}") from error
    feature = (description.features or {}).get(column)
    return feature.names if isinstance(feature, _Feature) else None


def write_split(folder: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Writes columns as `save_to_disk` does, apart from what is not read."""
    import pyarrow

    folder.mkdir(parents=True)
    table = pyarrow.table(dict(columns))
    name = "data-00000-of-00001.arrow"
    with pyarrow.ipc.new_stream(str(folder / name), table.schema) as stream:
        stream.write_table(table, max_chunksize=1000)
    (folder / SPLIT_FILE).write_text(json.dumps({"_data_files": [{"filename": name}], "_fingerprint": "0"}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
