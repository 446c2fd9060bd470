"""Half precision on the wire: the error of IEEE 754 rounding and no more."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decentnode.core.payload import Payload
from decentnode.transforms import Cast
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain

CONTEXT = Context(seed=1, round=2, sender=3)
BOUNDS = {"fp16": (2.0**-11, 2.0**-25, 65504.0), "bf16": (2.0**-8, 2.0**-134, 3.38e38)}
"""Relative error, absolute error below the normal range, and the largest magnitude."""


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
def test_cast_keeps_what_half_precision_can_represent(dtype):
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
    assert Chain([Cast(dtype)], 1000).encode(torch.ones(1000), CONTEXT).nbytes == 2000


def test_cast_rounds_to_the_nearest_and_ties_to_even():
    ulp = 2.0**-7
    values = torch.tensor([1 + 0.49 * ulp, 1 + 0.5 * ulp, 1 + 1.5 * ulp], dtype=torch.float32)
    encoded = Cast("bf16").encode(Payload.dense(values), CONTEXT)["vector"]
    assert np.allclose(encoded.double().numpy(), [1, 1, 1 + 2 * ulp], rtol=0, atol=0)
