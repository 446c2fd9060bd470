"""Clipping and noise: bounds, statistics, seeds, and the places in a chain where they may stand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from decentnode.sharing import Gossip
from decentnode.testing import Lockstep
from decentnode.transforms import Clip, ErrorFeedback, Fourier, GaussianNoise, TopK, Wavelet
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain

F32, F64 = torch.float32, torch.float64
CONTEXT = Context(seed=1, round=2, sender=3)
LAYERS = ParameterLayout((Entry("a", torch.Size([3, 4]), 0), Entry("b", torch.Size([5]), 12)))


def random(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def through(chain, x, context=CONTEXT):
    return chain.decode(chain.encode(x, context), context)


# clip.

numbers = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), max_size=30)


@pytest.mark.parametrize("dtype", [F32, F64])
@given(numbers=numbers, norm=st.floats(1e-3, 1e3))
def test_what_is_clipped_is_no_longer_than_the_norm_and_points_the_same_way(dtype, numbers, norm):
    x = torch.tensor(numbers, dtype=dtype)
    clipped, length = through(Chain([Clip(norm)], len(x), dtype), x), float(x.double().norm())
    assert float(clipped.double().norm()) <= norm * (1 + 1e-6)
    expected = x.double() * min(1.0, norm / length) if length else x.double()
    assert torch.allclose(clipped.double(), expected, rtol=1e-6, atol=1e-40)


def test_what_is_short_enough_is_sent_as_it_is():
    x = random(50, dtype=F32)
    assert torch.equal(through(Chain([Clip(100.0)], 50), x), x)
    assert torch.equal(through(Chain([Clip(1.0)], 50), torch.zeros(50)), torch.zeros(50))


def test_squares_that_overflow_do_not_clip_to_nothing():
    x = torch.full((4,), 1e30)
    assert torch.allclose(through(Chain([Clip(2.0)], 4), x), torch.ones(4))


def test_per_layer_every_tensor_has_an_equal_part_of_the_norm():
    x = torch.cat([10 * random(12), 0.01 * random(5)])
    clipped = through(Chain([Clip(2.0, per_layer=True)], 17, F64, LAYERS), x)
    assert float(clipped[:12].norm()) == pytest.approx(2 / math.sqrt(2))
    assert torch.equal(clipped[12:], x[12:])
    both = through(Chain([Clip(2.0, per_layer=True)], 17, F64, LAYERS), 100 * x)
    assert float(both.norm()) == pytest.approx(2.0)


def test_per_layer_needs_the_layers():
    with pytest.raises(BadInput, match=r"^transforms\[0\]: clip selects per layer"):
        Chain([Clip(1.0, per_layer=True)], 17)


# gaussian_noise.


def noise(transform, n=200_000, context=CONTEXT, dtype=F64):
    return through(Chain([transform], n, dtype), torch.zeros(n, dtype=dtype), context)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("scope", ["shared", "neighbor"])
def test_noise_is_normal_with_the_deviation_asked_for(scope, dtype):
    z = noise(GaussianNoise(0.3, scope), context=Context(1, 2, 3, 4), dtype=dtype).double() / 0.3
    n, six = len(z), 6.0
    assert abs(float(z.mean())) < six / math.sqrt(n)
    assert abs(float(z.square().mean()) - 1) < six * math.sqrt(2 / n)
    assert abs(float(z.pow(3).mean())) < six * math.sqrt(15 / n)
    assert abs(float(z.pow(4).mean()) - 3) < six * math.sqrt(96 / n)
    assert abs(float((z[1:] * z[:-1]).mean())) < six / math.sqrt(n)
    for quantile in (-2.0, -1.0, 0.5):
        part = 0.5 * (1 + math.erf(quantile / math.sqrt(2)))
        assert abs(float((z < quantile).double().mean()) - part) < six * math.sqrt(part * (1 - part) / n)


def test_noise_is_added_to_the_signal():
    x = random(300_000)
    chain = Chain([GaussianNoise(0.5)], len(x), F64)
    assert torch.allclose(through(chain, x) - x, noise(GaussianNoise(0.5), len(x)), rtol=0, atol=1e-12)


def test_a_run_can_be_repeated_and_nothing_else_repeats_its_noise():
    assert torch.equal(noise(GaussianNoise(1.0), 100), noise(GaussianNoise(1.0), 100))
    keys = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]
    contexts = [*(Context(*key) for key in keys), Context(1, 2, 3, phase=1)]
    draws = [noise(GaussianNoise(1.0), 100, context) for context in contexts]
    draws += [noise(GaussianNoise(1.0, "neighbor"), 100, Context(1, 2, 3, j)) for j in (4, 5)]
    for i, first in enumerate(draws):
        assert all(not (first == second).any() for second in draws[:i])


def test_shared_noise_is_the_same_for_all_receivers():
    first, second = (noise(GaussianNoise(1.0), 100, Context(1, 2, 3, j)) for j in (4, 5))
    assert torch.equal(first, second)


def test_scope_neighbor_gives_each_neighbor_a_payload_of_its_own():
    assert Chain([GaussianNoise(1.0, "neighbor")], 9).per_receiver
    assert not Chain([GaussianNoise(1.0)], 9).per_receiver


@pytest.mark.parametrize(("scope", "variance"), [("shared", 2 / 9), ("neighbor", 2 / 9)])
def test_gossip_adds_the_noise_of_two_neighbors_by_a_third_each(scope, variance):
    models = torch.zeros(8, 20_000, dtype=F64)
    mixed = Lockstep(Gossip, Ring(8), models, lambda: (GaussianNoise(1.0, scope),)).mix()
    assert float(mixed.square().mean()) == pytest.approx(variance, rel=0.02)
    # Nodes 0 and 2 both hear node 1: they share its noise only where it is the same for all.
    shared = float((mixed[0] * mixed[2]).mean())
    assert shared == pytest.approx(1 / 9 if scope == "shared" else 0, abs=0.01)


# Where they may stand.


@pytest.mark.parametrize("stage", [Clip(1.0), GaussianNoise(1.0)], ids=repr)
def test_no_transform_that_depends_on_values_may_come_before(stage):
    expected = r"^transforms\[1\]: \w+ takes dense but top_k gives sparse; put it before top_k$"
    with pytest.raises(BadInput, match=expected):
        Chain([TopK(), stage], 9)


@pytest.mark.parametrize("basis", [Wavelet, Fourier])
def test_clip_and_noise_stand_first_or_behind_a_basis(basis):
    x, n = random(100, dtype=F32), 100
    for chain in (
        Chain([Clip(1.0), GaussianNoise(0.1), basis(), TopK(0.2)], n),
        Chain([basis(), Clip(1.0), GaussianNoise(0.1), TopK(0.2)], n),
        Chain([Clip(1.0), GaussianNoise(0.1, "neighbor"), TopK(0.2)], n),
    ):
        assert through(chain, x, Context(1, 2, 3, 4)).shape == (n,)


def test_noise_for_each_neighbor_is_refused_with_one_state_for_all():
    message = r"^transforms\[1\]: gaussian_noise sends each neighbor another payload, but error_feedback"
    with pytest.raises(BadInput, match=message):
        Chain([ErrorFeedback(), GaussianNoise(1.0, "neighbor")], 9)
