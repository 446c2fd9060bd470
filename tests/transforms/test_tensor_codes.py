"""What is computed with tensors, so that it can stay on a GPU, is to the bit what numpy computes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.core.payload import PayloadError
from decentnode.core.rng import generator
from decentnode.transforms.coding import tensor_codes
from decentnode.transforms.coding.alphabet import Alphabet
from decentnode.transforms.sparsify import philox

CPU = torch.device("cpu")
SIZES = (2, 3, 4, 5, 7, 9, 16, 17, 33, 65, 129, 200, 255, 256)


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
def test_uniform_numbers_go_on_where_the_last_ones_ended(counts):
    source, stream = generator(3, "test"), philox.Stream(generator(3, "test"))
    for count in counts:
        expected = source.random(count, dtype=np.float32)
        assert np.array_equal(stream.uniform(count, CPU).numpy(), expected)


@pytest.mark.parametrize("size", SIZES)
def test_codes_are_packed_into_the_same_bytes_and_back(size):
    alphabet, random = Alphabet(size), np.random.default_rng(size)
    for count in (0, 1, 5, 7, 8, 9, 64, 1003):
        codes = random.integers(0, size, count).astype(np.uint8)
        packed = tensor_codes.pack(alphabet, torch.from_numpy(codes))
        assert np.array_equal(packed.numpy(), alphabet.pack(codes))
        assert np.array_equal(tensor_codes.unpack(alphabet, packed, count).numpy(), codes)


@pytest.mark.parametrize("size", [3, 5, 9, 200])
def test_codes_of_another_alphabet_are_refused_alike(size):
    alphabet, junk = Alphabet(size), np.full(8, 255, np.uint8)
    with pytest.raises(PayloadError) as expected:
        alphabet.unpack(junk, alphabet.most(8))
    with pytest.raises(PayloadError) as found:
        tensor_codes.unpack(alphabet, torch.from_numpy(junk), alphabet.most(8))
    assert str(found.value) == str(expected.value)
