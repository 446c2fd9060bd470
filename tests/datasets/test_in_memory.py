"""Datasets that Python passes: what they are read as, and what is told about all others."""

import itertools
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)  # fmt: skip

from decentnode.config.python_source import document_of, passed_plugin
from decentnode.core.registry import DATASETS
from decentnode.datasets import Samples
from decentnode.datasets.base import IGNORED
from decentnode.datasets.in_memory import in_memory
from decentnode.datasets.ragged import Ragged
from decentnode.datasets.table_columns import numbers
from decentnode.errors import BadInput, DatasetError, GraphError
from decentnode.graph.networkx_graph import from_networkx

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


def random_row(index):
    return X[index] + torch.randn(5), int(Y[index])


def random_label(index):
    return X[index], int(torch.randint(1000, ()))


CHANGES = "is another sample at each reading, as by a random transform, but it is read once; leave that out"
FRAME = pd.DataFrame({"a": [1.0, 2], "b": [3.0, 4]})
NO_LENGTH = "it has no length and no order; collect what it yields as tensors (inputs, labels)"


@pytest.mark.parametrize(
    ("dataset", "line"),
    [
        (wrong_of(random_row), f"Rows[0] {CHANGES}"),
        (wrong_of(random_label), f"Rows[0] {CHANGES}"),
        ((PART, Rows(random_row)), f"Rows[0] {CHANGES}"),
        # A flip of one picture in 50.
        (wrong_of(at_times(lambda i: (X[i], 0), lambda i: (-X[i], 0), every=97)), f"Rows[16] {CHANGES}"),
        ((Subset(Rows(random_row), [5, 7]), PART), f"Subset[0] {CHANGES}"),
        ((ConcatDataset([TensorDataset(*PART), Rows(random_row)]), PART), f"ConcatDataset[300] {CHANGES}"),
        ((Stream(), PART), f"a part is Stream; {NO_LENGTH}"),
        ((PART, SizedStream()), f"a part is SizedStream; {NO_LENGTH}"),
        ((ChainDataset([Stream()]), PART), f"a part is ChainDataset; {NO_LENGTH}"),
        ((Endless(), PART), "Endless has no length; give it __len__, or tensors"),
        ((Rows(count=301), PART), "Rows[300] raises IndexError: index 300 is out of bounds"),
        ((Rows(count=0), PART), "Rows has no samples"),
        (wrong_of(lambda i: {"x": X[i], "y": 0}), "Rows[0] is dict of 2, and no pair (input, label)"),
        (wrong_of(lambda i: (X[i], X[i], 0)), "Rows[0] is tuple of 3, and no pair (input, label)"),
        (wrong_of(lambda i: X[i]), "Rows[0] is Tensor of 5, and no pair (input, label)"),
        (wrong_of(lambda i: (X[i][: 1 + i % 3], 0)), "inputs of Rows have the shapes (1,) and (2,)"),
        (wrong_of(lambda i: (X[i], "cat")), "str is no tensor of numbers; number classes: numpy.unique"),
        (wrong_of(lambda i: (Image.new("RGB", (8, 9)), 0)), "images have the shape (80, 9, 8, 3),"),
        ((DataLoader(TensorDataset(*PART)), PART), "a part is DataLoader; pass its dataset (loader.dataset)"),
        (DataLoader(TensorDataset(*PART)), "DataLoader is no pair of parts; pass its dataset"),
        ((TensorDataset(X, X, Y),) * 2, "a part is TensorDataset; it has 3 tensors"),
        (TensorDataset(*PART), "TensorDataset is no pair of parts; it has 2 tensors"),
        ((FRAME, PART), "a part is DataFrame; give (frame[features].to_numpy()"),
        (((FRAME, [0, 1]), (FRAME[["b", "a"]], [0, 1])), "the test inputs have the columns ['b', 'a'], the"),
        (SimpleNamespace(save_to_disk=None), "SimpleNamespace is no pair of parts; write it with"),
        (([[[1.0], [1.0, 2.0]], [0, 1]], PART), "list is no tensor of numbers; a dataset from Python is"),
        (((X, np.array(["a", "b"] * 150)), PART), "ndarray is no tensor of numbers; number classes: numpy"),
        (((X, Y + 1), (X, Y + 1)), "labels are 1 to 2; classes are numbered from 0: labels - 1"),
        (((X, 2 * Y - 1),) * 2, "labels are -1 and 1; classes are numbered from 0: (labels + 1) // 2"),
        (((X, Y[:, None]), (X, Y[:, None])), "labels have the shape (n, 1); a class each"),
        (((X, torch.eye(2)[Y]), (X, torch.eye(2)[Y])), "labels have a 1 for each class; give its number"),
        (((X + 1j, Y), PART), "a tensor is complex; give real and imaginary parts"),
        (((X.to_sparse(), Y), PART), "a tensor is sparse; call .to_dense()"),
        (((np.zeros((9, 32, 32, 3), np.uint8), [0] * 9), PART), "images have the shape (9, 32, 32, 3)"),
        ((PART, PART, PART), "3 parts are given; a dataset from Python is (train, test)"),
    ],
)  # fmt: skip
def test_what_is_no_dataset_is_one_line_with_its_remedy(dataset, line):
    with pytest.raises(DatasetError) as raised:
        passed_plugin(DATASETS, dataset)
    assert str(raised.value).startswith(f"dataset: {line}") and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["DatasetDict", "dict"])
def test_parts_by_name_are_one_line(name):
    parts = {"train": PART, "test": PART}
    if name == "DatasetDict":
        parts = type(name, (dict,), {"save_to_disk": None})(parts)
    remedy = "write it with save_to_disk" if name == "DatasetDict" else "give the parts without names"
    with pytest.raises(BadInput, match=f"^arguments: dataset: {name} is no pair of parts; {remedy}"):
        document_of({"dataset": parts})


def test_pairs_of_a_dataset_and_tables_of_pandas_are_samples():
    wanted = in_memory((PART, PART)).load(0)
    frame = pd.DataFrame(X.numpy(), columns=list("abcde"))
    for part in (Rows(), TensorDataset(*PART), ConcatDataset([Rows()]), (frame, pd.Series(Y.numpy())),
                 Subset(Rows(), range(300)), Samples(X, Y)):  # fmt: skip
        loaded = in_memory((part, part)).load(0)
        assert torch.equal(loaded.train.inputs, X) and torch.equal(loaded.test.labels, Y)
        assert (loaded.num_classes, loaded.shape) == (wanted.num_classes, wanted.shape)


def test_rows_of_16_bits_and_without_a_number_are_the_same_at_each_reading():
    missing = X.clone()
    missing[7, 2] = torch.nan
    for inputs in (X.bfloat16(), missing):
        part = Rows(lambda i, inputs=inputs: (inputs[i], int(Y[i])))
        loaded = in_memory((part, PART)).loaded.train.inputs
        assert torch.equal(loaded.nan_to_num(), inputs.float().nan_to_num())
    with pytest.raises(DatasetError, match="inputs of 1 sample are not finite, first those of sample 7"):
        in_memory((part, PART)).load(0)


def test_ids_of_a_vocabulary_may_lack_0():
    ids = torch.tensor([[1, 2, 3], [3, 1, 2]])
    assert in_memory(((ids, ids), (ids, ids))).load(0).num_classes == 4


def test_rows_of_unequal_length_are_samples_whose_test_may_have_the_longest():
    ids, starts = torch.tensor([1, 2, 3, 1, 2, 4]), torch.tensor([0, 3])
    train, test = (
        Samples(Ragged(ids, starts, lengths), Ragged(ids, starts, lengths, fill=IGNORED))
        for lengths in (torch.tensor([2, 2]), torch.tensor([3, 3]))
    )
    loaded = in_memory((train, test)).load(0)
    assert (loaded.num_classes, loaded.shape) == (5, (3,))


def test_inputs_of_64_bits_stay_so_until_they_are_normalized():
    times = 1.7e9 + torch.arange(60, dtype=torch.float64).repeat(5)
    inputs = torch.stack([times - times.mean(), X[:, 0].double()], 1)
    loaded = in_memory(((inputs, Y), (inputs, Y))).load(0)
    assert len(loaded.to(torch.float32).train.batch(torch.arange(300)).fields[0][:, 0].unique()) == 60
    assert torch.equal(loaded.to(torch.float64).train.batch(torch.arange(300)).fields[0], inputs)
    inputs[:, 0] = times
    loaded = in_memory(((X[:, :2], Y), (inputs, Y))).load(0)
    with pytest.raises(DatasetError, match="feature 0 has distinct values that are equal in the 32 bits"):
        loaded.to(torch.float32)
    assert torch.equal(loaded.to(torch.float64).test.batch(torch.arange(300)).fields[0], inputs)


def test_values_that_differ_by_the_rounding_of_64_bits_were_equal_before():
    tenths = torch.randint(1, 11, (3, 300), generator=torch.Generator().manual_seed(1)).double() / 10
    means = ((tenths / 3).sum(0))[:, None]
    assert len(means.unique()) > len(means.float().unique()) / 0.75
    in_memory(((means, Y), (means, Y))).load(0).to(torch.float32)
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
            "have weights, but ",
        ),
        (nx.Graph([*ring.edges(data=True), (0, 2)]), "have weights, but "),
    ):
        with pytest.raises(GraphError) as raised:
            from_networkx(graph)
        assert line in str(raised.value)


def test_both_parts_have_one_unit_and_the_byte_order_of_a_file_is_none():
    images, labels = torch.zeros(6, 8, 8, dtype=torch.uint8), torch.arange(6) % 2
    for parts in ((images, images / 255), (images / 255, images)):
        with pytest.raises(DatasetError, match="so they have other units; prepare both in one way"):
            in_memory(tuple((part, labels) for part in parts))
    rows = np.arange(12.0).reshape(6, 2)
    swapped = rows.astype(">f4"), labels.numpy().astype(">i8")
    loaded = in_memory((swapped, swapped)).load(0)
    assert torch.equal(loaded.train.inputs, torch.from_numpy(rows).float())
    assert torch.equal(loaded.train.labels, labels)
    masked = np.ma.masked_greater(rows, 5)
    with pytest.raises(DatasetError, match=r"an array has masked values; fill them: array.filled"):
        in_memory(((masked, labels), (rows, labels)))
