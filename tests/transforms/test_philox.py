"""The stream of random numbers that is computed on a GPU is to the bit that of numpy."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.core.rng import generator
from decentnode.transforms.sparsify import philox

CPU = torch.device("cpu")


def as_unsigned(words):
    return words.numpy().view(np.uint64)


@settings(max_examples=30)
@given(st.integers(0, 2**63 - 1), st.integers(0, 40), st.integers(0, 50))
def test_words_are_those_of_numpys_philox(key, first, count):
    expected = np.random.Philox(key=key).random_raw(first + count)[first:]
    assert np.array_equal(as_unsigned(philox.words((key, 0), first, count, CPU)), expected)


def test_words_of_many_steps(monkeypatch):
    monkeypatch.setattr(philox, "STEP", 7)
    expected = np.random.Philox(key=5).random_raw(1000)
    assert np.array_equal(as_unsigned(philox.words((5, 0), 0, 1000, CPU)), expected)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 30), max_size=5))
def test_uniform_numbers_continue_where_the_last_ones_ended(counts):
    source, stream = generator(3, "test"), philox.Stream(generator(3, "test"))
    for count in counts:
        expected = source.random(count, dtype=np.float32)
        assert np.array_equal(stream.uniform(count, CPU).numpy(), expected)
