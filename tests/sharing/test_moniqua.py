"""Moniqua: its error bound, its bytes, and that it is never silently wrong."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decentnode.core.payload import Payload
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.sharing import Moniqua
from decentnode.testing import Lockstep, bound
from decentnode.transforms import Cast
from decentnode.transforms.chain import Chain
from tests.support.scheme_cases import random_models

PAIR = WeightedGraph(Ring(3), MetropolisHastings())


def view(rank):
    return PAIR.view(rank, 0)


def decoded(sender, receiver, **options):
    """What a receiver makes of a sender's model, in whole steps of the quantizer."""
    length = len(sender)
    ends = [bound(Moniqua(**options), 3, length, dtype=sender.dtype) for _ in range(2)]
    payload = ends[0].outgoing(sender, view(0))[1]
    ends[1].outgoing(receiver, view(1))
    return ends[1]._unwrapped(payload, receiver / ends[1].step).to(sender.dtype) * ends[1].step


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_decoded_model_errs_by_delta_b_at_most(bits, rounding):
    if (bits, rounding) == (1, "stochastic"):
        pytest.skip("delta would be 1/2")
    theta, delta = 1.0, 2.0 ** -(bits + (rounding == "nearest"))
    receiver_model, generator = random_models(1, 20_000)[0] * 5, torch.Generator().manual_seed(1)
    sender_model = (
        receiver_model
        + theta * (2 * torch.rand(20_000, generator=generator, dtype=torch.float64) - 1) * 0.9999
    )
    error = (
        (decoded(sender_model, receiver_model, theta=theta, bits=bits, rounding=rounding) - sender_model)
        .abs()
        .max()
        .item()
    )
    most = delta * 2 * theta / (1 - 2 * delta)
    assert 0.97 * most < error <= most * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.floats(-100, 100), st.floats(-0.99, 0.99)), min_size=0, max_size=30),
    st.sampled_from([(1, "nearest"), (2, "nearest"), (8, "nearest"), (2, "stochastic"), (7, "stochastic")]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_every_model_within_theta_is_decoded(pairs, quantizer, dtype):
    bits, rounding = quantizer
    receiver_model = torch.tensor([x for x, _ in pairs], dtype=dtype)
    sender_model = receiver_model + torch.tensor([d for _, d in pairs], dtype=dtype)
    error = (
        decoded(sender_model, receiver_model, theta=1.0, bits=bits, rounding=rounding) - sender_model
    ).abs()
    assert (error <= (1 / (2**bits - 1) if rounding == "nearest" else 2 / (2**bits - 2)) + 1e-4).all()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_model_beyond_theta_is_left_out_and_reported(bits, capsys):
    """Without the hash rank 1 would take 5 for something within theta of its 0."""
    models = torch.zeros(3, 10, dtype=torch.float64)
    models[0, 7] = 5.0
    network = Lockstep(lambda: Moniqua(1.0, bits, 0.5, rounding="nearest"), Ring(3), models)
    mixed = network.mix()
    assert torch.equal(mixed, models)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert sorted(lines)[0] == (
        "round 1: discarded the payload of rank 0: in some coordinate it is 1 or more from the own "
        "model; let the models differ less, or raise sharing.theta"
    )


def test_the_others_are_still_mixed():
    models = torch.tensor([[100.0], [0.0], [0.4]], dtype=torch.float64)
    mixed = Lockstep(lambda: Moniqua(theta=1.0, rounding="nearest"), Ring(3), models).mix()
    assert mixed[0].item() == 100
    assert mixed[1:, 0].tolist() == pytest.approx([0.4 / 3, 0.4 * 2 / 3], abs=1 / 255)


def test_every_round_is_the_published_one():
    """An oracle that works with real numbers modulo B, as the paper does."""
    theta, bits, gamma = 3.0, 4, 0.3
    b_theta = 2 * theta / (1 - 2 * 2.0 ** -(bits + 1))
    w = WeightedGraph(Ring(8), MetropolisHastings()).matrix()
    models = random_models(8, 40) * 0.3 + 2
    network = Lockstep(lambda: Moniqua(theta, bits, gamma, "nearest"), Ring(8), models.clone())
    x = models.numpy().copy()
    centered = lambda v: (v + b_theta / 2) % b_theta - b_theta / 2
    for _ in range(15):
        network.mix()
        q = np.round((x / b_theta % 1) * 2**bits) / 2**bits
        rounded = x + centered(q * b_theta - x)
        new = x.copy()
        for i in range(8):
            for j in ((i - 1) % 8, (i + 1) % 8):
                new[i] += gamma * w[i, j] * (x[i] + centered(q[j] * b_theta - x[i]) - rounded[i])
        x = new
        assert np.allclose(network.models.numpy(), x, rtol=0, atol=1e-9)


def test_consensus_is_reached_up_to_the_quantizer_and_the_mean_is_kept():
    models = random_models(8, 100) * 0.2
    network = Lockstep(lambda: Moniqua(theta=2.0, rounding="nearest"), Ring(8), models)
    mixed = network.run(100)
    assert torch.allclose(mixed.mean(0), models.mean(0), rtol=0, atol=1e-13)
    step = network.schemes[0].step
    assert step / 10 < (mixed - mixed.mean(0)).abs().max() < 3 * step


def test_random_rounding_brings_models_closer_than_one_step():
    models = random_models(8, 50) * 0.2
    left = {}
    for rounding in ("stochastic", "nearest"):
        network = Lockstep(lambda r=rounding: Moniqua(2.0, 2, 0.1, r), Ring(8), models.clone())
        mixed = network.run(60)
        assert torch.allclose(mixed.mean(0), models.mean(0), rtol=0, atol=1e-13)
        left[rounding] = (mixed - mixed.mean(0)).square().mean().sqrt() / network.schemes[0].step
    assert left["stochastic"] < 0.05 < 0.1 < left["nearest"]


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_it_costs_its_bits_and_a_hash(bits):
    network = Lockstep(
        lambda: Moniqua(bits=bits, rounding="nearest"), Ring(8), torch.zeros(8, 1001, dtype=torch.float64)
    )
    network.mix()
    assert network.sent == 8 * 2 * (8 + -(-1001 * bits // 8))


def test_a_broken_payload_is_left_out():
    scheme = bound(Moniqua(), 3, 10)
    x = random_models(1, 10)[0]
    sent = scheme.outgoing(x, view(0))[1]
    broken = Payload.parse(sent.layout, sent.buffer.clone())
    broken["codes"][3] ^= 1
    out = torch.empty_like(x)
    scheme.mix(x, {1: broken}, view(0), out)
    assert torch.equal(out, x)


@pytest.mark.parametrize("value", [float("nan"), -float("inf"), 1e6])
def test_a_value_that_has_no_code_is_named(value):
    x = torch.zeros(10)
    x[4] = value
    with pytest.raises(
        RunFailed, match=r"^rank 0, round 1: moniqua cannot encode .*, found in element 4; with"
    ):
        bound(Moniqua(), 3, 10, dtype=torch.float32).outgoing(x, view(0))


def test_transforms_are_refused():
    with pytest.raises(BadInput, match=r"^moniqua quantizes models itself, so leave out cast$"):
        Moniqua().check_chain(Chain([Cast()], 10))


def test_one_bit_cannot_be_rounded_at_random():
    with pytest.raises(BadInput, match=r"^moniqua with 1 bit needs rounding: nearest$"):
        Moniqua(bits=1)
