"""Tables, reviews, folders of images and datasets of Hugging Face, and files that are not."""

import decimal
import io
import json
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image

from decentnode.datasets import Amazon, Cifar100, HuggingFace, ImageFolder, TableFile, samples
from decentnode.datasets.base import IGNORED
from decentnode.datasets.hugging_face import write_split
from decentnode.datasets.table_files import write_table
from decentnode.errors import DatasetError
from tests.datasets.test_datasets import message_of

# CIFAR-100


@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_cifar100_has_both_labels_in_both_formats(tmp_path, labels):
    pixels = np.random.default_rng(1).integers(0, 256, (6, 3072), dtype=np.uint8)
    fine, coarse = [99, 0, 7, 7, 50, 3], [19, 0, 1, 1, 10, 0]
    python, binary = tmp_path / "cifar-100-python", tmp_path / "cifar-100-binary"
    for folder in (python, binary):
        folder.mkdir()
        for part in ("train", "test"):
            content = {"data": pixels, "fine_labels": fine, "coarse_labels": coarse, "filenames": []}
            records = np.concatenate([np.stack([coarse, fine], 1).astype(np.uint8), pixels], 1)
            if folder == python:
                (folder / part).write_bytes(pickle.dumps(content, protocol=2))
            else:
                (folder / f"{part}.bin").write_bytes(records.tobytes())
    for folder in (python, binary):
        loaded = Cifar100(path=str(folder), labels=labels).load(0)
        assert loaded.train.labels.tolist() == (fine if labels == "fine" else coarse)
        assert loaded.num_classes == (100 if labels == "fine" else 20)
        assert np.array_equal(loaded.test.inputs.flatten(1).numpy(), pixels)
    file = binary / "test.bin"
    file.write_bytes(file.read_bytes()[:-5])
    expected = f"{file}: 18439 bytes are not a whole number of records of 3074 bytes; it may be cut"
    assert message_of(Cifar100(path=str(binary), labels=labels)) == expected
    (python / "train").write_bytes(pickle.dumps({"data": pixels, "labels": fine}))
    expected = f"{python}/train: not a CIFAR-100 batch (KeyError: '{labels}_labels')"
    assert message_of(Cifar100(path=str(python), labels=labels)) == expected


# Folders of images


def write_images(root):
    """Three classes of one color each, in several sizes and formats."""
    for part in ("train", "val"):
        for label, color in enumerate(((250, 10, 10), (10, 250, 10), (10, 10, 250))):
            folder = root / part / f"class_{label}"
            folder.mkdir(parents=True)
            for number, size in enumerate(((40, 30), (30, 50))):
                image = Image.new("RGB", size, color)
                # A frame that the crop leaves out.
                framed = Image.new("RGB", (size[0] + 8, size[1] + 8), (255, 255, 255))
                framed.paste(image, (4, 4))
                framed.save(folder / f"{number}.{'png' if number else 'jpg'}")
            (folder / "notes.txt").write_text("no image")
    return root


def test_images_are_resized_cut_and_decoded_once(tmp_path, monkeypatch):
    write_images(tmp_path / "data")
    make = partial(ImageFolder, path=str(tmp_path / "data"), cache_path=str(tmp_path / "cache"))
    loaded = make(size=16, resize=24).load(0)
    assert loaded.train.labels.tolist() == [0, 0, 1, 1, 2, 2] and loaded.shape == (3, 16, 16)
    brightest = loaded.train.inputs.float().mean((2, 3)).argmax(1)
    assert torch.equal(brightest, loaded.train.labels)
    assert loaded.train.inputs[loaded.train.inputs > 100].min() > 230, "the frame is outside of the crop"
    files = sorted((tmp_path / "cache").iterdir())
    assert [file.stat().st_size for file in files] == [6 * 3 * 16 * 16] * 2
    monkeypatch.setattr(ImageFolder, "square", None)  # a second time nothing is decoded
    assert torch.equal(make(size=16, resize=24).load(0).test.inputs, loaded.test.inputs)
    monkeypatch.undo()
    assert len(make(size=16, images_per_class=1).load(0).train) == 3
    assert len(list((tmp_path / "cache").iterdir())) == 4
    # The usual crop of ImageNet: 256 / 224.
    assert (make().side, make(size=64).side) == (256, 73)


def test_images_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    root = write_images(tmp_path / "data")
    make = partial(ImageFolder, path=str(root), cache_path=str(tmp_path / "cache"), size=8)
    bad = root / "train" / "class_1" / "0.jpg"
    good = bad.read_bytes()
    for content, reason in (
        (good[: len(good) // 2], ""),
        (b"text", "cannot identify"),
    ):
        bad.write_bytes(content)
        assert message_of(make()).startswith(f"dataset.path: {bad} cannot be read: {reason}")
        assert not list((tmp_path / "cache").iterdir())
    bad.write_bytes(good)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    assert message_of(make()) == (
        f"dataset.cache_path: {tmp_path}/cache: 6 decoded images need 1.15e-06 GB, and 1e-06 GB are free; "
        "name another folder, or a smaller size"
    )
    (root / "val" / "class_9").mkdir()
    monkeypatch.undo()
    assert message_of(make()) == f"dataset.path: {root}/val/class_9: a class without a folder in train"
    assert "put images into" in message_of(make(path=str(tmp_path / "nowhere")))
    with pytest.raises(DatasetError, match=r"^dataset.resize: must be at least size, 8, not 4"):
        make(resize=4)


def test_what_systems_and_editors_leave_among_images_is_not_trained_on(tmp_path):
    root = write_images(tmp_path / "data")
    make = partial(ImageFolder, path=str(root), cache_path=str(tmp_path / "cache"), size=8)
    clean = make().load(0)
    for folder in (".ipynb_checkpoints", "__MACOSX", "class_0/.thumbnails"):
        (root / "train" / folder).mkdir()
        (root / "train" / folder / "0.png").write_bytes(b"no image")
    (root / "val" / "class_1" / "._0.jpg").write_bytes(b"\0\5\26\7")
    loaded = make().load(0)
    assert loaded.num_classes == 3 and torch.equal(loaded.train.inputs, clean.train.inputs)
    assert torch.equal(loaded.test.inputs, clean.test.inputs)
    (root / "train" / "lost+found").mkdir()
    assert message_of(make()) == (
        f"dataset.path: {root}/train/lost+found: a class without images; remove the folder"
    )


def test_gray_images_of_16_bits_keep_their_contrast(tmp_path):
    ramp = np.tile(np.linspace(0, 1, 16), (16, 1))
    for part in ("train", "val"):
        for label, ending in enumerate(("png", "tif")):
            (tmp_path / "data" / part / str(label)).mkdir(parents=True)
            image = Image.fromarray((ramp * 65535).astype(np.uint16))
            image.save(tmp_path / "data" / part / str(label) / f"0.{ending}")
    make = partial(
        ImageFolder, path=str(tmp_path / "data"), cache_path=str(tmp_path / "c"), size=16, resize=16
    )
    expected = torch.from_numpy((ramp * 65535).astype(np.uint16) >> 8).expand(2, 3, 16, 16)
    assert torch.equal(make().load(0).train.inputs, expected.to(torch.uint8))
    bad = tmp_path / "data" / "train" / "1" / "0.tif"
    Image.fromarray(ramp.astype(np.float32)).save(bad)
    assert message_of(make()) == (
        f"dataset.path: {bad} cannot be read: its gray values have 32 bits (mode F); "
        "write it with 8 or 16 bits"
    )


# Tables

ROWS = {
    "a": np.array([1.0, 2, 3, 4, 5]),
    "who": np.array(["x", "y", "x", "z", "y"]),
    "b": np.array([0, 1, 0, 1, 0]),
    "kind": np.array(["dog", "cat", "dog", "cow", "cat"]),
}


INDEX = np.arange(5)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("", INDEX),
        ("Unnamed: 0", INDEX),
        ("id", INDEX + 1),
        ("id", INDEX[[4, 0, 3, 1, 2]]),
        ("", INDEX % 2),  # tables one below the other
        ("Unnamed: 0.1", INDEX[::-1] * 7.0),  # a part of the rows
        ("PassengerId", INDEX + 892),
        ("__index_level_0__", INDEX),
        ("row_id", INDEX),
        ("#", INDEX + 1),
        ("Serial No.", INDEX[[4, 0, 3, 1, 2]]),
        ("Sample code number", INDEX * 17 + 61634),
        ("No", INDEX + 1),
        ("patient", INDEX),
        ("X", INDEX[[4, 0, 3, 1, 2]] + 1),
    ],
)
def test_a_column_that_numbers_the_rows_is_no_feature(tmp_path, name, numbers):
    """Its numbers tell the class where rows are in the order of their classes, or were."""
    path = tmp_path / "rows.csv"
    write_table(path, {name: numbers, **ROWS})
    make = partial(TableFile, path=path, label="kind", group="who")
    key = name if name.replace("_", "").replace(" ", "").isalnum() else repr(name)
    assert message_of(make()) == (
        f"dataset.features: {path}: column {name!r} numbers the rows, as the index that pandas writes; "
        f"set dataset.columns: {{{key}: skip}}, or number if it is a feature"
    )
    assert make(features=("a", "b")).load(0).shape == make(columns={name: "skip"}).load(0).shape == (2,)
    assert make(columns={name: "number"}).load(0).shape == (3,)
    assert make(features=(name, "a", "b")).load(0).shape == (3,), "whoever names it wants it"


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("id", INDEX % 3), ("index", INDEX / 4), ("", INDEX / 4), ("bids", INDEX), ("humid", INDEX),
     ("rank", INDEX), ("grid", INDEX), ("X", INDEX * 2), ("Number of rooms", INDEX)],
)  # fmt: skip
def test_a_column_with_other_numbers_or_names_is_a_feature(tmp_path, name, numbers):
    path = tmp_path / "rows.csv"
    write_table(path, {name: numbers, **ROWS})
    assert TableFile(path=path, label="kind", group="who").load(0).shape == (3,)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,dog\n2,\n3,cat", "{path}: column 'kind' has no value in 1 of 3 rows, first in row 2; {set}"),
        ("1,dog\n2,cat\n3,NA", "{path}: column 'kind' has no value in 1 of 3 rows, first in row 3; {set}"),
        ("1,dog\n2,cat\n3,dog ", "dataset.label: column 'kind' has 'dog' and 'dog ', one class with other "
         "blanks; remove them"),
    ],
)  # fmt: skip
def test_a_label_that_is_missing_or_has_blanks_is_no_class_of_its_own(tmp_path, rows, message):
    path = tmp_path / "rows.csv"
    path.write_text(f"a,kind\n{rows}\n")
    assert message_of(TableFile(path=path, label="kind")) == message.format(
        path=f"dataset.path: {path}", set="set dataset.missing, or dataset.columns: {kind: {missing: drop}}"
    )
    path.write_text('a,kind\n1,dog\n2,"NA"\n3,cat\n')
    assert TableFile(path=path, label="kind").read(0).num_classes == 3


def test_a_column_that_is_not_used_may_have_no_values(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,cabin,age,kind\n1,,,dog\n2,C85,3,cat\n4,,5,cat\n3,,6,dog\n")
    make = partial(TableFile, path=path, label="kind", test_path=path)
    assert make(features=("a",)).load(0).shape == (1,)
    assert message_of(make(features=("a", "age"))) == (
        f"dataset.path: {path}: column 'age' has no value in 1 of 4 rows, first in row 1; "
        "set dataset.missing, or dataset.columns: {age: {missing: median}}"
    )


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_than_commas_are_named(tmp_path, separator):
    path = tmp_path / "rows.csv"
    path.write_text(f"a{separator}label\n1{separator}2\n")
    assert message_of(TableFile(path=path)) == (
        f"dataset.path: {path}: cannot be read: its columns are separated by {separator!r}; "
        f"set dataset.separator: {separator!r}"
    )


def test_a_column_of_one_number_has_no_deviation_whatever_its_mean_is_rounded_to(tmp_path):
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    write_table(train, {"a": np.full(10, 0.1), "b": np.arange(10.0), "label": np.arange(10) % 2})
    write_table(test, {"a": np.full(2, 0.2), "b": np.arange(2.0), "label": np.arange(2)})
    loaded = TableFile(path=train, test_path=test).load(0)
    assert loaded.train.std[0] == 1


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_columns_of_a_test_file_are_found_by_their_names(tmp_path, suffix):
    path, test = tmp_path / f"rows.{suffix}", tmp_path / f"test.{suffix}"
    write_table(path, ROWS)
    make = partial(TableFile, path=path, test_path=test, label="kind", group="who")
    part = {name: column[1:3] for name, column in ROWS.items()}
    write_table(test, {"more": np.array([7, 8]), **dict(reversed(part.items()))})
    assert make().load(0).test.inputs.tolist() == [[2, 1], [3, 0]]
    for options in ({}, {"features": ("b", "a")}):
        write_table(test, {"A": part["a"], "b": part["b"], "who": part["who"], "kind": part["kind"]})
        assert message_of(make(**options)) == (
            f"dataset.features: {test} has no column 'a' (columns: A, b, who, kind)"
        )
    assert make(features=("b", "a"), test_path=None).load(0).names == ("b", "a")
    for features, what in ((("a", "a"), "is there twice"), (("kind",), "is the label")):
        assert f"'{features[0]}' {what}" in message_of(make(features=features))


def test_arrays_of_two_files_have_the_same_shapes(tmp_path):
    for name, first, second in (("train", 2, 3), ("test", 3, 2)):
        np.savez(tmp_path / name, x=np.ones((4, first)), y=np.ones((4, second)), label=[0, 1, 0, 1])
    make = TableFile(path=tmp_path / "train.npz", test_path=tmp_path / "test.npz")
    with pytest.raises(DatasetError) as raised:
        make.load(0)
    test, train = (tmp_path / f"{name}.npz" for name in ("test", "train"))
    assert str(raised.value).splitlines() == [
        f"dataset.test_path: {test}: column 'x' has rows of shape (3,), in {train} (2,)",
        f"dataset.test_path: {test}: column 'y' has rows of shape (2,), in {train} (3,)",
    ]


TIMES = 1_700_000_000 + np.arange(60)


@pytest.mark.parametrize(
    "column",
    [TIMES, TIMES / 2, TIMES * 1_000_000_000, [decimal.Decimal(int(second)) / 10 for second in TIMES]],
    ids=["seconds", "floats", "nanoseconds", "decimals"],
)
def test_numbers_have_64_bits_until_they_are_normalized(tmp_path, column):
    path = tmp_path / "times.parquet"
    write_table(path, {"t": column, "b": TIMES % 2, "label": TIMES % 2})
    loaded = TableFile(path=path).load(0).to(torch.float32)
    for part in (loaded.train, loaded.test):
        inputs = part.batch(torch.arange(len(part))).fields[0]
        assert inputs.dtype == torch.float32 and len(inputs[:, 0].unique()) == len(part)
    inputs = loaded.train.batch(torch.arange(48)).fields[0]
    assert inputs.mean(0).tolist() == pytest.approx([0, 0], abs=1e-5)
    assert inputs.std(0, correction=0).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (TIMES * (TIMES % 7 > 0), "dataset: feature 't' has distinct values that are equal in the 32 bits"),
        (TIMES + 10**18, "dataset.path: {path}: column 't' has distinct numbers that are equal in 64 bits"),
    ],
)  # fmt: skip
def test_distinct_numbers_that_models_cannot_tell_apart_are_one_line(tmp_path, column, message):
    path = tmp_path / "times.parquet"
    write_table(path, {"a": TIMES % 5, "t": column, "label": TIMES % 2})
    with pytest.raises(DatasetError) as raised:
        TableFile(path=path).load(0).to(torch.float32)
    assert str(raised.value).startswith(message.format(path=path))
    if "32 bits" in message:
        loaded = TableFile(path=path).load(0).to(torch.float64)
        inputs = loaded.train.batch(torch.arange(48)).fields[0]
        assert len(inputs[:, 1].unique()) > 30, "models of 64 bits tell them apart"


def test_numbers_to_predict_that_are_equal_in_32_bits_are_one_line(tmp_path):
    write_table(tmp_path / "rows.csv", {"a": TIMES % 5, "t": TIMES})
    message = message_of(TableFile(path=tmp_path / "rows.csv", label="t", predict="number"))
    assert message == (
        "dataset.label: column 't': distinct numbers are equal in 32 bits; subtract their mean"
    )


def test_large_whole_numbers_with_and_without_sign_are_different_groups(tmp_path):
    ids = 2**62 + np.arange(5)
    write_table(tmp_path / "train.parquet", ROWS | {"who": ids})
    write_table(tmp_path / "test.parquet", ROWS | {"who": ids.astype(np.uint64)})
    make = TableFile(
        path=tmp_path / "train.parquet", test_path=tmp_path / "test.parquet", label="kind", group="who"
    )
    loaded = make.load(0)
    assert loaded.train.groups.tolist() == loaded.test.groups.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_rows_of_a_table_are_samples(tmp_path, suffix):
    path, test = tmp_path / f"rows.{suffix}", tmp_path / f"test.{suffix}"
    write_table(path, ROWS)
    write_table(test, {name: column[1:3] for name, column in ROWS.items()})
    make = partial(TableFile, path=path, label="kind", group="who")
    loaded = make(test_path=test).load(0)
    assert loaded.train.inputs.tolist() == [[1, 0], [2, 1], [3, 0], [4, 1], [5, 0]]
    assert (loaded.train.labels.tolist(), loaded.test.labels.tolist()) == ([2, 0, 2, 1, 0], [0, 2])
    assert (loaded.train.groups.tolist(), loaded.test.groups.tolist()) == ([0, 1, 0, 2, 1], [1, 0])
    assert loaded.train.mean.tolist() == pytest.approx([3, 0.4])
    assert loaded.train.std.tolist() == pytest.approx([2**0.5, 0.24**0.5])
    parts = [make(features=("a",), test_fraction=0.4).load(seed) for seed in (0, 0, 1)]
    assert [len(parts[0].train), len(parts[0].test)] == [3, 2]
    assert torch.equal(parts[0].test.inputs, parts[1].test.inputs)
    together = torch.cat([parts[0].train.inputs, parts[0].test.inputs]).flatten().sort().values
    assert together.tolist() == [1, 2, 3, 4, 5]
    rated = make(label="a", predict="number", features=("b",)).load(0)
    assert (rated.num_classes, rated.train.labels.dtype) == (1, torch.float32)
    assert message_of(make(label="kimd")) == (
        f"dataset.label: {path} has no column 'kimd'; did you mean 'kind'? (columns: a, who, b, kind)"
    )
    assert message_of(make(group="nobody")).startswith(f"dataset.group: {path} has no column 'nobody'")
    assert make(group=None, test_path=path).load(0).shape == (5,), "two numbers and three categories"
    message = f"dataset.path: {path}: column 'who' has 'x' in row 1, which is no number"
    assert message_of(make(group=None, columns={"who": "number"})) == message
    content = path.read_bytes()
    # A CSV file that ends after a whole row is one of fewer rows.
    path.write_bytes(content[: content.rindex(b",") if suffix == "csv" else len(content) // 2])
    assert message_of(make()).startswith(f"dataset.path: {path}: ")


def test_other_mistakes_with_tables_are_one_line(tmp_path):
    path = tmp_path / "rows.csv"
    place = f"dataset.path: {path}"
    for content, message in (
        ("a,label\n1,x\n,y\n", f"{place}: column 'a' has no value in 1 of 2 rows, first in row 2; set"),
        ("a,label\n1,x\n2\n", f"{place}: cannot be read: CSV parse error"),
        ("a,label\n1,x\ninf,y\n", f"{place}: column 'a' has no finite number in row 2"),
        ("a,label\n1,0.5\n2,1\n", "dataset.label: column 'label' has 0.5, which is no class"),
        ("a,label\n1,x\n", "dataset: one row is too few to train and to test"),
        ("a,label\n", f"{place}: has no rows"),
        ("label\nx\ny\n", f"dataset.features: {path} has no columns but label and group"),
    ):
        path.write_text(content)
        assert message_of(TableFile(path=path)).startswith(message), content
    path.write_text("a,label\n1,x\n2,y\n")
    test = tmp_path / "test.csv"
    test.write_text("a,label\n1,z\n")
    expected = "dataset.test_path: column 'label' has z, which no training row has"
    assert message_of(TableFile(path=path, test_path=test)) == expected
    np.savez(tmp_path / "images.npz", x=np.arange(48).reshape(4, 1, 3, 4), label=[0, 1, 0, 1])
    assert TableFile(path=tmp_path / "images.npz").load(0).shape == (1, 3, 4)
    np.savez(tmp_path / "odd.npz", x=np.arange(3), label=[0, 1])
    assert message_of(TableFile(path=tmp_path / "odd.npz")).endswith(
        "its arrays have different numbers of rows"
    )
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), label=[0])
    assert "Object arrays cannot be loaded" in message_of(TableFile(path=tmp_path / "objects.npz"))
    for options, message in (
        ({"path": path, "test_fraction": 1.5}, "dataset.test_fraction: must be between 0 and 1, not 1.5"),
        ({}, "dataset.path: missing; any CSV, Parquet, Arrow or NPZ file serves"),
    ):
        with pytest.raises(DatasetError, match=message):
            TableFile(**options)


# Reviews


def test_reviews_are_hashed_or_have_the_most_frequent_words(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    (tmp_path / "train" / "anna.csv").write_text('data_path,label_name,label_id\n"good, good",5,0\nbad,1,0\n')
    (tmp_path / "train" / "bob.csv").write_text("label_name,data_path\n4.0,good stuff\n")
    (tmp_path / "test" / "bob.csv").write_text("label_name,data_path\n2,unknown words good\n")
    make = partial(Amazon, path=str(tmp_path), length=4)
    loaded = make(words="vocabulary", buckets=4).load(0)
    # good: 3, the comma, bad and stuff: 1 each, in the order of their letters
    assert loaded.train.inputs.tolist() == [[2, 3, 2, 0], [4, 0, 0, 0], [2, 1, 0, 0]]
    assert loaded.test.inputs.tolist() == [[1, 1, 2, 0]]
    assert (loaded.train.labels.tolist(), loaded.num_classes) == ([4, 0, 3], 5)
    assert (loaded.train.groups.tolist(), loaded.test.groups.tolist()) == ([0, 0, 1], [1])
    hashes = make(buckets=7).load(0).train.inputs
    assert hashes[0, 0] == hashes[0, 2] == hashes[2, 0] and hashes.max() <= 7
    file = tmp_path / "test" / "bob.csv"
    for content, message in (
        ("data_path\nx\n", "dataset.stars_column: {file}:1: has no column 'label_name'"),
        ("data_path,label_name\nx,6\n", "dataset.path: {file}:2: '6' are no stars; they must be 1..5"),
        ("data_path,label_name\nx\n", "dataset.path: {file}:2: has too few fields; it may be cut off"),
        ("data_path,label_name\n", "dataset.path: {file.parent}: no review in 1 files"),
    ):
        file.write_text(content)
        assert message_of(make()) == message.format(file=file)
    file.write_bytes(b"data_path,label_name\n\xff,5\n")
    assert message_of(make()).startswith(f"dataset.path: {file}: cannot be read: ")


# Hugging Face


def write_saved(root, **columns):
    for split in ("train", "test"):
        write_split(root / split, columns)
    return partial(HuggingFace, path=str(root), cache_path=str(root / "cache"))


def test_features_ids_and_images_of_a_saved_dataset(tmp_path):
    png = io.BytesIO()
    Image.new("RGB", (9, 12), (250, 0, 0)).save(png, "PNG")
    make = write_saved(
        tmp_path, x=[[1.0, 2.0], [3.0, 5.0], [2.0, 2.0]], z=[7, 8, 9], label=[1, 0, 1], who=["b", "a", "b"],
        ids=[[5, 6, 7], [1, 2, 3, 4, 5, 6], [9, 3]], photo=[{"bytes": png.getvalue(), "path": None}] * 3,
        text=["some", "words", "here"],
    )  # fmt: skip
    loaded = make(features=("x", "z"), label="label", group="who").load(0)
    assert loaded.train.inputs.tolist() == [[1, 2, 7], [3, 5, 8], [2, 2, 9]]
    assert (loaded.train.labels.tolist(), loaded.train.groups.tolist()) == ([1, 0, 1], [1, 0, 1])
    tokens = make(ids="ids", length=4).load(0)
    assert tokens.train.inputs.tolist() == [[5, 6, 7, 0], [1, 2, 3, 4], [9, 3, 0, 0]]
    assert tokens.train.labels.tolist() == [
        [6, 7, IGNORED, IGNORED], [2, 3, 4, 5], [3, IGNORED, IGNORED, IGNORED],
    ]  # fmt: skip
    assert (tokens.num_classes, tokens.train.has_ids) == (10, True)
    mood = make(ids="ids", label="text", length=2).load(0)
    assert (mood.train.inputs.tolist(), mood.num_classes) == ([[5, 6], [1, 2], [9, 3]], 3)
    images = make(image="photo", label="label", group="who", size=6).load(0)
    assert images.shape == (3, 6, 6) and images.train.inputs[:, 0].min() > 240
    # The numbers of classes that the dataset has itself: a class may have no sample.
    description = {"features": {"label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}, "x": [{}]}}
    (tmp_path / "train" / "dataset_info.json").write_text(json.dumps(description))
    assert make(features=("z",), label="label").load(0).num_classes == 3
    # Another split may number its classes otherwise.
    for names, expected in ((list("cba"), [1, 2, 1]), (["b", "d"], "has the class 'd', which train has not")):
        (tmp_path / "test" / "dataset_info.json").write_text(
            json.dumps({"features": {"label": {"names": names}}})
        )
        dataset = make(features=("z",), label="label")
        if isinstance(expected, list):
            assert dataset.load(0).test.labels.tolist() == expected
            assert dataset.load(0).train.labels.tolist() == [1, 0, 1]
        else:
            assert message_of(dataset).endswith(expected)
    (tmp_path / "test" / "dataset_info.json").unlink()
    folder = tmp_path / "train"
    for options, message in (
        ({"features": ("text",), "label": "label"},
         f"dataset.path: {folder}: column 'text' has 'some' in row 1, which is no number"),
        ({"features": ("ids",), "label": "label"},
         f"dataset.features: {folder}: rows of 'ids' have 2 to 6 values; all must have as many"),
        ({"ids": "z"}, f"dataset.ids: {folder}: 'z' has int64, not lists of ids"),
        ({"ids": "x"}, f"dataset.ids: {folder}: 'x' has values that are no ids from 0 on"),
        ({"ids": "ids", "vocabulary": 9},
         f"dataset.vocabulary: {folder}: 'ids' has the id 9; ids must be below 9"),
        ({"image": "text", "label": "label"},
         f"dataset.image: {folder}: 'text' of row 0 is no image, but str"),
        ({"features": ("z",), "label": "z"}, f"dataset.label: {folder}: 'z' has 9; it must be one of 0..2"),
        ({"features": ("y",), "label": "label"}, f"dataset.features: {folder} has no column 'y'"),
    ):  # fmt: skip
        if options.get("label") == "z":
            (folder / "dataset_info.json").write_text(json.dumps({"features": {"z": {"names": list("abc")}}}))
        assert message_of(make(**options)).startswith(message)
    for options in ({"label": "label"}, {"ids": "ids", "features": ("x",)}, {"features": ("x",)}):
        with pytest.raises(DatasetError, match=r"^dataset(\.label)?: (name one of|missing)"):
            make(**options)


def test_files_that_save_to_disk_did_not_write_are_named(tmp_path):
    make = partial(write_saved(tmp_path, x=[1.0, 2.0], label=[0, 1]), features=("x",), label="label")
    file, state = (tmp_path / "test" / name for name in ("data-00000-of-00001.arrow", "state.json"))
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"text"):
        file.write_bytes(content)
        assert message_of(make()).startswith(f"dataset.path: {file}: no Arrow stream, or cut off: ")
    file.write_bytes(whole)
    with pyarrow.ipc.new_stream(str(file), pyarrow.schema([("x", "f8"), ("label", "i8")])):
        pass
    assert message_of(make()) == f"dataset.path: {tmp_path}/test: has no rows"
    for content, message in (
        ("{", "not written by save_to_disk"),
        ('{"_data_files": [{"filename": "../x"}]}', "'../x' is no file of its folder"),
    ):
        state.write_text(content)
        assert message_of(make()).startswith(f"dataset.path: {state}: {message}")
    state.write_text('{"_data_files": [], "_indices_data_files": [{"filename": "i"}]}')
    assert message_of(make()).endswith("its rows are selected; call flatten_indices() first")
    state.unlink()
    assert "pip install datasets" in message_of(make())


@pytest.mark.parametrize(
    "dataset",
    [
        TableFile(
            sample=True,
            path=Path("x.npz"),
            test_path=Path("y.parquet"),
            group="g",
            features=("p", "q"),
            label="c",
        ),
        TableFile(sample=True, predict="number"),
        HuggingFace(sample=True, image="photo", label="kind", group="who", size=8),
        HuggingFace(sample=True, ids="tokens", length=12),
        Amazon(sample=True, words="vocabulary", text_column="t", stars_column="s"),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_a_sample_has_the_columns_that_the_options_name(dataset):
    loaded = dataset.load(0)
    assert len(loaded.train) >= 192 and len(loaded.test) >= 96
    if getattr(dataset, "group", None):
        assert len(loaded.train.groups.unique()) >= 96 and samples.CLIENTS == 100
