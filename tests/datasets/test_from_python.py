"""Datasets that Python passes: what they are read as, and what is told about all others."""

import itertools
import os
import random
import signal
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)  # fmt: skip

from decentnode.config import loader
from decentnode.config.python_source import document_of
from decentnode.datasets import Samples
from decentnode.datasets.base import IGNORED
from decentnode.datasets.from_python import from_object
from decentnode.datasets.partition import Iid
from decentnode.datasets.ragged import Ragged
from decentnode.datasets.row_workers import RowWorkers
from decentnode.datasets.table_columns import numbers
from decentnode.errors import BadInput, DatasetError, GraphError, RunFailed
from decentnode.graph.networkx_graph import from_networkx
from decentnode.node.experiment import Experiment
from decentnode.training.evaluation import evaluate
from decentnode.training.minibatches import Minibatches, Shard
from tests.support.in_process import Nodes

X = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
PART = (X, Y)


class Rows(Dataset):
    """Samples that a function makes of their index."""

    def __init__(self, row=lambda i: (X[i], int(Y[i])), count=300):
        self.row, self.count = row, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.row(index)


class Stream(IterableDataset):
    def __iter__(self):
        return zip(X, Y, strict=True)


class SizedStream(Stream):
    def __len__(self):
        return len(X)


class Endless(Rows):
    __len__ = None


def at_times(row, again, every):
    """A function of an index that is `row`, and `again` at each `every`-th reading of all."""
    readings = itertools.count(1)
    return lambda index: (row if next(readings) % every else again)(index)


def wrong_of(row):
    return (Rows(row, 80), PART)


class Unseeded(Rows):
    """Rows with noise of a generator that no seed sets."""

    generator = np.random.default_rng()

    def __getitem__(self, index):
        return X[index] + float(self.generator.normal()), int(Y[index])


CHANGES = "is another sample at each reading, and no seed sets what it draws; draw from torch, numpy"
FRAME = pd.DataFrame({"a": [1.0, 2], "b": [3.0, 4]})
IDS = [[1, 2], [3], [], [4]]


@pytest.mark.parametrize(
    ("dataset", "line"),
    [
        ((Unseeded(), PART), f"Unseeded[0] {CHANGES}"),
        ((PART, Unseeded()), f"Unseeded[0] {CHANGES}"),
        # A flip of one picture in 50.
        (wrong_of(at_times(lambda i: (X[i], 0), lambda i: (-X[i], 0), every=97)), f"Rows[63] {CHANGES}"),
        ((ConcatDataset([TensorDataset(*PART), Unseeded()]), PART), "ConcatDataset[300] is another sample"),
        ((Endless(), PART), "Endless has no length; give it __len__, or tensors"),
        ((Rows(count=301), PART), "Rows[300] raises IndexError: index 300 is out of bounds"),
        ((Rows(count=0), PART), "Rows has no samples"),
        (wrong_of(lambda i: {"x": X[i], "kind": 0}), "Rows[0] has no column label; name the one that has it"),
        (wrong_of(lambda i: {"x": "text", "y": 0}), "Rows[0] has no column of numbers or images beside 'y'"),
        (wrong_of(lambda i: {"x": X[i], "y": 0} if i < 7 else {"x": X[i]}), "Rows[7] has no 'y', which"),
        (wrong_of(lambda i: X[i]), "Rows[0] is Tensor of 5, and no row (inputs, label); return a tuple, or"),
        (wrong_of(lambda i: (X[i][: 1 + i % 3], 0)), "inputs of Rows have the shapes (1,) and (2,); all"),
        (wrong_of(lambda i: (X[i], None)), "sample 0 has no label; leave such samples out"),
        ((DataLoader(TensorDataset(*PART)), PART), "a part is DataLoader; pass its dataset (loader.dataset)"),
        (DataLoader(TensorDataset(*PART)), "a part is DataLoader; pass its dataset (loader.dataset)"),
        (TensorDataset(X), "TensorDataset has one tensor; its last one must be the labels"),
        ((X, X[:7], Y, Y[:7]), "4 arrays are given; write them as ((X_train, y_train), (X_test, y_test))"),
        (((FRAME, [0, 1]), (FRAME[["b", "a"]], [0, 1])), "the test inputs have the columns ['b', 'a'], the"),
        (SimpleNamespace(), "a part is SimpleNamespace; a dataset from Python is (train, test)"),
        ((([[1.0], [1.0, 2.0]], [0, 1]), PART), "inputs of a part have the shapes (1,) and (2,); all must"),
        ((IDS, [0, 1, 0, 1]), "inputs of a part: row 2 is empty; leave such samples out"),
        ((["a", "b"], [0, 1]), "the inputs of a part are texts; tokenize them"),
        (((X, Y), (X, ["a", "b"] * 150)), "labels are numbers in one part, and texts in another"),
        (((X, Y + 1), (X, Y + 1)), "labels are 1 to 2; classes are numbered from 0: labels - 1, or say"),
        (((X, 2 * Y - 1),) * 2, "labels are -1 and 1; classes are numbered from 0: (labels + 1) // 2, or"),
        (((X, Y[:, None]), (X, Y[:, None])), "train labels have the shape (n, 1); a class each"),
        (((X, torch.eye(2)[Y]), (X, torch.eye(2)[Y])), "labels have a 1 for each class; give its number"),
        (((X, Y[:7]), PART), "a part has 300 inputs and 7 labels"),
        (((X + 1j, Y), PART), "a tensor is complex; give real and imaginary parts"),
        (((X.to_sparse(), Y), PART), "a tensor is sparse; call .to_dense()"),
        (((np.zeros((9, 32, 32, 3), np.uint8), [0] * 9), PART), "images have the shape (9, 32, 32, 3)"),
        ((PART, PART, PART), '3 parts are given; name them: {"train": ..., "test": ..., "validation": ...}'),
        ({"fit": PART, "test": PART}, "there is no part train, but fit, test"),
        ((Samples(X, Y), PART), "one part is Samples, and the other is not; a dataset from Python is"),
    ],
)  # fmt: skip
def test_what_is_no_dataset_is_one_line_with_its_remedy(dataset, line):
    with pytest.raises(DatasetError) as raised:
        from_object(dataset).load(0)
    text = str(raised.value)
    assert line in text and text.startswith("dataset") and "\n" not in text


def test_pairs_of_a_dataset_and_tables_of_pandas_are_samples():
    wanted = from_object((PART, PART)).load(0)
    frame = pd.DataFrame(X.numpy(), columns=list("abcde"))
    for part in (Rows(), TensorDataset(*PART), ConcatDataset([Rows()]), (frame, pd.Series(Y.numpy())),
                 Subset(Rows(), range(300)), Samples(X, Y)):  # fmt: skip
        loaded = from_object((part, part)).load(0)
        assert torch.equal(loaded.train.inputs, X) and torch.equal(loaded.test.labels, Y)
        assert (loaded.num_classes, loaded.shape) == (wanted.num_classes, wanted.shape)


def test_rows_of_16_bits_and_without_a_number_are_the_same_at_each_reading():
    missing = X.clone()
    missing[7, 2] = torch.nan
    for inputs in (X.bfloat16(), missing):
        part = Rows(lambda i, inputs=inputs: (inputs[i], int(Y[i])))
        loaded = from_object((part, PART)).read(0).train.inputs
        assert torch.equal(loaded.nan_to_num(), inputs.float().nan_to_num())
    with pytest.raises(DatasetError, match="inputs of 1 sample are not finite, first those of sample 7"):
        from_object((part, PART)).load(0)


def test_ids_of_a_vocabulary_may_lack_0():
    ids = torch.tensor([[1, 2, 3], [3, 1, 2]])
    assert from_object(((ids, ids), (ids, ids))).load(0).num_classes == 4


def test_rows_of_unequal_length_are_samples_whose_test_may_have_the_longest():
    ids, starts = torch.tensor([1, 2, 3, 1, 2, 4]), torch.tensor([0, 3])
    train, test = (
        Samples(Ragged(ids, starts, lengths), Ragged(ids, starts, lengths, fill=IGNORED))
        for lengths in (torch.tensor([2, 2]), torch.tensor([3, 3]))
    )
    loaded = from_object((train, test)).load(0)
    assert (loaded.num_classes, loaded.shape) == (5, (3,))


def test_inputs_of_64_bits_stay_so_until_they_are_normalized():
    times = 1.7e9 + torch.arange(60, dtype=torch.float64).repeat(5)
    inputs = torch.stack([times - times.mean(), X[:, 0].double()], 1)
    loaded = from_object(((inputs, Y), (inputs, Y))).load(0)
    assert len(loaded.to(torch.float32).train.batch(torch.arange(300)).fields[0][:, 0].unique()) == 60
    assert torch.equal(loaded.to(torch.float64).train.batch(torch.arange(300)).fields[0], inputs)
    inputs[:, 0] = times
    loaded = from_object(((X[:, :2], Y), (inputs, Y))).load(0)
    with pytest.raises(DatasetError, match="feature 0 has distinct values that are equal in the 32 bits"):
        loaded.to(torch.float32)
    assert torch.equal(loaded.to(torch.float64).test.batch(torch.arange(300)).fields[0], inputs)


def test_values_that_differ_by_the_rounding_of_64_bits_were_equal_before():
    tenths = torch.randint(1, 11, (3, 300), generator=torch.Generator().manual_seed(1)).double() / 10
    means = ((tenths / 3).sum(0))[:, None]
    assert len(means.unique()) > len(means.float().unique()) / 0.75
    from_object(((means, Y), (means, Y))).load(0).to(torch.float32)
    # These differ by less than some last bits, and were no floats before.
    microseconds = 1_700_000_000_000_000_000 + 1000 * np.arange(300)
    assert len(np.unique(numbers(microseconds, "time"))) == 300


def test_edges_of_networkx_that_mixing_would_not_follow_are_one_line():
    ring = nx.cycle_graph(4)
    expected = from_networkx(ring)
    for same in (nx.MultiGraph(ring), nx.Graph([*ring.edges, (2, 2)])):
        assert from_networkx(same) == expected
    nx.set_edge_attributes(ring, 2.5, "weight")
    assert from_networkx(ring) == expected, "all edges alike"
    double = nx.MultiDiGraph([*nx.DiGraph(ring).edges, (0, 1)])
    for graph, line in (
        (
            nx.MultiGraph([*ring.edges, (1, 0)]),
            "several edges between two nodes; networkx.Graph(graph) joins",
        ),
        (double, "several edges between two nodes; networkx.DiGraph(graph)"),
        (
            nx.Graph([*ring.edges(data=True), (0, 2, {"weight": 1.0})]),
            "the networkx graph have weights; say",
        ),
        (nx.Graph([*ring.edges(data=True), (0, 2)]), "the networkx graph have weights; say"),
    ):
        with pytest.raises(GraphError) as raised:
            from_networkx(graph)
        assert line in str(raised.value)


def test_both_parts_have_one_unit_and_the_byte_order_of_a_file_is_none():
    images, labels = torch.zeros(6, 8, 8, dtype=torch.uint8), torch.arange(6) % 2
    for parts in ((images, images / 255), (images / 255, images)):
        with pytest.raises(DatasetError, match="so they have other units; prepare both in one way"):
            from_object(tuple((part, labels) for part in parts)).load(0)
    rows = np.arange(12.0).reshape(6, 2)
    swapped = rows.astype(">f4"), labels.numpy().astype(">i8")
    loaded = from_object((swapped, swapped)).load(0)
    assert torch.equal(loaded.train.inputs, torch.from_numpy(rows).float())
    assert torch.equal(loaded.train.labels, labels)
    masked = np.ma.masked_greater(rows, 5)
    with pytest.raises(DatasetError, match=r"an array has masked values; fill them: array.filled"):
        from_object(((masked, labels), (rows, labels))).load(0)


# What a user may have, and the plain form of the same samples: each gives the same models.

PIXELS = torch.randint(0, 256, (120, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
SOME = (X[:60], Y[:60])
PLAIN = (PART, SOME)
NAMES = ["yes" if label else "no" for label in Y]
IMAGES = [Image.fromarray(pixels.permute(1, 2, 0).numpy()) for pixels in PIXELS]


class ByName(nn.Module):
    """Takes two inputs in another order than samples have them."""

    def __init__(self):
        super().__init__()
        self.of_a, self.of_b = nn.Linear(5, 2), nn.Linear(5, 2, bias=False)

    def forward(self, b, a=None):
        return self.of_a(a) + self.of_b(b)


class ByPlace(ByName):
    """The same network by place."""

    def forward(self, first, second):
        return super().forward(second, first)


class OnlyA(ByName):
    """Takes other inputs."""

    def forward(self, a, c):
        return self.of_a(a) + c


class Flat(nn.Sequential):
    """A network for images."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(192, 2))


class Stream(IterableDataset):
    def __iter__(self):
        return zip(X, Y, strict=True)


def rows_of(count):
    return Rows(count=count)


def lazily(count):
    return Rows(lambda index: {"a": X[index], "b": X[index].flip(0), "label": NAMES[index]}, count)


def part_of_library(count, **columns):
    import datasets

    by_name = {"x": X[:count].tolist(), "label": NAMES[:count], **columns}
    return datasets.Dataset.from_dict(by_name).class_encode_column("label")


def dict_of_library():
    import datasets

    return datasets.DatasetDict(train=part_of_library(300), test=part_of_library(60))


def images_of_library():
    import datasets

    return datasets.Dataset.from_dict({"image": IMAGES, "label": NAMES[:120]})


def yielded(count=300):
    yield from zip(X[:count], Y[:count], strict=True)


def two(count):
    return {"a": X[:count], "b": X[:count].flip(1), "label": Y[:count]}


TWO = tuple(Samples(X[:count], Y[:count], more=(X[:count].flip(1),)) for count in (300, 60))
SPLIT = {"test_fraction": 0.25}
IDS = [[1 + (i + k) % 6 for k in range(2 + i % 3)] for i in range(60)]
FORMS_OF_PYTHON = {
    "arrays": (((X.numpy(), Y.numpy()), (X[:60].numpy(), Y[:60].numpy())), {}, PLAIN, None),
    "lists": (((X.tolist(), Y.tolist()), (X[:60].tolist(), Y[:60].tolist())), {}, PLAIN, None),
    "parts by name": ({"train": PART, "test": SOME}, {}, PLAIN, None),
    "TensorDataset": ((TensorDataset(*PART), TensorDataset(*SOME)), {}, PLAIN, None),
    "Samples": ((Samples(*PART), Samples(*SOME)), {}, PLAIN, None),
    "rows of a Dataset": ((rows_of(300), rows_of(60)), {}, PLAIN, None),
    "rows per step": ((rows_of(300), rows_of(60)), {"rows": "per_step"}, PLAIN, None),
    "dicts of one input": (({"x": X, "y": Y}, {"x": X[:60], "y": Y[:60]}), {}, PLAIN, None),
    "a column named": ({"name": {"x": X, "kind": Y, "id": Y}}, {"label": "kind", "inputs": ["x"], **SPLIT},
                       {"name": PART, **SPLIT}, None),
    "columns": ({"x": X, "label": Y}, {}, {"name": PART}, None),
    "columns of numbers": ({"name": {**dict(zip("abcde", X.T, strict=True)), "label": Y}}, SPLIT,
                           {"name": PART, **SPLIT}, None),
    "one part": (PART, SPLIT, {"name": TensorDataset(*PART), **SPLIT}, None),
    "one Dataset": (rows_of(300), SPLIT, {"name": PART, **SPLIT}, None),
    "one Dataset per step": (rows_of(300), {"rows": "per_step", **SPLIT}, {"name": PART, **SPLIT}, None),
    "texts": (((X, NAMES), (X[:60], NAMES[:60])), {}, PLAIN, None),
    "texts in order": (((X, NAMES), (X[:60], NAMES[:60])), {"classes": ["yes", "no"]},
                       ((X, 1 - Y), (X[:60], 1 - Y[:60])), None),
    "numbers in order": (((X, 2 * Y - 1), (X[:60], 2 * Y[:60] - 1)), {"classes": [-1, 1]}, PLAIN, None),
    "truth values": (((X, Y.bool()), (X[:60], Y[:60].bool())), {}, PLAIN, None),
    "several inputs": ((TensorDataset(X, X.flip(1), Y), TensorDataset(*(t[:60] for t in (X, X.flip(1), Y)))),
                       {}, TWO, ByPlace),
    "inputs in a tuple": ((((X, X.flip(1)), Y), ((X[:60], X[:60].flip(1)), Y[:60])), {}, TWO, ByPlace),
    "inputs by name": ({"train": two(300), "test": two(60)}, {}, TWO, ByName),
    "rows by name": ((lazily(300), lazily(60)), {}, TWO, ByName),
    "rows by name per step": ((lazily(300), lazily(60)), {"rows": "per_step"}, TWO, ByName),
    "images": (Rows(lambda i: (IMAGES[i], NAMES[i]), 120), {}, (PIXELS, Y[:120]), Flat),
    "images per step": (Rows(lambda i: (IMAGES[i], NAMES[i]), 120), {"rows": "per_step"},
                        (PIXELS, Y[:120]), Flat),
    "a function": (dict_of_tensors := lambda: {"train": PART, "test": SOME}, {}, PLAIN, None),
    "DatasetDict": (dict_of_library, {}, PLAIN, None),
    "Dataset of Hugging Face": (lambda: part_of_library(300, text=NAMES), SPLIT,
                                {"name": PART, **SPLIT}, None),
    "the same per step": (lambda: part_of_library(300), {"rows": "per_step", **SPLIT},
                          {"name": PART, **SPLIT}, None),
    "images of Hugging Face": (images_of_library, {}, (PIXELS, Y[:120]), Flat),
    "a stream": ((Stream(), SOME), {}, ((yielded, SOME)), None),
    "a stream of Hugging Face": (lambda: (part_of_library(300).to_iterable_dataset(), SOME), {},
                                 (Stream(), SOME), None),
}  # fmt: skip
"""By name: the form, its options, the plain form, and the model (None: logistic regression)."""


def models_of(dataset, directory, model=None, first=0):
    """The vectors of two nodes after two rounds, and their scores."""
    values = {
        "graph": {"name": "ring", "nodes": 2}, "dataset": dataset, "model": model or "logistic_regression",
        "training": {"optimizer": {"name": "SGD", "lr": 0.2}, "batch_size": 16, "steps_per_round": 3},
        "rounds": 2, "communication": "inproc",
    }  # fmt: skip
    experiment = Experiment.from_settings(loader.load(partial(document_of, values)))
    nodes = Nodes(experiment, directory).begin()
    nodes.run(0, 2)
    vectors = [node.training.vector.values.clone() for node in nodes.nodes]
    scores = [evaluate(node.training.objective, experiment.plan.samples) for node in nodes.nodes]
    return vectors, scores, experiment.samples.dataset


@pytest.mark.parametrize("form", FORMS_OF_PYTHON)
def test_each_form_gives_the_models_of_the_plain_form(form, tmp_path):
    given, options, plain, model = FORMS_OF_PYTHON[form]
    if model is not None:
        torch.manual_seed(0)
        model = model()
    is_section = isinstance(given, dict) and ("train" in given or "name" in given)
    section = {**given, **options} if is_section else {"name": given, **options}
    vectors, scores, dataset = models_of(section, tmp_path / "form", model)
    if model is not None and type(model) is ByName:
        torch.manual_seed(0)
        model = ByPlace()
    wanted, wanted_scores, _ = models_of(plain, tmp_path / "plain", model)
    assert all(map(torch.equal, vectors, wanted)) and scores == wanted_scores
    assert dataset.class_names in ((), ("no", "yes"), ("yes", "no"), ("-1", "1"))


class Noisy(Rows):
    """Rows with noise, and a label of a class without a number."""

    def __getitem__(self, index):
        noise = torch.randn(5) + float(np.random.rand()) + random.random()
        return X[index] + noise, NAMES[index]


def drawn_batches(dataset, rank, count, state=None):
    """So many batches of a rank, and the states before them."""
    train = from_object(dataset, classes=("yes", "no")).load(3).train
    minibatches = Minibatches(Shard(train, Iid().split(train, 2, 3)[rank], 3, rank=rank), 32)
    if state is not None:
        minibatches.load_state_dict(state)
    states, batches = [], []
    for _ in range(count):
        states.append(minibatches.state_dict())
        batches.append(minibatches.next())
    return batches, states


def noisy_stream():
    rows = Noisy()
    yield from (rows[index] for index in range(300))


NAMED = (X, NAMES)


@pytest.mark.parametrize("dataset", [(Noisy(), NAMED), (Noisy(), Noisy()), (noisy_stream, NAMED)])
def test_what_rows_draw_is_the_same_again_and_after_a_resume(dataset):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    batches, states = drawn_batches(dataset, 0, 12)
    assert torch.equal(torch.get_rng_state(), before), "the caller's generators stay"
    torch.manual_seed(2)
    random.seed(2)
    again, _ = drawn_batches(dataset, 0, 12)
    later, _ = drawn_batches(dataset, 0, 5, states[7])
    for one, other in (*zip(batches, again, strict=True), *zip(batches[7:], later, strict=True)):
        assert torch.equal(one.fields[0], other.fields[0]) and torch.equal(one.labels, other.labels)
    rows = torch.cat([batch.fields[0] for batch in batches])
    assert len(rows.unique(dim=0)) == len(rows), "each epoch draws anew"
    others, _ = drawn_batches(dataset, 1, 12)
    assert len(torch.cat([rows, *(batch.fields[0] for batch in others)]).unique(dim=0)) == 2 * len(rows)
    test = from_object(dataset).load(3).test
    assert all(map(torch.equal, test.batch(torch.arange(9)), test.batch(torch.arange(9))))


def test_parts_of_the_library_may_number_their_classes_in_other_ways():
    import datasets

    train, test = part_of_library(300), part_of_library(60)
    other = test.cast_column("label", datasets.Value("int64")).map(lambda row: {"label": 1 - row["label"]})
    other = other.cast_column("label", datasets.ClassLabel(names=["yes", "no"]))
    given = datasets.DatasetDict(train=train, test=other, unsupervised=test)
    loaded = from_object(given).load(0)
    assert loaded.class_names == ("no", "yes") and torch.equal(loaded.test.labels, Y[:60])
    assert loaded.notices == ("dataset: the part unsupervised is left out",)
    with pytest.raises(DatasetError, match=r"^dataset\.label: the parts number their classes in different"):
        from_object(given, rows="per_step").load(0)


def test_workers_read_the_same_bits_and_tell_what_fails():
    parts = (Noisy(), NAMED)
    alone, beside = (from_object(parts, workers=workers).load(3).train for workers in (0, 2))
    shards = [Shard(samples, torch.arange(300), 3, rank=1) for samples in (alone, beside)]
    both = [Minibatches(shard, 31, reshuffle=True) for shard in shards]
    for _ in range(2):
        for _ in range(4):
            one, other = (minibatches.next() for minibatches in both)
            assert torch.equal(one.fields[0], other.fields[0]) and torch.equal(one.labels, other.labels)
        for minibatches in both:
            minibatches.begin_round()
    rows = torch.arange(300)
    assert torch.equal(alone.batch(rows).fields[0], beside.batch(rows).fields[0])
    workers = beside.reader._processes
    assert len(workers) == 2 and not any(worker.has_ended() for worker in workers)
    rows_of_some = Rows(lambda i: (X[i], 0) if i < 90 else 1 / 0, 100)
    failing = from_object((rows_of_some, PART), rows="per_step", workers=2)
    with pytest.raises(DatasetError, match=r"^dataset: Rows\[90\] raises ZeroDivisionError"):
        failing.load(0)
    Noisy.__getitem__, getitem = lambda self, index: 1 / 0, Noisy.__getitem__
    try:
        broken = replace(beside, reader=RowWorkers(beside.reader.dataset_rows, 2))
        with pytest.raises(DatasetError, match=r"^dataset: Noisy\[0\] raises ZeroDivisionError"):
            broken.batch(rows)
    finally:
        Noisy.__getitem__ = getitem
    os.kill(workers[0].pid, signal.SIGKILL)
    workers[0].has_ended(10)
    with pytest.raises(RunFailed, match=r"dataset\.workers: a process that reads rows has ended"):
        beside.batch(rows)
    with pytest.raises(DatasetError, match=r"^dataset\.workers: no rows of a Dataset are read per step"):
        from_object(PLAIN, workers=2).load(0)


def test_each_rank_reads_every_nth_sample_of_a_stream_pass_after_pass():
    def numbers(end=None):
        for number in itertools.islice(itertools.count(), end):
            yield {"x": torch.tensor([float(number)]), "label": number % 3}

    tests = (torch.zeros(3, 1), torch.arange(3))
    for make, options, size, last in (
        (partial(numbers, 10), {}, 10, 10),
        (partial(numbers, 10), {"test_size": 4}, 6, 10),
        (numbers, {"train_size": 10}, 10, 10_000),
    ):
        given = make if "test_size" in options else (make, tests)
        loaded = from_object(given, **options).load(0)
        assert len(loaded.train) == size and loaded.num_classes == 3 and "every n-th" in loaded.notices[0]
        seen = []
        for rank, part in enumerate(Iid().split(loaded.train, 2, 0)):
            minibatches = Minibatches(Shard(loaded.train, part, 0, rank=rank), 2)
            values = torch.cat([minibatches.next().fields[0][:, 0] for _ in range(9)])
            in_pass = [number for number in range(last - size if size < 10 else 0, last)][rank::2]
            assert values.tolist() == list(itertools.islice(itertools.cycle(in_pass), len(values)))
            seen.append({*values.tolist()})
        assert not seen[0] & seen[1]


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"dataset.partition": "dirichlet"}, "dataset.partition: dirichlet deals samples that are known"),
        ({"dataset.rows": "once"}, "dataset.rows: samples of a stream are read when they come"),
        ({"dataset.skew": [{"name": "noise"}]}, "dataset.skew: samples are changed once at the start, and"),
        ({"dataset.validation": {"source": "train", "size": 9}}, "dataset.validation.source: no training"),
        ({"training.privacy": {"name": "dp_sgd", "noise": 1.0, "clip": 1.0, "delta": 0.1}},
         "training.privacy: it draws"),
        ({"dataset": (iter, 0)}, "dataset: a part has builtin_function_or_method as a column; a dataset"),
        ({"dataset": (partial(yielded, 0), SOME)}, "dataset: yielded has no further samples"),
        ({"dataset": Stream()}, "dataset.test_size: a stream has no test part; give one"),
        ({"dataset": (PART, Stream())}, "dataset: the part test is a stream, and"),
        ({"dataset": (yielded(), PART)}, "dataset: a generator ends after one pass; give the"),
        ({"dataset": {"name": Stream(), "test_size": 400}}, "dataset.test_size: 400 samples asked for"),
        ({"dataset.clases": [0]}, "dataset.clases: unknown option of object:"),
        ({"dataset.classes": ["a"]}, "dataset.classes: has 1 names, and there are 2 classes"),
        ({"dataset": {"name": (X, NAMES), "classes": ["no"]}}, "dataset.classes: lacks 'yes', which is the"),
        ({"dataset": {"name": two(300), "inputs": ["a", "c"]}}, "dataset.inputs: the part train has no"),
        ({"dataset": {"name": PART, "label": "kind"}}, "dataset.label: a part has no column 'kind'"),
        ({"dataset": {"name": PLAIN, "test_fraction": 0.5}}, "dataset.test_fraction: there is a test part;"),
        ({"dataset": {"name": (Noisy(), SOME), "rows": "once"}}, "dataset.rows: Noisy has other samples at"),
        ({"dataset": two(300), "model": OnlyA()}, "dataset.inputs: OnlyA takes a, c, and no 'b'; name the"),
    ],
)  # fmt: skip
def test_what_a_form_cannot_be_used_for_is_one_line(overrides, line):
    values = {
        "graph": {"name": "ring", "nodes": 2}, "model": "logistic_regression",
        "dataset": {"name": (Stream(), SOME)},
        "training": {"optimizer": {"name": "SGD", "lr": 0.2}, "batch_size": 16, "steps_per_round": 3},
        "rounds": 2,
    }  # fmt: skip
    if isinstance(overrides.get("dataset"), dict) and "name" not in overrides["dataset"]:
        overrides = {**overrides, "dataset": {"name": overrides["dataset"]}}
    with pytest.raises(BadInput) as raised:
        Experiment.from_settings(loader.load(partial(document_of, values | overrides)))
    assert line in str(raised.value) and "\n" not in str(raised.value)


OWN_DATA = """\
import torch


class Mine(torch.utils.data.Dataset):
    def __init__(self, end: int = 40, train: bool = True):
        self.end = end if train else 10

    def __len__(self):
        return self.end

    def __getitem__(self, index):
        return torch.tensor([index / 40, 1.0]), "even" if index % 2 == 0 else "odd"


def load(end=40):
    return {"train": Mine(end), "test": Mine(end, False)}


def stream(end=40):
    yield from (Mine()[index] for index in range(end))
"""


def test_files_name_datasets_of_torch_and_functions(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "a.yaml"
    rest = (
        "model: logistic_regression\nrounds: 2\ngraph: {name: ring, nodes: 2}\n"
        "training: {optimizer: {name: SGD, lr: 1.0}, steps_per_round: 1}\n"
    )
    for name, options in (
        ("Mine", "end: 30, test: {train: false}"), ("load", "end: 30"), ("load", "end: 30, rows: per_step"),
        ("stream", "end: 40, test_size: 10"),
    ):  # fmt: skip
        section = f"{{name: 'own_data:{name}', {options}, classes: [odd, even]}}"
        file.write_text(f"dataset: {section}\n{rest}")
        dataset = Experiment.from_yaml(file).samples.dataset
        assert (len(dataset.train), len(dataset.test)) == (30, 10) and dataset.class_names == ("odd", "even")
        inputs, labels = dataset.test.batch(torch.arange(4))
        assert (labels == 1 - torch.arange(4) % 2).all() and torch.equal(inputs[:, 0], torch.arange(4) / 40)
    file.write_text(f"dataset: {{name: 'own_data:Mine', ent: 3}}\n{rest}")
    with pytest.raises(BadInput, match=r"a.yaml:1 dataset.ent: unknown option of own_data:Mine; did you"):
        Experiment.from_yaml(file)
