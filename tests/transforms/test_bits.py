"""Packed codes: exact, as short as promised, and laid out as the module says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.transforms.coding import bits
from decentnode.transforms.coding.alphabet import Alphabet
from decentnode.transforms.coding.bits import GROUPS, pack, packed_bytes, unpack


def dtype_of(width):
    return torch.uint8 if width <= 8 else torch.int64


def expected(codes, width):
    """The bytes of some codes by the definition, bit by bit."""
    planes = [code >> 8 * i & 255 for i in range(width // 8) for code in codes]
    top = sum(code >> 8 * (width // 8) << at * (width % 8) for at, code in enumerate(codes))
    return planes + list(top.to_bytes((width % 8 * len(codes) + 7) // 8, "little"))


@settings(max_examples=60)
@given(st.integers(0, 63), st.integers(0, 70), st.randoms(use_true_random=False))
def test_round_trip(width, count, random):
    codes = [random.getrandbits(width) if width else 0 for _ in range(count)]
    packed = pack(torch.tensor(codes, dtype=dtype_of(width)), width)
    assert packed.dtype == torch.uint8 and len(packed) == packed_bytes(count, width)
    assert 8 * len(packed) < width * count + 8
    assert packed.tolist() == expected(codes, width)
    unpacked = unpack(packed, width, count)
    assert unpacked.dtype == dtype_of(width) and unpacked.tolist() == codes


@pytest.mark.parametrize("width", range(1, 9))
def test_no_bit_leaks_into_a_neighbor(width):
    for at in range(16):
        codes = torch.zeros(16, dtype=torch.uint8)
        codes[at] = (1 << width) - 1
        bits = unpack(pack(codes, width), 1, 16 * width)
        assert bits.nonzero()[:, 0].tolist() == list(range(at * width, (at + 1) * width))


def test_a_wide_code_is_whole_bytes_and_the_bits_on_top():
    packed = pack(torch.tensor([0x5AB, 0x2CD]), 11)
    assert packed.tolist() == [0xAB, 0xCD, 0x5 | 0x2 << 3]


def test_more_codes_than_one_step_takes():
    codes = torch.randint(32, (8 * GROUPS * 2 + 5,), dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes, 5), 5, len(codes)), codes)


def test_codes_may_be_wider_numbers_than_needed():
    assert unpack(pack(torch.arange(8), 3), 3, 8).tolist() == list(range(8))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 9, 16, 17, 33, 65, 129, 200, 255, 256])
def test_codes_on_a_gpu_become_the_same_bytes(monkeypatch, size):
    alphabet = Alphabet(size)
    for count in (0, 1, 5, 7, 8, 9, 64, 1003):
        codes = torch.randint(size, (count,)).to(torch.uint8)
        packed = alphabet.pack(codes)
        with monkeypatch.context() as patch:
            patch.setattr(bits, "HOST", torch.device("meta"))  # so that tensors are computed with
            assert torch.equal(alphabet.pack(codes), packed)
            assert torch.equal(alphabet.unpack(packed, count), codes)
