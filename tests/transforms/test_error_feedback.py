"""What compression lost is sent later: sums, bounds, refusals."""

import math

import pytest
import torch

from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput
from decentnode.transforms import (  # fmt: skip
    Cast,
    ChunkTopK,
    Clip,
    ErrorFeedback,
    GaussianNoise,
    RandomK,
    Rice,
    Sign,
    Threshold,
    TopK,
    Uniform,
    Wavelet,
)
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain

F32, F64 = torch.float32, torch.float64
RESTS = {
    "top_k": lambda: [TopK(0.1)],
    "top_k, rice": lambda: [TopK(0.1), Rice()],
    "chunk_top_k, uniform": lambda: [ChunkTopK(0.1, 16), Uniform(2)],
    "random_k": lambda: [RandomK(0.2)],
    "threshold": lambda: [Threshold(1.5)],
    "sign": lambda: [Sign()],
    "cast": lambda: [Cast("bf16")],
    "wavelet, top_k, cast": lambda: [Wavelet(), TopK(0.2), Cast("fp16")],
    "clip, noise": lambda: [Clip(1.0), GaussianNoise(0.1)],
}
each_rest = pytest.mark.parametrize("make", RESTS.values(), ids=RESTS)


def random(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def corrected(transforms, n, dtype=F64, decay=1.0):
    chain = Chain([ErrorFeedback(decay), *transforms], n, dtype)
    chain.begin(torch.full((n,), 9.0, dtype=dtype))
    return chain


def residual(chain):
    return chain.state_dict()["0"]["_residual"]


@pytest.mark.parametrize("decay", [1.0, 0.8])
@each_rest
def test_all_that_was_decoded_and_the_residual_are_all_signals(make, decay):
    """With decay b: the sum of b^(age) (signal - decoded signal) is e."""
    n = 97
    chain, receiver = corrected(make(), n, decay=decay), corrected(make(), n, decay=decay)
    signals = random(40, n)
    decoded, expected = torch.zeros(2, n, dtype=F64)
    for round, g in enumerate(signals):
        context = Context(1, round, 0, 2)
        decoded = decay * decoded + receiver.decode(chain.encode(g, context), context)
        expected = decay * expected + g
        assert torch.allclose(decoded + residual(chain), expected, rtol=0, atol=1e-9)
    assert not torch.equal(decoded, expected), "a compressor that loses nothing tests nothing"


def test_float32_signals_are_summed_to_their_precision():
    chain = corrected([TopK(0.1), Cast("fp16")], 50, F32)
    signals, decoded = random(30, 50, dtype=F32), torch.zeros(50)
    for round, g in enumerate(signals):
        decoded += chain.decode(chain.encode(g, Context(1, round, 0)), Context(1, round, 0))
    assert residual(chain).dtype == F32
    assert torch.allclose(decoded + residual(chain), signals.sum(0), rtol=0, atol=1e-4)


def test_it_is_the_equation_of_the_paper():
    """v = g + e, send C(v), e <- v - C(v), written out for the largest tenth."""
    n, k, e = 40, 4, torch.zeros(40, dtype=F64)
    chain = corrected([TopK(0.1)], n)
    for round, g in enumerate(random(25, n)):
        v = g + e
        indices = torch.argsort(-v.abs(), stable=True)[:k].sort().values
        e = v.index_fill(0, indices, 0.0)
        payload = chain.encode(g, Context(1, round, 0))
        assert payload["indices"].tolist() == indices.tolist()
        assert torch.allclose(payload["values"], v[indices], rtol=0, atol=1e-13)
        assert torch.allclose(residual(chain), e, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("fraction", "decay"), [(0.1, 1.0), (0.5, 1.0), (0.1, 0.8)])
def test_the_residual_stays_within_its_bound(fraction, decay):
    """|e| <= c / (1 - decay c) max |g|, c = sqrt(1 - k / n); without feedback the loss grows without end."""
    n, rounds = 60, 600
    chain, plain = corrected([TopK(fraction)], n, decay=decay), Chain([TopK(fraction)], n, F64)
    c = math.sqrt(1 - fraction)
    steady, lost, longest = random(n), torch.zeros(n, dtype=F64), 0.0
    for round in range(rounds):
        g, context = steady + 0.1 * random(n, seed=round), Context(1, round, 0)
        longest = max(longest, float(g.norm()))
        chain.encode(g, context)
        lost += g - plain.decode(plain.encode(g, context), context)
        assert float(residual(chain).norm()) <= c / (1 - decay * c) * longest
    assert float(lost.norm()) > 2 * c / (1 - c) * longest


def test_the_own_signal_of_the_receiver_never_fills_the_gaps():
    chain, g = corrected([TopK(0.1)], 20), random(20)
    payload = chain.encode(g, Context(1, 0, 0))
    filled = chain.decode(payload, Context(1, 0, 0, 2, fill=torch.full((20,), 7.0, dtype=F64)))
    assert torch.equal(filled, chain.decode(payload, Context(1, 0, 0, 2)))
    assert int((filled != 0).sum()) == 2


def test_it_starts_without_a_residual_whatever_the_model():
    chain, g = corrected([TopK(0.5)], 4), torch.tensor([1.0, 2, 3, 4], dtype=F64)
    assert chain.encode(g, Context(1, 0, 0))["values"].tolist() == [3, 4]
    assert residual(chain).tolist() == [1, 2, 0, 0]


def test_behind_other_stages_it_corrects_only_what_follows():
    chain = Chain([Clip(1.0), ErrorFeedback(), TopK(0.1)], 30, F64)
    g, context = 100 * random(30), Context(1, 0, 0)
    decoded = chain.decode(chain.encode(g, context), context)
    kept = chain.state_dict()["1"]["_residual"]
    assert torch.allclose(decoded + kept, g / g.norm(), rtol=0, atol=1e-14)


def test_it_puts_on_the_wire_what_follows_puts_there():
    parameters = ParameterLayout((Entry("a", torch.Size([40]), 0),))
    alone = Chain([TopK(0.1, per_layer=True), Rice()], 40, F32, parameters)
    assert Chain([ErrorFeedback(), *alone.stages], 40, F32, parameters).layout == alone.layout


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([ErrorFeedback()], r"^transforms\[0\]: error_feedback corrects the transforms after it"),
        ([TopK(), ErrorFeedback(), Sign()], r"^transforms\[1\]: error_feedback takes dense but top_k gives"),
        ([ErrorFeedback(), ErrorFeedback(), TopK()], "error_feedback corrects what error_feedback after"),
        ([ErrorFeedback(), TopK(by="change")], r"^transforms\[0\]: error_feedback .* select by magnitude$"),
        ([ErrorFeedback(), ChunkTopK(by="change")], "keeps what chunk_top_k by change leaves out in mind"),
        ([Clip(1.0), ErrorFeedback(), TopK([])], r"^transforms\[2\]: top_k needs one fraction or more$"),
    ],
)  # fmt: skip
def test_what_it_cannot_stand_in_front_of_is_refused(chain, message):
    with pytest.raises(BadInput, match=message):
        Chain(chain, 30)
    with pytest.raises(BadInput, match="with decay is for differences, but here it corrects models"):
        Chain([ErrorFeedback(0.9), Sign()], 30, of_models=True)


def test_it_is_for_differences_alone():
    assert ErrorFeedback.needs_differences and ErrorFeedback().remembers
