"""Packed codes: exact, as short as promised, and laid out as the module says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.transforms.coding.bits import GROUPS, pack, packed_bytes, unpack


def dtype_of(width):
    return np.min_scalar_type((1 << width) - 1)


@settings(max_examples=60)
@given(st.integers(0, 64), st.integers(0, 70), st.randoms(use_true_random=False))
def test_round_trip(width, count, random):
    codes = np.array([random.getrandbits(width) if width else 0 for _ in range(count)], dtype=dtype_of(width))
    packed = pack(codes, width)
    assert packed.dtype == np.uint8 and len(packed) == packed_bytes(count, width)
    assert 8 * len(packed) < width * count + 8
    found = unpack(packed, width, count)
    assert found.dtype == dtype_of(width) and np.array_equal(found, codes)


@pytest.mark.parametrize("width", range(1, 9))
def test_no_bit_leaks_into_a_neighbor(width):
    for at in range(16):
        codes = np.zeros(16, np.uint8)
        codes[at] = (1 << width) - 1
        bits = np.unpackbits(pack(codes, width), bitorder="little")
        assert bits.nonzero()[0].tolist() == list(range(at * width, (at + 1) * width))


def test_a_wide_code_is_whole_bytes_and_the_bits_on_top():
    packed = pack(np.array([0x5AB, 0x2CD], np.uint16), 11)
    assert packed.tolist() == [0xAB, 0xCD, 0x5 | 0x2 << 3]


def test_more_codes_than_one_step_takes():
    codes = np.random.default_rng(0).integers(0, 32, 8 * GROUPS * 2 + 5, dtype=np.uint8)
    assert np.array_equal(unpack(pack(codes, 5), 5, len(codes)), codes)


def test_codes_may_be_wider_numbers_than_needed():
    codes = np.arange(8, dtype=np.int64).astype(np.uint64)
    assert np.array_equal(unpack(pack(codes, 3), 3, 8), codes)
