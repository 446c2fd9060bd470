"""The promise that every registered dataset keeps, on tiny files in the real formats."""

import gzip
import os
import pickle
import struct
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from decentnode.config import loader as config
from decentnode.core.registry import DATASETS
from decentnode.datasets import (
    Cifar10,
    Digits,
    Idx,
    MovieLens,
    Parallel,
    Quadratic,
    Samples,
    Synthetic,
    Text,
    Tokens,
    samples,
)  # fmt: skip
from decentnode.datasets.base import channel_statistics
from decentnode.datasets.cifar10_batches import read_batch
from decentnode.datasets.from_python import from_object
from decentnode.datasets.idx import read_idx
from decentnode.errors import DatasetError

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (7, 3072), dtype=np.uint8)
LABELS = [3, 0, 9, 1, 1, 5, 2]


# Writers of the real formats


def idx_bytes(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(directory, prefix="", test="t10k", zipped=True, first_label=0):
    """Twelve training and six test images of 5 x 4 pixels, labels first_label .. first_label + 2."""
    directory.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 12), (test, 6)):
        images = RNG.integers(0, 256, (count, 5, 4), dtype=np.uint8)
        labels = (np.arange(count) % 3 + first_label).astype(np.uint8)
        for content, array in (("images-idx3", images), ("labels-idx1", labels)):
            raw = idx_bytes(array)
            path = directory / f"{prefix}{part}-{content}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(raw) if zipped else raw)
    return directory


def python2_batch(pixels, labels):
    """A batch as Python 2 wrote the published ones: protocol 2, every string a byte string."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    shape = b"M" + struct.pack("<H", len(pixels)) + b"M" + struct.pack("<H", pixels.shape[1]) + b"\x86"
    dtype = b"cnumpy\ndtype\nq\x05" + text(b"u1") + b"K\x00K\x01\x87Rq\x06(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85" + text(b"b") + b"\x87R"
    )
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<I", pixels.size) + pixels.tobytes() + b"tb"
    listed = b"]q\x02(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    entries = text(b"batch_label") + text(b"one") + text(b"labels") + listed + text(b"data") + array + state
    return b"\x80\x02}q\x01(" + entries + b"u."


def python3_batch(pixels, labels, protocol=2):
    return pickle.dumps({b"labels": labels, b"data": pixels, b"filenames": [b"a.png"]}, protocol=protocol)


def binary_batch(pixels, labels):
    return b"".join(bytes([label]) + row.tobytes() for row, label in zip(pixels, labels, strict=True))


def write_cifar(directory, encode, suffix=""):
    directory.mkdir(parents=True)
    for batch in BATCHES:
        (directory / f"{batch}{suffix}").write_bytes(encode(PIXELS, LABELS))
    return directory


def load_fashion(root):
    return Idx(path=str(write_idx(root))).load(0)


def load_cifar(root):
    return Cifar10(path=str(write_cifar(root / "batches", python2_batch))).load(0)


def write_text(root):
    (root / "book.txt").write_text("one fish two fish red fish blue fish " * 20)
    return {"path": root / "book.txt", "length": 10}


def write_tokens(root):
    for name in ("train.bin", "val.bin"):
        np.arange(65036, 65536).astype("<u2").tofile(root / name)
    return {"path": root, "length": 7, "vocabulary": 65536}


def write_ratings(root):
    rows = [f"{user},{10 * film},{film % 5 + 0.5},1" for user in (3, 5, 8) for film in range(10)]
    (root / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rows]))
    return {"path": str(root)}


def write_parallel(root):
    samples.parallel(root)
    return {"path": root, "vocabulary": 300}


def whole(rows):
    """All rows of a batch's kind, padded where they are of unequal length."""
    return rows.index_select(0, torch.arange(len(rows)))


LEAF = ("celeba", "femnist", "reddit", "sent140", "shakespeare")


def write_leaf(name, root):
    getattr(samples, name)(root / name / "data")
    return {"path": str(root)}


def load_leaf(name, root):
    return DATASETS.find(name)(**write_leaf(name, root)).load(0)


NEW = ("amazon", "cifar100", "hugging_face", "image_folder", "table")


def load_sample(name, root):
    return DATASETS.find(name)(sample=True).load(0)


LOADERS = {
    "digits": lambda root: Digits().load(0),
    "idx": load_fashion,
    "movielens": lambda root: MovieLens(**write_ratings(root)).load(0),
    "parallel": lambda root: Parallel(**write_parallel(root)).load(0),
    "text": lambda root: Text(**write_text(root)).load(0),
    "tokens": lambda root: Tokens(**write_tokens(root)).load(0),
    "cifar10": load_cifar,
    **{name: partial(load_leaf, name) for name in LEAF},
    **{name: partial(load_sample, name) for name in NEW},
    "quadratic": lambda root: Quadratic(b="normal").load(0),
    "synthetic": lambda root: Synthetic(nodes=4, samples_per_node=50).load(0),
}


@pytest.fixture(params=list(DATASETS.classes()))
def loaded(request, tmp_path):
    return LOADERS[request.param](tmp_path)


def message_of(dataset):
    with pytest.raises(DatasetError) as caught:
        dataset.load(0)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Every dataset

FITTED = {
    "amazon": "", "cifar10": "mean", "cifar100": "mean", "celeba": "mean", "digits": "mean",
    "femnist": "mean", "hugging_face": "mean", "idx": "mean", "image_folder": "mean",
    "movielens": "users", "parallel": "vocabulary", "quadratic": "", "reddit": "vocabulary",
    "sent140": "", "shakespeare": "", "synthetic": "", "table": "mean", "text": "characters",
    "tokens": "",
}  # fmt: skip


@pytest.mark.parametrize("name", list(DATASETS.classes()))
def test_it_says_what_it_computed_from_its_training_samples(tmp_path, name):
    """A run with private steps makes no claim then."""
    fitted = LOADERS[name](tmp_path).fitted
    assert len(fitted) == bool(FITTED[name]) and all(FITTED[name] in what for what in fitted)


def test_known_numbers_normalize_instead_of_those_of_the_samples(loaded):
    names = {"mean": (3.0,), "std": 2.0}
    if loaded.train.has_ids:
        with pytest.raises(DatasetError, match=r"^dataset\.mean: the inputs are ids"):
            replace(from_object(loaded), **names).load(0)
        return
    given = from_object(replace(loaded, fitted=()), **names).load(0)
    for part in (given.train, given.test):
        inputs = part.inputs[:5].double()
        assert torch.allclose(part.batch(torch.arange(5)).fields[0].double(), (inputs - 3) / 2)
    assert given.fitted == ()
    each = [float(number) for number in range(2, 2 + loaded.shape[0])]
    given = from_object(loaded, mean=tuple(each), std=tuple(each)).load(0)
    expected = (loaded.train.inputs[:5].double().movedim(1, -1) - torch.tensor(each)) / torch.tensor(each)
    assert torch.allclose(given.train.batch(torch.arange(5)).fields[0].double().movedim(1, -1), expected)
    wrong = [{"mean": 1.0}, {"std": 1.0}, {"mean": (1.0,) * 99, "std": 1.0}]
    wrong += [{"mean": 0.5, "std": 0.3}] if loaded.train.inputs.dtype == torch.uint8 else []
    for options in wrong:
        assert message_of(from_object(loaded, **options)).startswith("dataset.")


def test_types_and_shapes(loaded):
    for part in (loaded.train, loaded.test):
        assert part.has_ids or part.inputs.dtype in (torch.uint8, torch.float32, torch.float64)
        if part.is_ragged:
            assert part.inputs.shape <= (len(part), *loaded.shape) and len(part.labels) == len(part)
            assert 0 <= part.labels.flatten().min() <= part.labels.flatten().max() < loaded.num_classes
            continue
        assert part.inputs.shape == (len(part), *loaded.shape)
        if part.labels.is_floating_point():
            assert loaded.num_classes == 1 and part.labels.shape == (len(part),)
            continue
        assert part.labels.shape[1:] in ((), loaded.shape) and len(part.labels) == len(part)
        assert part.has_ids or part.labels.dim() == 1
        assert 0 <= part.labels.numpy().min() <= part.labels.numpy().max() < loaded.num_classes


def test_a_batch_is_normalized_float32_in_the_order_requested(loaded):
    train, indices = loaded.train, torch.tensor([5, 0, 5])
    x, y = train.batch(indices)
    expected = train.inputs.index_select(0, indices).long()
    if not train.has_ids:
        wide = torch.promote_types(train.inputs.dtype, torch.float32)
        expected = ((train.inputs[indices].to(wide) - train.mean) / train.std).float()
    assert x.dtype == (torch.int64 if train.has_ids else torch.float32)
    assert x.shape == (3, *loaded.shape) or train.is_ragged
    assert torch.equal(x, expected)
    labels = train.labels.index_select(0, indices)
    assert torch.equal(y, labels if labels.is_floating_point() else labels.long())


def test_a_batch_never_writes_to_the_samples(loaded):
    before = whole(loaded.train.inputs)
    x, _ = loaded.train.batch(torch.arange(len(loaded.train)))
    x.zero_()
    assert torch.equal(whole(loaded.train.inputs), before)


def test_images_are_normalized_over_the_training_set(loaded):
    is_image = loaded.train.inputs.dtype == torch.uint8 and not loaded.train.has_ids
    if not is_image and not loaded.train.mean.dim():
        assert (loaded.train.mean, loaded.train.std) == (0, 1)
        return
    x, _ = loaded.train.batch(torch.arange(len(loaded.train)))
    channels = x.transpose(0, 1).flatten(1)
    assert torch.allclose(channels.mean(1), torch.zeros(len(channels)), atol=1e-4)
    assert torch.allclose(channels.std(1, correction=0), torch.ones(len(channels)), atol=1e-4)


@pytest.mark.parametrize("name", list(DATASETS.classes()))
def test_subsets_are_drawn_by_the_seed(name, tmp_path):
    path = {"idx": write_idx, "cifar10": lambda p: write_cifar(p, python2_batch)}
    options = {"path": str(path[name](tmp_path / "x"))} if name in path else {}
    write = {name: partial(write_leaf, name) for name in LEAF}
    write |= {"movielens": write_ratings, "text": write_text, "tokens": write_tokens}
    write |= {"parallel": write_parallel}
    options |= write[name](tmp_path) if name in write else {}
    options |= {"nodes": 20} if name == "quadratic" else {}
    options |= {"sample": True} if name in NEW else {}
    dataset = TypeAdapter(DATASETS.find(name)).validate_python(options | {"train_size": 8, "test_size": 3})
    first, again, other = (dataset.load(seed) for seed in (1, 1, 2))
    assert (len(first.train), len(first.test)) == (8, 3)
    assert torch.equal(whole(first.train.inputs), whole(again.train.inputs))
    assert not torch.equal(whole(first.train.inputs), whole(other.train.inputs))


def test_a_subset_keeps_inputs_labels_and_groups_together():
    numbers = torch.arange(5)
    part = Samples(numbers[:, None].float(), numbers * 2, groups=numbers * 3).subset(torch.tensor([1, 4]))
    assert (part.inputs.tolist(), part.labels.tolist(), part.groups.tolist()) == ([[1], [4]], [2, 8], [3, 12])


@pytest.mark.parametrize("name", list(DATASETS.classes()))
def test_options_are_checked_by_their_types(name):
    with pytest.raises(ValidationError):
        TypeAdapter(DATASETS.find(name)).validate_python({"train_size": 0})


def test_constant_images_have_deviation_one():
    mean, std = channel_statistics(torch.full((2, 1, 3, 3), 9, dtype=torch.uint8))
    assert (mean.item(), std.item()) == (9, 1)


@pytest.mark.slow
def test_importing_datasets_needs_no_vision_library():
    code = "import sys, decentnode.datasets; print({'sklearn', 'torchvision', 'pandas'} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.stdout == "set()\n", run.stderr


# digits


def test_digits_is_split_by_class_whatever_the_seed():
    first, two = Digits().load(0), Digits().load(1)
    assert (len(first.train), len(first.test), first.shape, first.num_classes) == (1437, 360, (1, 8, 8), 10)
    assert torch.equal(first.train.inputs, two.train.inputs)
    # The class sizes that the repository publishes for the test part, a fifth of each to within one.
    whole = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    test = first.test.labels.bincount()
    assert (first.train.labels.bincount() + test).tolist() == whole
    assert (test - torch.tensor(whole) / 5).abs().max() < 1
    assert first.train.inputs.max() == 16


# idx


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_reads_gzipped_and_plain_files(tmp_path, zipped):
    loaded = Idx(path=str(write_idx(tmp_path, zipped=zipped))).load(0)
    assert (len(loaded.train), len(loaded.test), loaded.shape, loaded.num_classes) == (12, 6, (1, 5, 4), 3)


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), zipped=st.booleans())
@settings(max_examples=30)
def test_idx_round_trip(tmp_path_factory, shape, zipped):
    array = RNG.integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path_factory.mktemp("idx") / "array"
    path.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))
    assert np.array_equal(read_idx(path, array.ndim).numpy(), array)


def test_emnist_images_are_turned_upright_and_letters_start_at_zero(tmp_path):
    write_idx(tmp_path, prefix="emnist-letters-", test="test", first_label=1)
    loaded = Idx(variant="emnist-letters", path=str(tmp_path)).load(0)
    stored = read_idx(tmp_path / "emnist-letters-train-images-idx3-ubyte.gz", 3)
    assert loaded.shape == (1, 4, 5)
    assert torch.equal(loaded.train.inputs[:, 0], stored.transpose(1, 2))
    assert loaded.train.labels.unique().tolist() == [0, 1, 2]


def test_emnist_letters_with_a_label_zero_are_refused(tmp_path):
    write_idx(tmp_path, prefix="emnist-letters-", test="test")
    file = tmp_path / "emnist-letters-train-labels-idx1-ubyte.gz"
    expected = f"{file}: holds a label 0, those of emnist-letters are 1..26"
    assert message_of(Idx(variant="emnist-letters", path=str(tmp_path))) == expected


def test_idx_is_found_through_the_environment_by_its_folder(tmp_path, monkeypatch):
    write_idx(tmp_path / "mnist")
    write_idx(tmp_path / "emnist", prefix="emnist-digits-", test="test")
    monkeypatch.setenv("DECENTNODE_DATASETS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for variant in ("mnist", "emnist-digits"):
        assert len(Idx(variant=variant).load(0).train) == 12
    # The files of kmnist have the same names as those of mnist; only a folder of its own counts.
    assert message_of(Idx(variant="kmnist")).startswith("dataset.path: no complete set of kmnist files in ")


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="package dataset-fashion-mnist is not installed")
def test_installed_fashion_mnist_is_found_by_itself(monkeypatch, tmp_path):
    monkeypatch.delenv("DECENTNODE_DATASETS", raising=False)
    monkeypatch.chdir(tmp_path)
    loaded = Idx().load(0)
    assert loaded.train.labels.bincount().tolist() == [6000] * 10
    assert loaded.test.inputs.shape == (10000, 1, 28, 28)


# cifar10


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_python_batches_of_older_and_newer_protocols_read_the_same(protocol):
    pixels, labels = read_batch(python3_batch(PIXELS, LABELS, protocol))
    assert np.array_equal(pixels, PIXELS)
    assert labels.tolist() == LABELS


def test_the_hand_written_python2_batch_is_a_true_pickle():
    batch = pickle.loads(python2_batch(PIXELS, LABELS), encoding="bytes")
    assert np.array_equal(batch[b"data"], PIXELS)
    assert batch[b"labels"] == LABELS


@pytest.mark.parametrize(
    ("encode", "folder", "suffix"),
    [
        (python2_batch, "cifar-10-batches-py", ""),
        (python3_batch, "cifar-10-batches-py", ""),
        (binary_batch, "cifar-10-batches-bin", ".bin"),
    ],
)
def test_cifar10_reads_its_formats(tmp_path, encode, folder, suffix):
    write_cifar(tmp_path / folder, encode, suffix)
    loaded = Cifar10(path=str(tmp_path)).load(0)
    assert (len(loaded.train), len(loaded.test), loaded.num_classes) == (35, 7, 10)
    assert np.array_equal(loaded.train.inputs[7:14].numpy(), PIXELS.reshape(7, 3, 32, 32))
    assert loaded.test.labels.tolist() == LABELS


class Harmful:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_batch_that_would_run_code_runs_nothing(tmp_path, protocol):
    directory, marker = write_cifar(tmp_path / "x", python2_batch), tmp_path / "marker"
    bad = pickle.dumps({"data": Harmful(marker), "labels": LABELS}, protocol=protocol)
    (directory / "data_batch_2").write_bytes(bad)
    expected = f"{directory}/data_batch_2: not a CIFAR-10 batch (TypeError: 'data' is not a numpy array)"
    assert message_of(Cifar10(path=str(directory))) == expected
    assert not marker.exists()
    pickle.loads(bad)
    assert marker.exists(), "the file was harmless, so the test showed nothing"


BROKEN_BATCHES = {
    "a list": (pickle.dumps([1]),
        "not a CIFAR-10 batch (AttributeError: 'list' object has no attribute 'items')"),
    "no labels": (pickle.dumps({"data": PIXELS}), "not a CIFAR-10 batch (KeyError: 'labels')"),
    "floats": (python3_batch(PIXELS.astype(np.float32), LABELS),
        "not a CIFAR-10 batch (TypeError: 'data' is not a row-major matrix of uint8)"),
    "a set": (pickle.dumps({1, 2}, protocol=4), "not a CIFAR-10 batch (it uses EMPTY_SET)"),
    "few labels": (python3_batch(PIXELS, LABELS[:6]), "6 labels for 7 images"),
    "label 10": (python3_batch(PIXELS, [*LABELS[:6], 10]), "labels 0..10, expected 0..9"),
    "one label": (python3_batch(PIXELS, 3), "labels of shape (), expected (n,)"),
    "labels in lists": (python3_batch(PIXELS, [[label] for label in LABELS]),
        "labels of shape (7, 1), expected (n,)"),
    "huge label": (python3_batch(PIXELS, [10**30] * 7),
        "not a CIFAR-10 batch (OverflowError: Python int too large to convert to C long)"),
    "gray": (python3_batch(PIXELS[:, :1024].copy(), LABELS),
        "images of shape (7, 1024), expected (n, 3072) with n > 0"),
}  # fmt: skip


@pytest.mark.parametrize("defect", BROKEN_BATCHES)
def test_a_broken_python_batch_is_named_with_its_defect(tmp_path, defect):
    content, message = BROKEN_BATCHES[defect]
    path = write_cifar(tmp_path / "x", python2_batch) / "test_batch"
    path.write_bytes(content)
    assert message_of(Cifar10(path=str(tmp_path / "x"))) == f"{path}: {message}"


@given(st.integers(0, 10**6), st.integers(0, 255), st.booleans())
@settings(max_examples=300)
def test_a_damaged_python_batch_never_raises_anything_but_value_error(position, value, cut):
    content = bytearray(python2_batch(PIXELS[:2, :3], LABELS[:2]))
    position %= len(content)
    content[position] = value
    try:
        read_batch(bytes(content[:position] if cut else content))
    except ValueError:
        return
    assert not cut


@pytest.mark.parametrize("path", [None, "my sets"])
def test_missing_files_are_looked_for_in_the_usual_places(tmp_path, monkeypatch, path):
    monkeypatch.delenv("DECENTNODE_DATASETS", raising=False)
    monkeypatch.chdir(tmp_path)
    places = "data or datasets (beside the configuration or in the current folder), /usr/share/datasets"
    command = f"decentnode download cifar10 --to {'data' if path is None else repr(path)}"
    assert message_of(Cifar10(path=path)).endswith(f" files in {path or places}; fetch them with: {command}")


def test_files_beside_the_configuration_are_found_from_anywhere(tmp_path, monkeypatch):
    """And stay found by what is saved with the run, which lies elsewhere."""
    monkeypatch.delenv("DECENTNODE_DATASETS", raising=False)
    monkeypatch.chdir(tmp_path)
    cifar = write_cifar(tmp_path / "project" / "data" / "cifar-10-batches-py", python2_batch)
    yaml = tmp_path / "project" / "x.yaml"
    yaml.write_text(
        "rounds: 1\ngraph: {name: ring, nodes: 3}\ndataset: cifar10\nmodel: lenet\n"
        "training: {optimizer: {name: SGD, lr: 0.1}, steps_per_round: 1}\n"
    )
    settings = config.load(yaml)
    assert settings.dataset.options["path"] == str(cifar)
    saved = tmp_path / "run.yaml"
    saved.write_text(config.dump(settings))
    assert config.load(saved) == replace(settings, name="x")
    own_folder = write_cifar(tmp_path / "own" / "cifar-10-batches-py", python2_batch)
    monkeypatch.setenv("DECENTNODE_DATASETS", "own")
    assert config.load(yaml).dataset.options["path"] == str(own_folder)


# synthetic


def gather_nodes(loaded):
    """Inputs and labels of every node, training and test together."""
    x = torch.cat([loaded.train.inputs, loaded.test.inputs]).double()
    groups = torch.cat([loaded.train.groups, loaded.test.groups])
    return [x[groups == k] for k in groups.unique()]


def test_synthetic_gives_each_node_a_fifth_for_testing():
    loaded = Synthetic(nodes=6, samples_per_node=50).load(0)
    assert loaded.train.groups.bincount().tolist() == [40] * 6
    assert loaded.test.groups.bincount().tolist() == [10] * 6


def test_synthetic_power_law_starts_at_fifty_and_has_a_heavy_tail():
    loaded = Synthetic(nodes=200).load(0)
    sizes = loaded.train.groups.bincount() + loaded.test.groups.bincount()
    # Median of 50 + lognormal(4, 2) is 50 + e^4 = 105; its 95th percentile is 50 + e^(4 + 2 * 1.645) = 1517.
    assert sizes.min() >= 50
    assert 80 < sizes.double().median() < 140
    assert sizes.max() > 1000


def test_synthetic_inputs_have_the_stated_covariance():
    (x,) = gather_nodes(Synthetic(nodes=1, samples_per_node=20_000).load(0))
    expected = torch.arange(1, 61).double() ** -1.2
    # The relative deviation of a variance estimate is sqrt(2 / n) = 0.01; five of them.
    assert torch.allclose(x.var(0), expected, rtol=0.05)
    correlation = torch.corrcoef(x.T) - torch.eye(60)
    assert correlation.abs().max() < 5 / 20_000**0.5


@pytest.mark.parametrize("beta", [0.0, 4.0])
def test_synthetic_means_vary_between_nodes_with_variance_beta(beta):
    nodes = gather_nodes(Synthetic(nodes=400, beta=beta, samples_per_node=20).load(0))
    centers = torch.stack([x.mean(0) for x in nodes])
    # The mean of v_k over its 60 entries is B_k plus N(0, 1/60), plus what 20 samples leave (under 0.01).
    spread = centers.mean(1).var().item()
    assert spread == pytest.approx(beta + 1 / 60, rel=0.4, abs=0.005)


def test_synthetic_labels_are_the_logistic_model_of_the_node():
    dataset = Synthetic(nodes=3, samples_per_node=40)
    loaded = dataset.load(7)
    for k in range(3):
        W, b = dataset._model(7, k)
        mine = loaded.train.groups == k
        scores = loaded.train.inputs[mine] @ torch.from_numpy(W).float().T + torch.from_numpy(b).float()
        assert torch.equal(scores.argmax(1), loaded.train.labels[mine])


def test_synthetic_iid_shares_model_and_inputs():
    dataset = Synthetic(nodes=50, samples_per_node=400, iid=True)
    assert np.array_equal(dataset._model(0, 0)[0], dataset._model(0, 9)[0])
    centers = torch.stack([x.mean(0) for x in gather_nodes(dataset.load(0))])
    assert centers.abs().max() < 5 / 400**0.5


def test_synthetic_depends_on_the_seed_only():
    first, again, other = (Synthetic(nodes=2, samples_per_node=10).load(seed) for seed in (0, 0, 1))
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert not torch.equal(first.train.inputs, other.train.inputs)
