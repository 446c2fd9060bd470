"""Mixing in one pass: the sum itself, its precision, its order, and what it leaves alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.core.vector import is_finite
from decentnode.sharing.blocks import weighted_sum as module
from decentnode.sharing.blocks.weighted_sum import CHUNK, pieces, weighted_sum

LENGTHS = (1, 7, CHUNK, 2 * CHUNK, 2 * CHUNK + 1, 3 * CHUNK + 5)
DTYPES = st.sampled_from((torch.float32, torch.float16, torch.bfloat16))


def draw_terms(count, length, dtypes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(count, generator=generator, dtype=torch.float64)
    weights /= weights.sum()
    return [
        (float(w), torch.randn(length, generator=generator).to(dtype))
        for w, dtype in zip(weights, dtypes, strict=True)
    ]


def exact(terms):
    return sum(w * x.double() for w, x in terms)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_sum_is_right_whatever_the_length(length):
    terms = draw_terms(4, length, [torch.float32] * 4)
    out = torch.full((length,), float("nan"))
    weighted_sum(terms, out)
    assert torch.allclose(out.double(), exact(terms), atol=1e-6, rtol=0)


@pytest.mark.parametrize("length", [7, 2 * CHUNK + 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_in_half_precision_is_made_in_float32_and_rounded_once(length, dtype):
    terms, out = draw_terms(6, length, [dtype] * 6), torch.empty(length, dtype=dtype)
    wide = torch.empty(length)
    assert weighted_sum(terms, out) and weighted_sum(terms, wide)
    assert torch.equal(out, wide.to(dtype))
    terms[2][1][-1] = float("inf")
    assert not weighted_sum(terms, out)


@pytest.mark.parametrize("length", [999_983, 1_500_000])
def test_machines_with_other_caches_sum_up_to_the_same_bits(length, monkeypatch):
    terms, sums = draw_terms(4, length, [torch.float32] * 4), []
    for level2 in (512 << 10, 2 << 20):
        chunk, whole = pieces(level2)
        monkeypatch.setattr(module, "CHUNK", chunk)
        monkeypatch.setattr(module, "WHOLE", whole)
        sums.append(torch.empty(length))
        weighted_sum(terms, sums[-1])
    assert torch.equal(*sums)


@settings(max_examples=40)
@given(st.lists(DTYPES, min_size=1, max_size=6), st.integers(0, 99))
def test_low_precision_terms_are_summed_in_the_precision_of_out(dtypes, seed):
    terms = draw_terms(len(dtypes), 64, dtypes, seed)
    out = torch.full((64,), float("nan"))
    weighted_sum(terms, out)
    assert torch.allclose(out.double(), exact(terms), atol=2e-6, rtol=0)


@pytest.mark.parametrize("length", [5, 2 * CHUNK + 5])
def test_terms_are_added_in_the_order_given(length):
    """1e8 + 1 - 1e8 is 0 in float32, and 1e8 - 1e8 + 1 is 1."""
    large, small = torch.full((length,), 1e8), torch.ones(length)
    out = torch.empty(length)
    weighted_sum([(1.0, large), (1.0, small), (-1.0, large)], out)
    assert not out.any()
    weighted_sum([(1.0, large), (-1.0, large), (1.0, small)], out)
    assert (out == 1).all()


@pytest.mark.parametrize("length", [5, 2 * CHUNK + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_differences_from_an_origin_are_opposite_to_the_bit(length, dtype):
    """What two nodes give each other: sum_k w_k (x_k - origin), where rounded products of models are not."""
    (_, a), (_, b), (_, c) = draw_terms(3, length, [dtype] * 3)
    forward, backward, total = torch.empty(3, length)
    assert weighted_sum([(0.1, b)], forward, origin=a)
    assert weighted_sum([(0.1, a)], backward, origin=b)
    assert torch.equal(forward, -backward)
    assert weighted_sum([(0.1, b), (0.3, c)], total, origin=a)
    expected = 0.1 * (b.double() - a.double()) + 0.3 * (c.double() - a.double())
    assert torch.allclose(total.double(), expected, atol=1e-6, rtol=0)
    assert not weighted_sum([(0.1, torch.full((length,), float("inf")))], total, origin=a)


def test_chunks_change_no_bit():
    terms = draw_terms(3, 2 * CHUNK + 9, [torch.float32] * 3)
    out = torch.empty(2 * CHUNK + 9)
    weighted_sum(terms, out)
    for start in range(0, out.numel(), 1000):
        piece = torch.empty_like(out[start : start + 1000])
        weighted_sum([(w, x[start : start + 1000]) for w, x in terms], piece)
        assert torch.equal(piece, out[start : start + 1000])


def test_sources_are_left_alone_and_a_generator_will_do():
    terms = draw_terms(3, 100, [torch.float32] * 3)
    before = [x.clone() for _, x in terms]
    weighted_sum((term for term in terms), torch.empty(100))
    assert all(torch.equal(x, old) for (_, x), old in zip(terms, before, strict=True))


def test_a_vector_of_another_length_is_refused():
    with pytest.raises((RuntimeError, ValueError)):
        weighted_sum([(0.5, torch.ones(5)), (0.5, torch.ones(6))], torch.empty(5))


@pytest.mark.parametrize("length", [1, CHUNK, 2 * CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_number_that_is_not_finite_is_noticed_wherever_it_stands(length, value):
    terms = draw_terms(3, length, [torch.float32] * 3)
    out = torch.empty(length)
    assert weighted_sum(terms, out)
    for place in {0, length // 2, length - 1}:
        before = float(terms[1][1][place])
        terms[1][1][place] = value
        assert not weighted_sum(terms, out)
        terms[1][1][place] = before


def test_two_infinities_of_different_sign_do_not_cancel():
    x = torch.tensor([float("inf"), -float("inf")])
    assert not weighted_sum([(0.5, x), (0.5, torch.zeros(2))], torch.empty(2))
    assert not is_finite(x)
    assert is_finite(torch.full((3,), 3e38))
