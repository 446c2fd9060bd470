"""Byte coders: exact, never longer than raw by more than a byte a field, and safe against nonsense."""

import importlib

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.core.payload import Payload, PayloadError
from decentnode.errors import BadInput
from decentnode.transforms import (
    Cast,
    EliasGamma,
    Fpzip,
    Lz4,
    Pcodec,
    Qsgd,
    Rice,
    Sign,
    Ternary,
    Uniform,
    Zstd,
)
from decentnode.transforms.base import Context
from decentnode.transforms.basis.wavelet import Wavelet
from decentnode.transforms.chain import Chain
from decentnode.transforms.coding.byte_coder import shuffled, unshuffled
from decentnode.transforms.sparsify.random_k import RandomK
from decentnode.transforms.sparsify.threshold import Threshold
from decentnode.transforms.sparsify.top_k import TopK

CONTEXT = Context(seed=1, round=2, sender=3)
LOSSLESS = [Zstd, Lz4, Pcodec, Fpzip]
BEHIND = {
    "dense": list,
    "cast bf16": lambda: [Cast("bf16")],
    "cast fp16": lambda: [Cast("fp16")],
    "top_k": lambda: [TopK(0.1)],
    "top_k, any fraction": lambda: [TopK([0.1, 0.3, 1.0])],
    "random_k": lambda: [RandomK(0.1)],
    "qsgd": lambda: [Qsgd(4)],
    "top_k, qsgd, rice": lambda: [TopK(0.1), Qsgd(), Rice()],
    "top_k of any fraction, uniform, elias_gamma": lambda: [TopK([0.1, 0.3, 1.0]), Uniform(2), EliasGamma()],
    "wavelet, top_k, sign, rice": lambda: [Wavelet(), TopK(0.05), Sign(), Rice()],
    "threshold, ternary, rice": lambda: [Threshold(1.0), Ternary(), Rice()],
}
each_coder = pytest.mark.parametrize("coder", LOSSLESS)


def gaussian(length, dtype=torch.float32, seed=0):
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 0.05


def received(chain, payload):
    return Payload.parse(chain.layout, payload.buffer.clone())


def forged(chain, **codes):
    """A payload with these bytes in its fields."""
    fields = {
        f.name: torch.tensor(list(codes.get(f.name, b"")), dtype=torch.uint8) for f in chain.layout.fields
    }
    return Payload.of(chain.layout, fields)


@each_coder
@pytest.mark.parametrize("before", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize(
    ("length", "dtype"), [(0, torch.float32), (1, torch.float64), (777, torch.float32), (777, torch.float64)]
)
def test_what_comes_before_is_as_if_it_were_not_there(coder, before, dtype, length):
    signal = gaussian(length, dtype)
    plain, coded = Chain(before(), length, dtype), Chain([*before(), coder()], length, dtype)
    payload, bytes_of = plain.encode(signal, CONTEXT), coded.encode(signal, CONTEXT)
    assert torch.equal(coded.decode(received(coded, bytes_of), CONTEXT), plain.decode(payload, CONTEXT))
    for plain_field, coded_field in zip(payload.layout.fields, bytes_of.layout.fields, strict=True):
        assert (plain_field.name, plain_field.role) == (coded_field.name, coded_field.role)
        raw = payload[plain_field.name].numel() * plain_field.dtype.itemsize
        assert bytes_of[coded_field.name].numel() <= raw + (raw > 0)
    if plain.layout.has_indices and length:
        assert 0 < bytes_of.index_bytes < bytes_of.nbytes


@each_coder
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=30), st.integers(1, 8))
def test_every_number_comes_back_bit_for_bit(coder, numbers, times):
    signal = torch.tensor(numbers * times, dtype=torch.float32)
    chain = Chain([coder()], len(signal))
    decoded = chain.decode(received(chain, chain.encode(signal, CONTEXT)), CONTEXT)
    assert torch.equal(decoded.view(torch.int32), signal.view(torch.int32))


@pytest.mark.parametrize(("coder", "most"), [(Zstd, 0.86), (Lz4, 0.93), (Pcodec, 0.84), (Fpzip, 0.94)])
def test_gaussian_values_shrink(coder, most):
    """The entropy of N(0, .05) in fp32 is .829 of its bytes; zlib behind a byte shuffle reaches .851."""
    chain = Chain([coder()], 200_000)
    assert 0.82 < chain.encode(gaussian(200_000), CONTEXT).nbytes / 800_000 <= most


@each_coder
def test_zeros_nearly_vanish(coder):
    assert Chain([coder()], 100_000).encode(torch.zeros(100_000), CONTEXT).nbytes < 2200


@each_coder
def test_what_does_not_shrink_stays_as_it_is(coder):
    signal = torch.from_numpy(np.random.default_rng(0).integers(0, 2**31 - 2**24, 16, dtype=np.int32))
    code = Chain([coder()], 16).encode(signal.view(torch.float32), CONTEXT)["vector"]
    assert code[-1] == 0 and torch.equal(code[:-1], signal.view(torch.uint8))
    short = Chain([coder()], 1).encode(torch.ones(1), CONTEXT)["vector"]
    assert short.tolist() == [0, 0, 128, 63, 0]


@pytest.mark.parametrize(
    ("dtype", "bits", "relative"),
    [(torch.float32, 16, 2**-7), (torch.float64, 16, 2**-4), (torch.float32, 24, 2**-15)],
)
def test_fpzip_errs_within_its_precision(dtype, bits, relative):
    signal = gaussian(5000, dtype)
    chain = Chain([Fpzip(bits)], 5000, dtype)
    payload = chain.encode(signal, CONTEXT)
    decoded = chain.decode(payload, CONTEXT)
    assert ((decoded - signal).abs() < relative * signal.abs()).all() and not torch.equal(decoded, signal)
    assert payload.nbytes < Chain([Fpzip()], 5000, dtype).encode(signal, CONTEXT).nbytes * 0.75


@pytest.mark.parametrize(
    ("bits", "dtype", "message"),
    [
        (9, torch.float32, r"^transforms\[0\]: fpzip takes a precision of 10..32 bits or 0, not 9$"),
        (33, torch.float32, r"^transforms\[0\]: fpzip takes a precision of 10..32 bits or 0, not 33$"),
        (17, torch.float64, r"^transforms\[0\]: fpzip takes an even precision for float64, not 17$"),
    ],
)
def test_fpzip_refuses_a_precision_that_it_has_not(bits, dtype, message):
    with pytest.raises(BadInput, match=message):
        Chain([Fpzip(bits)], 5, dtype)


@pytest.mark.parametrize(("coder", "package"), [(Lz4, "lz4"), (Pcodec, "pcodec"), (Fpzip, "fpzip")])
def test_a_missing_library_is_named_with_the_command_that_installs_it(coder, package, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    message = rf"^transforms\[0\]: {package} needs {package}: pip install 'decentnode\[compression\]'$"
    with pytest.raises(BadInput, match=message):
        Chain([coder()], 5)


class TestNonsense:
    @each_coder
    @settings(max_examples=20)
    @given(st.integers(0, 2**32), st.integers(0, 3), st.booleans())
    def test_a_damaged_code_is_a_payload_error_or_numbers(self, coder, seed, kind, varies):
        random = np.random.default_rng(seed)
        before = [Threshold(0.03)] if varies else []
        chain = Chain([*before, coder()], 300)
        payload = chain.encode(
            torch.from_numpy(random.standard_normal(300)).float().cumsum(0) * 0.01, CONTEXT
        )
        fields = {f.name: payload[f.name].numpy().copy() for f in chain.layout.fields}
        name = sorted(fields)[seed % len(fields)]
        code = fields[name]
        if kind == 0 and code.size:
            code[random.integers(code.size)] ^= 1 << random.integers(8)
        elif kind == 1:
            fields[name] = np.append(code[: random.integers(code.size + 1)], np.uint8(1))
        elif kind == 2:
            fields[name] = np.append(random.integers(0, 256, random.integers(50)), 1).astype(np.uint8)
        most = {f.name: f.elements for f in chain.layout.fields}
        fields = {n: torch.from_numpy(c[: most[n]]) for n, c in fields.items()}
        try:
            chain.decode(Payload.of(chain.layout, fields), CONTEXT)
        except PayloadError:
            return

    def test_a_claim_of_more_bytes_than_the_layout_has_is_refused_before_room_is_made(self):
        chain = Chain([Zstd()], 10_000)
        bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))
        with pytest.raises(PayloadError, match=r"^field 'vector' claims 16777216 of at most 40000 bytes$"):
            chain.decode(forged(chain, vector=bomb + b"\1"), CONTEXT)
        unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
        with pytest.raises(PayloadError, match=r"^field 'vector' claims"):
            chain.decode(forged(chain, vector=unsized + b"\1"), CONTEXT)

    def test_more_elements_than_the_layout_has_are_refused(self):
        small, large = Chain([Pcodec()], 1000), Chain([Pcodec()], 2000)
        code = large.encode(torch.zeros(2000), CONTEXT)["vector"]
        with pytest.raises(PayloadError, match=r"^field 'vector' has more than its 1000 elements$"):
            small.decode(forged(small, vector=bytes(code.tolist())), CONTEXT)
        with pytest.raises(PayloadError, match=r"^field 'vector' has 4000 bytes, not those of its elements$"):
            code = small.encode(torch.zeros(1000), CONTEXT)["vector"]
            large.decode(forged(large, vector=bytes(code.tolist())), CONTEXT)

    @pytest.mark.parametrize("code", [b"", b"\1", b"\0", b"\2", b"abc\0", b"12345678\7"])
    def test_bytes_that_are_no_code_are_refused(self, code):
        chain = Chain([Zstd()], 2)
        with pytest.raises(PayloadError, match=r"^field 'vector' "):
            chain.decode(forged(chain, vector=code), CONTEXT)


def test_a_byte_coder_takes_no_bytes():
    expected = r"^transforms\[1\]: lz4 takes .* but zstd gives bytes; leave one of them out$"
    with pytest.raises(BadInput, match=expected):
        Chain([Zstd(), Lz4()], 5)


@given(st.binary(max_size=100), st.sampled_from([1, 2, 4, 8]))
def test_shuffled_bytes_lie_like_beside_like(content, itemsize):
    whole = np.frombuffer(content[: len(content) // itemsize * itemsize], np.uint8)
    planes = shuffled(whole, itemsize)
    assert planes.tolist() == [byte for i in range(itemsize) for byte in whole[i::itemsize]]
    assert np.array_equal(unshuffled(planes, itemsize), whole)
