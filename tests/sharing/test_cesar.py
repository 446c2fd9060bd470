"""CESAR: what is shared, what it sums to, and that no value is sent alone."""

import numpy as np
import pytest
import torch

from decentnode.core.payload import Layout, Payload
from decentnode.errors import BadInput
from decentnode.graph.families import FullyConnected, Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import EpidemicOracle
from decentnode.sharing import Cesar, Gossip
from decentnode.sharing.cesar import shared_fraction
from decentnode.testing import Lockstep, bound, random_models
from decentnode.transforms import Cast, Rice
from decentnode.transforms.base import Context
from decentnode.transforms.basis.wavelet import Wavelet
from decentnode.transforms.error_feedback import ErrorFeedback
from decentnode.transforms.privacy.gaussian_noise import GaussianNoise
from decentnode.transforms.sparsify.random_k import RandomK
from decentnode.transforms.sparsify.threshold import Threshold
from decentnode.transforms.sparsify.top_k import TopK

SELECTIONS = {
    "random_k": lambda: (RandomK(0.4),),
    "top_k": lambda: (TopK(0.4),),
    "rice": lambda: (TopK(0.4), Rice()),
    "wavelet": lambda: (Wavelet(), TopK(0.4)),
}


def fine(s=1):
    return Cesar(bits=64, scale=1 << 50, least_senders=s + 1)


@pytest.mark.parametrize(
    ("density", "senders", "s", "fraction"),
    [
        (0.1, 3, 1, 0.019), (0.1, 5, 1, 0.0344), (0.1, 9, 1, 0.057), (0.5, 3, 1, 0.375), (0.5, 5, 1, 0.469),
        (0.5, 9, 1, 0.498), (0.5, 5, 2, 0.5 * 11 / 16), (0.5, 5, 4, 0.5**5),
    ],
)  # fmt: skip
def test_the_shared_fraction_is_that_of_the_paper(density, senders, s, fraction):
    """For s = 1 it is a (1 - (1 - a)^(k - 1)); the bytes of a round agree."""
    assert shared_fraction(density, senders, s) == pytest.approx(fraction, abs=6e-5 if s > 1 else 5e-4)
    n, d = senders + 1, 4000
    net = Lockstep(
        lambda: Cesar(least_senders=s + 1), FullyConnected(n), torch.zeros(n, d), lambda: (RandomK(density),)
    )
    net.mix()
    messages = n * senders
    assert len(net.payloads) == messages
    sent = (net.sent - 8 * messages) / (4 * d * messages)
    # Four standard deviations of the fraction of one coordinate's senders, over all coordinates.
    assert sent == pytest.approx(fraction, abs=4 * np.sqrt(fraction / d) / np.sqrt(n / 2) + 5e-4)


@pytest.mark.parametrize("chain", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("s", [1, 2])
@pytest.mark.parametrize(
    "graph", [Regular(8, 4, seed=3), EpidemicOracle(8, 5, seed=1)], ids=["static", "changing"]
)
def test_it_is_gossip_on_the_coordinates_that_enough_select(graph, s, chain):
    """Against dense arithmetic on what the chain of each node selects; also when messages are lost."""
    x, start, generator = random_models(8, 32), torch.zeros(32, dtype=torch.float64), np.random.default_rng(2)
    live = generator.random((8, 8)) < 0.9
    for lost in (np.ones_like(live), live & live.T):
        net = Lockstep(lambda: fine(s), graph, x, chain, is_live=lambda i, j, lost=lost: lost[i, j])
        probe = [bound(Gossip(), 8, 32, chain()) for _ in range(8)]
        for scheme in (*net.schemes, *probe):
            scheme.begin(start)
        views = [net.weighted.view(i, 0) for i in range(8)]
        basis = probe[0].chain
        signals = torch.stack([basis.to_basis(row) for row in x])
        chosen = np.stack([selected(net.schemes[i], probe[i], x[i], views[i]) for i in range(8)])
        expected = signals.clone()
        for i, view in enumerate(views):
            heard = [a for a in view.sources if lost[i, a]]
            # With indices the receiver tells its senders who is there; with a seed it cannot.
            known = heard if net.schemes[i].promises.phases == 3 else view.sources
            at = (chosen[[*known]].sum(0) > s) & ~chosen[[a for a in known if a not in heard]].any(0)
            for a in heard:
                here = torch.from_numpy(chosen[a] & at).double()
                expected[i] += view.weights[a] * here * (signals[a] - signals[i])
        context = Context(0, 0, 0)
        expected = torch.stack([basis.from_basis(row, context) if basis.basis else row for row in expected])
        mixed = net.mix()
        assert torch.allclose(mixed, expected, rtol=0, atol=1e-12)
        assert not torch.allclose(mixed, x)


def selected(scheme, probe, x, view):
    """The selection of a node, from the indices that the same chain gives in gossip."""
    payload = next(iter(probe.outgoing(x, view).values()))
    index_layout = Layout(tuple(f for f in payload.layout.fields if f.name != "values"))
    return scheme._selection(
        Payload.of(index_layout, {f.name: payload[f.name] for f in index_layout.fields}), view, view.rank
    )


@pytest.mark.parametrize("chain", [SELECTIONS["random_k"], SELECTIONS["top_k"]], ids=["random_k", "top_k"])
def test_no_value_is_sent_alone(chain):
    """With s = 2 a sum has three senders or more; what one sends looks random, their sum does not."""
    d = 40_000
    x = torch.zeros(6, d)
    x[:] = 1 / torch.arange(1, d + 1)
    net = Lockstep(lambda: Cesar(least_senders=3, scale=1 << 8), FullyConnected(6), x, chain)
    for scheme in net.schemes:
        scheme.begin(torch.zeros(d))
    seen, scheme = {}, net.schemes[0]
    mix = scheme.mix

    def tap(vector, incoming, view, out):
        chosen = scheme._source_selections
        seen.update({a: (payload["values"].clone(), chosen[a]) for a, payload in incoming.items()})
        mix(vector, incoming, view, out)

    scheme.mix = tap
    net.mix()
    number = sum(chosen.astype(int) for _, chosen in seen.values())
    total = torch.zeros(d, dtype=torch.int32)
    for y, chosen in seen.values():
        here = chosen & (number >= 3)
        assert y.numel() == here.sum() > 1000
        total[torch.from_numpy(here)] += y
        counts = np.bincount(y.numpy().view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert 119 < ((counts - expected) ** 2 / expected).sum() < 391
    weight = net.weighted.view(0, 0).weights[1]
    plain = (x[1] * (weight * 256)).round().int() * torch.from_numpy(np.where(number >= 3, number, 0)).int()
    assert torch.equal(total, plain)


@pytest.mark.parametrize(
    ("transforms", "reason"),
    [
        ((), "this chain does not select values"),
        ((RandomK(), Cast()), "this chain rounds values"),
        ((TopK([0.1, 0.2]),), "another number of values in each round"),
        ((Threshold(0.5),), "another number of values in each round"),
        ((GaussianNoise(0.1, "neighbor"), RandomK()), "other ones to each neighbor"),
        ((ErrorFeedback(), RandomK()), "leave out error_feedback"),
    ],
)
def test_chains_that_cannot_be_masked_are_refused(transforms, reason):
    with pytest.raises(BadInput, match=reason):
        bound(Cesar(), 8, 40, transforms)


def test_a_graph_with_too_few_senders_is_refused():
    with pytest.raises(
        BadInput, match="cesar hides models among at least 3 senders to each node, but rank 0"
    ):
        Cesar(least_senders=3).check(WeightedGraph(Ring(8), MetropolisHastings()))
