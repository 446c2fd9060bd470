"""What every transform owes, and the error that each one declares."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decentnode.errors import BadInput
from decentnode.payload import Form, Payload, dense_layout
from decentnode.registry import TRANSFORMS
from decentnode.transforms import Cast
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain, check_order

CONTEXT = Context(seed=1, round=2, sender=3)
VARIANTS = [Cast("fp16"), Cast("bf16")]
BOUNDS = {"fp16": (2.0**-11, 2.0**-25, 65504.0), "bf16": (2.0**-8, 2.0**-134, 3.38e38)}
"""Relative error, absolute error below the normal range, and the largest magnitude."""
LENGTHS = (0, 1, 2, 1000)


def signal(length, seed=0):
    return torch.randn(length, generator=torch.Generator().manual_seed(seed))


def test_every_registered_transform_is_here():
    assert {type(transform) for transform in VARIANTS} == set(TRANSFORMS.classes().values())


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("transform", VARIANTS, ids=repr)
class TestContract:
    def test_what_is_encoded_has_the_declared_layout_and_form(self, transform, length):
        chain = Chain([transform], length)
        payload = chain.encode(signal(length), CONTEXT)
        assert payload.layout.hash == chain.layout.hash
        assert chain.layout.form is transform.emits
        assert Payload.parse(chain.layout, payload.buffer).nbytes <= chain.layout.max_bytes

    def test_encoding_leaves_the_signal_alone_and_decoding_the_payload(self, transform, length):
        chain, before = Chain([transform], length), signal(length)
        given_signal = before.clone()
        payload = chain.encode(given_signal, CONTEXT)
        content = payload.buffer.clone()
        given_signal.fill_(0.0)
        chain.decode(payload, CONTEXT)
        assert torch.equal(payload.buffer, content), "the payload is a view of the signal, or was changed"
        assert torch.equal(before, signal(length))

    def test_the_same_signal_and_context_give_the_same_bytes(self, transform, length):
        first, second = (Chain([transform], length).encode(signal(length), CONTEXT) for _ in range(2))
        assert torch.equal(first.buffer, second.buffer)

    def test_the_receivers_buffer_decodes_to_the_same_as_the_senders(self, transform, length):
        chain = Chain([transform], length)
        payload = chain.encode(signal(length), CONTEXT)
        received = Payload.parse(chain.layout, payload.buffer.clone())
        assert torch.equal(chain.decode(received, CONTEXT), chain.decode(payload, CONTEXT))
        assert chain.decode(received, CONTEXT).shape == (length,)


@pytest.mark.parametrize("dtype", BOUNDS)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_cast_errs_within_its_bound(dtype, numbers):
    relative, absolute, most = BOUNDS[dtype]
    values = torch.tensor(numbers, dtype=torch.float32).clamp(-most, most)
    chain = Chain([Cast(dtype)], len(numbers))
    decoded = chain.decode(chain.encode(values, CONTEXT), CONTEXT).double()
    exact = values.double()
    assert ((decoded - exact).abs() <= torch.clamp(relative * exact.abs(), min=absolute)).all()


@pytest.mark.parametrize("dtype", BOUNDS)
def test_cast_keeps_what_half_precision_can_say(dtype):
    values = torch.tensor([0.0, -0.0, 1.0, -2.5, float("inf"), -float("inf"), 2.0**-14])
    decoded = Cast(dtype).decode(Cast(dtype).encode(Payload.dense(values), CONTEXT), CONTEXT)["vector"]
    assert torch.equal(decoded.float(), values)
    nan = Cast(dtype).encode(Payload.dense(torch.tensor([float("nan")])), CONTEXT)["vector"]
    assert nan.isnan().all()


def test_cast_to_fp16_overflows_to_infinity():
    encoded = Cast("fp16").encode(Payload.dense(torch.tensor([65504.0, 65520.0, -1e30])), CONTEXT)
    assert encoded["vector"].tolist() == [65504.0, float("inf"), -float("inf")]


@pytest.mark.parametrize("dtype", BOUNDS)
def test_cast_halves_the_bytes(dtype):
    assert Chain([Cast(dtype)], 1000).encode(signal(1000), CONTEXT).nbytes == 2000


def test_cast_rounds_to_the_nearest_and_ties_to_even():
    ulp = 2.0**-7
    values = torch.tensor([1 + 0.49 * ulp, 1 + 0.5 * ulp, 1 + 1.5 * ulp], dtype=torch.float32)
    encoded = Cast("bf16").encode(Payload.dense(values), CONTEXT)["vector"]
    assert np.allclose(encoded.double().numpy(), [1, 1, 1 + 2 * ulp], rtol=0, atol=0)


def test_an_empty_chain_sends_the_signal_itself():
    values = signal(10)
    chain = Chain([], 10)
    payload = chain.encode(values, CONTEXT)
    assert payload.buffer.data_ptr() == values.data_ptr()
    assert chain.decode(payload, CONTEXT).data_ptr() == values.data_ptr()
    assert chain.layout == dense_layout(10)


def test_a_wrong_order_is_one_line_that_names_both():
    message = r"^transforms\[1\] cast takes dense or sparse but cast gives quantized$"
    with pytest.raises(BadInput, match=message):
        Chain([Cast(), Cast("fp16")], 10)


@dataclass
class FromLists:
    accepts = frozenset({Form.SPARSE, Form.BYTES})
    emits = Form.BYTES


def test_a_wrong_first_transform_names_the_signal():
    with pytest.raises(
        BadInput, match=r"^transforms\[0\] FromLists takes bytes or sparse but the signal gives dense$"
    ):
        check_order([FromLists()])
