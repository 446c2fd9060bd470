"""Quantizers against their published errors, in double precision, and against whatever a peer may send."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.core.payload import Field, Form, Layout, Payload, PayloadError, Role
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput
from decentnode.transforms import Qsgd, Sign, Ternary, Uniform
from decentnode.transforms.base import Context, Transform
from decentnode.transforms.chain import Chain
from decentnode.transforms.coding.alphabet import Alphabet

CONTEXT = Context(seed=1, round=2, sender=3)
MAKERS = {
    "qsgd": Qsgd,
    "qsgd 1": lambda **o: Qsgd(1, **o),
    "qsgd 2": lambda **o: Qsgd(2, **o),
    "qsgd 16 max": lambda **o: Qsgd(16, norm="max", **o),
    "uniform": Uniform,
    "uniform 4": lambda **o: Uniform(4, **o),
    "uniform 2": lambda **o: Uniform(2, **o),
    "uniform 1 stochastic": lambda **o: Uniform(1, rounding="stochastic", **o),
    "sign": lambda **o: Sign("block", **o),
    "ternary": Ternary,
    "ternary threshold": lambda **o: Ternary("threshold", **o),
}
UNBIASED = [name for name in MAKERS if "qsgd" in name or "stochastic" in name or name == "ternary"]
each_quantizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
numbers = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20)


def gaussian(length, seed=0, dtype=torch.float64):
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def there_and_back(transform, signal, context=CONTEXT):
    chain = Chain([transform], signal.numel(), signal.dtype)
    payload = chain.encode(signal, context)
    return chain.decode(Payload.parse(chain.layout, payload.buffer.clone()), context)


@dataclass
class Nonzero(Transform):
    """Sends what is not zero, so that any number of values may come (for tests)."""

    accepts = frozenset({Form.DENSE})
    emits = Form.SPARSE

    def layout(self, input_layout):
        (self.dense,) = input_layout.fields
        values = Field("values", self.dense.dtype, self.dense.elements, True)
        return Layout(
            (values, Field("indices", torch.int32, self.dense.elements, True, Role.INDEX)), self.emits
        )

    def encode(self, payload, context):
        indices = payload["vector"].nonzero()[:, 0].to(torch.int32)
        fields = {"values": payload["vector"][indices], "indices": indices}
        return Payload.of(self.layout(payload.layout), fields)

    def decode(self, payload, context):
        out = torch.zeros(self.dense.elements, dtype=payload["values"].dtype)
        out[payload["indices"]] = payload["values"]
        return Payload.dense(out)


class TestAll:
    @each_quantizer
    @pytest.mark.parametrize("length", [1, 9, 1023, 66_001])
    def test_blocks_are_coded_one_by_one(self, make, length):
        signal = gaussian(length)
        whole = there_and_back(make(block=64), signal)
        random = CONTEXT.generator(type(make()).__name__)
        pieces = []
        for block in signal.split(64):
            quantizer = make(block=64)
            codes = torch.empty(1, len(block), dtype=torch.uint8)
            scales = quantizer.quantize(block.view(1, -1), codes, random)
            assert int(codes.max()) < quantizer.alphabet.size
            pieces.append(torch.empty_like(block))
            quantizer.dequantize(codes, scales, pieces[-1].view(1, -1))
        assert torch.equal(whole, torch.cat(pieces))

    @each_quantizer
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_the_dtype_comes_back_and_zeros_are_exact(self, make, dtype):
        decoded = there_and_back(make(block=8), torch.zeros(20, dtype=dtype))
        assert decoded.dtype == dtype and torch.equal(decoded, torch.zeros(20, dtype=dtype))
        assert there_and_back(make(), torch.zeros(0, dtype=dtype)).shape == (0,)

    @each_quantizer
    @settings(max_examples=25)
    @given(numbers)
    def test_any_numbers_decode_to_numbers_within_the_blocks_range(self, make, given_numbers):
        signal = torch.tensor(given_numbers, dtype=torch.float32)
        decoded = there_and_back(make(block=3), signal)
        assert torch.isfinite(decoded).all()
        for before, after in zip(signal.split(3), decoded.split(3), strict=True):
            smallest = 2.0**-149  # what the block's norm is rounded to where numbers are that small
            limit = torch.linalg.vector_norm(before.double()) * (1 + 1e-6) + smallest
            assert after.double().abs().max() <= limit

    @each_quantizer
    @pytest.mark.parametrize("count", [0, 1, 4, 9])
    def test_any_number_of_values_is_known_again(self, make, count):
        signal = torch.zeros(20, dtype=torch.float64)
        signal[torch.randperm(20, generator=torch.Generator().manual_seed(count))[:count]] = 1.5
        chain = Chain([Nonzero(), make(block=4)], 20, torch.float64)
        payload = chain.encode(signal, CONTEXT)
        received = Payload.parse(chain.layout, payload.buffer.clone())
        values = chain.transforms[1].decode(received, CONTEXT)["values"]
        assert values.shape == (count,) and chain.decode(received, CONTEXT).shape == (20,)
        if isinstance(make(), Sign | Uniform):
            assert torch.equal(chain.decode(received, CONTEXT), signal)

    @each_quantizer
    @settings(max_examples=30)
    @given(st.integers(0, 30), st.binary(max_size=40), st.integers(0, 9))
    def test_nonsense_is_a_payload_error_or_numbers(self, make, codes, noise, scales):
        chain = Chain([Nonzero(), make(block=4)], 20)
        layout = chain.layout
        counts = {
            "scales": min(scales, layout.fields[0].elements),
            "codes": min(codes, layout.fields[1].elements),
        }
        payload = Payload.empty(layout, indices=0, **counts)
        start = 8 * len(layout.variable)
        payload.buffer[start:] = 0
        body = torch.frombuffer(bytearray(noise or b"\0"), dtype=torch.uint8)[: payload.nbytes - start]
        payload.buffer[start : start + len(body)] = body
        try:
            values = chain.transforms[1].decode(payload, CONTEXT)["values"]
        except PayloadError:
            return
        assert len(values) <= 20

    @each_quantizer
    @pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf")])
    def test_a_scale_that_is_no_number_is_refused(self, make, scale):
        chain = Chain([make()], 5)
        payload = chain.encode(gaussian(5, dtype=torch.float32), CONTEXT)
        payload["scales"][0] = scale
        with pytest.raises(PayloadError):
            chain.decode(payload, CONTEXT)

    @pytest.mark.parametrize("name", ["qsgd", "qsgd 1", "uniform 1 stochastic", "ternary"])
    def test_rounding_is_repeated_with_the_same_counters_alone(self, name):
        signal = gaussian(1000)

        def coded(*counters):
            return Chain([MAKERS[name]()], 1000, torch.float64).encode(signal, Context(*counters)).buffer

        assert torch.equal(coded(1, 2, 3), coded(1, 2, 3))
        for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
            assert not torch.equal(coded(1, 2, 3), coded(*other))

    @pytest.mark.parametrize("name", UNBIASED)
    def test_the_expectation_is_the_value(self, name):
        v = torch.tensor([1.0, -0.7, 0.3, 0.011, -0.002, 0.0, 0.5, -1.0], dtype=torch.float64)
        times = 50_000
        decoded = there_and_back(MAKERS[name](block=8), v.repeat(times)).view(times, 8)
        deviation = decoded.std(0) / times**0.5
        assert ((decoded.mean(0) - v).abs() <= 4.5 * deviation + 1e-6).all()
        assert (decoded[:, 5].std() == 0) == ("uniform" not in name)


class TestQsgd:
    @pytest.mark.parametrize(("s", "expected"), [(1, 24.1), (4, 5.28), (16, 0.656), (127, 0.0104)])
    def test_relative_variance_is_the_one_of_the_paper(self, s, expected):
        d, times = 1000, 200
        v = gaussian(d * times)
        errors = (there_and_back(Qsgd(s, block=d), v) - v).view(times, d).square().sum(1)
        relative = (errors / v.view(times, d).square().sum(1)).mean()
        assert relative == pytest.approx(expected, rel=0.03)
        assert relative <= min(d / s**2, d**0.5 / s)

    @pytest.mark.parametrize("norm", ["l2", "max"])
    def test_a_value_becomes_one_of_the_two_levels_around_it(self, norm):
        v = gaussian(1000)
        of_norm = torch.linalg.vector_norm(v, 2 if norm == "l2" else float("inf")) / 7
        levels = there_and_back(Qsgd(7, norm=norm), v) / of_norm
        assert torch.allclose(levels, levels.round(), atol=1e-9)
        assert ((levels - v / of_norm).abs() < 1).all()

    @pytest.mark.parametrize(
        ("s", "bits"), [(1, 8 / 5), (2, 8 / 3), (3, 3), (4, 4), (7, 4), (16, 6), (64, 8), (127, 8)]
    )
    def test_bytes_are_as_declared(self, s, bits):
        d = 120 * 64
        assert Chain([Qsgd(s, block=64)], d).layout.max_bytes == d * bits / 8 + 4 * d / 64

    def test_one_value_is_exact(self):
        v = torch.tensor([-0.1], dtype=torch.float64)
        assert torch.equal(there_and_back(Qsgd(), v), v)

    def test_an_impossible_code_is_refused(self):
        chain = Chain([Qsgd(4)], 4)
        payload = chain.encode(torch.ones(4), CONTEXT)
        payload["codes"][0] = 0xF9
        with pytest.raises(PayloadError, match=r"^code 15 where the largest is 8$"):
            chain.decode(payload, CONTEXT)


class TestUniform:
    @pytest.mark.parametrize("bits", [1, 2, 4, 8])
    @pytest.mark.parametrize(("rounding", "steps"), [("nearest", 0.5), ("stochastic", 1.0)])
    @settings(max_examples=20)
    @given(given_numbers=numbers)
    def test_errs_within_its_bound(self, bits, rounding, steps, given_numbers):
        v = torch.tensor(given_numbers, dtype=torch.float32)
        decoded = there_and_back(Uniform(bits, 4, rounding), v)
        for before, after in zip(v.double().split(4), decoded.double().split(4), strict=True):
            step = (before.max() - before.min()) / (2**bits - 1)
            rounded = 2**-22 * before.abs().max() + 2.0**-147
            assert ((after - before).abs() <= step * steps * (1 + 1e-4) + rounded).all()

    @pytest.mark.parametrize("bits", [1, 2, 4, 8])
    def test_levels_and_equal_values_are_exact(self, bits):
        levels = torch.arange(2**bits, dtype=torch.float64) - 3
        assert torch.equal(there_and_back(Uniform(bits), levels), levels)
        equal = torch.full((10,), 0.1)
        assert torch.equal(there_and_back(Uniform(bits), equal), equal)

    @pytest.mark.parametrize("bits", [1, 2, 4, 8])
    def test_bytes_are_as_declared(self, bits):
        assert Chain([Uniform(bits, block=64)], 6400).layout.max_bytes == 6400 * bits / 8 + 8 * 100

    def test_the_mean_squared_error_is_that_of_even_noise(self):
        """step^2 / 12 for nearest rounding (Bennett, 1948)."""
        v = torch.rand(1 << 18, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        errors = there_and_back(Uniform(4, block=1 << 18), v) - v
        assert errors.square().mean() == pytest.approx(1 / 15**2 / 12, rel=0.01)


class TestSign:
    @pytest.mark.parametrize(
        ("draw", "omega"),
        [("standard_normal", 2 / np.pi), ("laplace", 0.5), ("t3", 4 / np.pi**2)],
    )
    def test_omega_is_the_one_of_the_distribution(self, draw, omega):
        random = np.random.default_rng(4)
        size = 1_000_000
        v = torch.from_numpy(random.standard_t(3, size) if draw == "t3" else getattr(random, draw)(size=size))
        error = float((there_and_back(Sign(), v) - v).square().sum() / v.square().sum())
        exact = float(v.abs().sum() ** 2 / (size * v.square().sum()))
        assert 1 - error == pytest.approx(exact, rel=1e-9)
        assert 1 - error == pytest.approx(omega, abs=0.02)

    def test_each_layer_has_a_mean_of_its_own(self):
        shapes = {"w": (2, 3), "none": (0,), "b": (5,)}
        entries, offset = [], 0
        for name, shape in shapes.items():
            entries.append(Entry(name, torch.Size(shape), offset))
            offset += torch.Size(shape).numel()
        v = torch.tensor([1.0, -2, 3, -4, 5, -6, 0, 0.5, -0.5, 0, -1], dtype=torch.float64)
        chain = Chain([Sign("layer")], 11, torch.float64, ParameterLayout(tuple(entries)))
        payload = chain.encode(v, CONTEXT)
        assert payload["scales"].tolist() == [3.5, 0.4]
        assert chain.decode(payload, CONTEXT).tolist() == [3.5, -3.5] * 3 + [0.4, 0.4, -0.4, 0.4, -0.4]

    def test_layers_must_be_known_and_whole(self):
        with pytest.raises(
            BadInput, match=r"^transforms\[0\]: sign with 'scale: layer' needs to know the layers"
        ):
            Chain([Sign("layer")], 10)
        entries = (Entry("w", torch.Size([10]), 0),)
        with pytest.raises(BadInput, match=r"^transforms\[1\]: sign with 'scale: layer' takes whole models"):
            Chain([Nonzero(), Sign("layer")], 10, parameters=ParameterLayout(entries))

    def test_bytes_are_as_declared(self):
        assert Chain([Sign()], 801).layout.max_bytes == 4 + 4 + 101  # the bits begin at byte 8


class TestTernary:
    def test_the_threshold_rule_sends_the_mean_of_what_it_sends(self):
        v = torch.tensor([4.0, -2, 0.5, -0.1, 0, 0], dtype=torch.float64)
        assert there_and_back(Ternary("threshold"), v).tolist() == [3, -3, 0, 0, 0, 0]
        everything = there_and_back(Ternary("threshold", threshold=0), v)
        assert torch.allclose(everything, torch.tensor([1, -1, 1, -1, 0, 0]).double() * 1.65)

    @given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
    def test_the_threshold_rules_error_is_in_closed_form(self, given_numbers):
        v = torch.tensor(given_numbers, dtype=torch.float64)
        decoded = there_and_back(Ternary("threshold"), v)
        k, mu = int((decoded != 0).sum()), decoded.abs().max()
        expected = v.square().sum() - k * mu**2
        assert (decoded - v).square().sum() == pytest.approx(
            float(expected), rel=1e-9, abs=1e-9 * float(v.square().sum())
        )

    def test_the_stochastic_rule_has_the_variance_of_its_probabilities(self):
        v = gaussian(1000)
        s = v.abs().max()
        times = 200
        errors = there_and_back(Ternary(block=1000), v.repeat(times)) - v.repeat(times)
        assert errors.square().sum() / times == pytest.approx(float((s * v.abs() - v**2).sum()), rel=0.02)

    def test_five_values_share_a_byte(self):
        assert Chain([Ternary(block=1000)], 10_000).layout.max_bytes == 10_000 / 5 + 4 * 10

    def test_a_byte_that_is_no_five_trits_is_refused(self):
        chain = Chain([Ternary()], 5)
        payload = chain.encode(torch.ones(5), CONTEXT)
        payload["codes"][0] = 243
        with pytest.raises(PayloadError, match=r"^code 243 where the largest is 242$"):
            chain.decode(payload, CONTEXT)


class TestAlphabet:
    @given(st.integers(2, 256), st.integers(0, 60), st.integers(0, 2**32))
    def test_round_trip_in_the_promised_bytes(self, size, count, seed):
        alphabet = Alphabet(size)
        codes = torch.randint(size, (count,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
        packed = alphabet.pack(codes)
        assert len(packed) == alphabet.packed_bytes(count)
        assert torch.equal(alphabet.unpack(packed, count), codes)
        assert count <= alphabet.most(len(packed)) < count + 8

    def test_bits_per_code(self):
        bits_per_code = {
            size: round(8000 / Alphabet(size).most(1000), 2) for size in (2, 3, 4, 5, 6, 7, 9, 16, 33, 255)
        }
        assert bits_per_code == {2: 1, 3: 1.6, 4: 2, 5: 2.67, 6: 2.67, 7: 3, 9: 4, 16: 4, 33: 6, 255: 8}
