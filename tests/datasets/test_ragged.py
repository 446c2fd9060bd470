"""Samples of unequal length: one storage for all selections, padding in batches alone."""

import pytest
import torch

from decentnode.datasets.base import IGNORED, LoadedDataset, Samples, defects_of
from decentnode.datasets.ragged import Ragged, Vocabulary

IDS = torch.tensor([7, 40_000, 9, 1, 5, 1, 8, 8, 8, 2], dtype=torch.uint16)


def ragged(starts, lengths, fill=0, values=IDS):
    return Ragged(values, torch.tensor(starts), torch.tensor(lengths), fill)


def sentences(starts=(0, 3, 5), lengths=(3, 1, 4)):
    """Three sources, and targets of which the labels are one id further."""
    source = ragged([0, 4, 2], [2, 1, 3])
    target, labels = ragged(list(starts), list(lengths)), ragged([s + 1 for s in starts], lengths, IGNORED)
    return Samples(source, labels, more=(target,))


def test_a_batch_is_padded_to_its_own_longest_and_a_selection_has_no_copy():
    samples = sentences()
    batch = samples.batch(torch.tensor([1, 0]))
    assert [field.tolist() for field in batch.fields] == [[[5, 0], [7, 40_000]], [[1, 0, 0], [7, 40_000, 9]]]
    assert batch.labels.tolist() == [[5, IGNORED, IGNORED], [40_000, 9, 1]]
    assert {field.dtype for field in (*batch.fields, batch.labels)} == {torch.int64}
    part = samples.subset(torch.tensor([2, 0]))
    assert part.batch(torch.tensor([0])).labels.tolist() == [[8, 8, 8, 2]]
    storages = {rows.values.data_ptr() for rows in (part.inputs, part.labels, *part.more)}
    assert storages == {IDS.data_ptr()}
    assert part.labels.flatten().tolist() == [8, 8, 8, 2, 40_000, 9, 1]
    assert (samples.labels.shape, samples.labels.dim(), samples.tokens.tolist()) == ((3, 4), 2, [3, 1, 4])
    assert [rows.tolist() for rows in samples.in_batches(2)] == [[1, 0], [2]]
    assert [tuple(field.shape) for field in samples.zeros(2)] == [(2, 3), (2, 4)]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (sentences(lengths=(3, 0, 4)), "the training labels have no id in row 1; leave such samples out"),
        (sentences(lengths=(3, 1, 5)), "the training labels end after the 10 values that they have"),
        (Samples(ragged([0], [2], values=torch.zeros(3)), torch.tensor([0])),
         "the training inputs are torch.float32; rows of unequal length must be ids"),
        (Samples(ragged([0, 1], [2], values=IDS), torch.tensor([0])),
         "the training inputs need values of one dimension, and a start and a length for each row"),
        (Samples(ragged([0, 2], [2, 4]), torch.tensor([0, 1])),
         "the training inputs are up to 4 long, the dataset has (3,)"),
        (sentences(), "the training label of sample 0 is 40000; it must be one of 0..8"),
        (Samples(ragged([2], [2]), ragged([0, 3], [1, 1])),
         "the training set has 2 labels for 1 inputs; there must be one row for each"),
    ],
)  # fmt: skip
def test_defects_are_one_line(samples, message):
    loaded = LoadedDataset(samples, samples, 9, (3,))
    assert next(defects_of(loaded)) == message


def test_labels_that_no_sample_has_may_be_anything():
    samples = Samples(ragged([2, 5], [2, 3]), ragged([3, 6], [2, 3], IGNORED))
    assert list(defects_of(LoadedDataset(samples, samples, 9, (3,)))) == []


def test_ids_become_text_up_to_the_end():
    vocabulary = Vocabulary((b"", b"", "Hü".encode()[:2], "ü".encode()[1:], b"nd"), end=1)
    assert vocabulary.text([0, 2, 3, 4, 1, 4]) == "Hünd"
    assert vocabulary.text([2]) == "H�"
