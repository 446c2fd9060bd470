"""The promise that every registered partition keeps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from decentnode.core.registry import PARTITIONS
from decentnode.datasets import Samples
from decentnode.datasets.partition import Partition
from decentnode.errors import DatasetError

NAMES = list(PARTITIONS.classes())
NUM_LABELS = 4


def options_for(name, trainers):
    """Options that are needed, or that make any number of training ranks possible."""
    if name == "sizes":
        return {"sizes": [1 / trainers] * trainers}
    return {"labels_per_node": NUM_LABELS} if name == "shards" else {}


def make(name, trainers, **more):
    return TypeAdapter(PARTITIONS.find(name)).validate_python(options_for(name, trainers) | more)


def sample_set(count):
    numbers = torch.arange(count)
    return Samples(torch.zeros(count, 2), numbers * 7 % NUM_LABELS, groups=numbers % 97)


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 24), st.integers(120, 300), st.integers(0, 2**31), st.data())
@settings(max_examples=25)
def test_every_sample_is_given_out_exactly_once_over_the_training_ranks(
    name, num_nodes, count, seed, chooser
):
    ranks = chooser.draw(st.sets(st.integers(0, num_nodes - 1), min_size=1).map(sorted))
    samples = sample_set(count)
    parts = make(name, len(ranks), ranks=ranks).split(samples, num_nodes, seed)
    assert len(parts) == num_nodes
    assert all(part.dtype == torch.int64 and torch.equal(part, part.sort().values) for part in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(count))
    assert all(len(part) == 0 for rank, part in enumerate(parts) if rank not in ranks)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_parts(name):
    parts = [make(name, 6).split(sample_set(200), 6, seed) for seed in (5, 5, 6)]
    assert equal(parts[0], parts[1])
    # Natural groups leave nothing to chance.
    assert equal(parts[0], parts[2]) == (name == "natural")


@pytest.mark.parametrize("name", NAMES)
def test_the_samples_are_left_alone(name):
    samples = sample_set(150)
    make(name, 5).split(samples, 5, 0)
    untouched = sample_set(150)
    assert torch.equal(samples.labels, untouched.labels)
    assert torch.equal(samples.groups, untouched.groups)


@pytest.mark.parametrize("name", NAMES)
def test_every_partition_is_a_documented_plugin(name):
    cls = PARTITIONS.find(name)
    assert issubclass(cls, Partition)
    assert "et al." in cls.__doc__.splitlines()[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("labels", [torch.rand(60), torch.zeros(60, 5, dtype=torch.int64)])
def test_labels_that_are_no_classes_are_divided_or_refused(name, labels):
    samples = Samples(torch.zeros(60, 2), labels, groups=torch.arange(60) % 7)
    if name in ("shards", "dirichlet"):
        with pytest.raises(DatasetError, match="use iid or natural"):
            make(name, 4).split(samples, 4, 0)
    else:
        assert torch.equal(torch.cat(make(name, 4).split(samples, 4, 0)).sort().values, torch.arange(60))
