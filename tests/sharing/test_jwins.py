"""JWINS against a dense oracle in the wavelet domain, and the share of bytes that was published."""

import numpy as np
import pytest
import torch

from decentnode.core.payload import dense_layout
from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.sharing import Jwins
from decentnode.sharing.jwins import FRACTIONS
from decentnode.testing import Lockstep, bound
from decentnode.transforms.base import Context
from decentnode.transforms.basis.wavelet import Wavelet
from tests.support.dense_oracles import largest
from tests.support.scheme_cases import random_models


def matrix_of(d):
    """The wavelet transform of length d as a matrix."""
    wavelet = Wavelet()
    wavelet.dimension = d
    wavelet.layout(dense_layout(d, torch.float64))
    return torch.stack([wavelet.in_basis(row) for row in torch.eye(d, dtype=torch.float64)]).numpy().T


def test_every_round_mixes_the_coefficients_that_changed_most():
    n, d, fraction, eta = 8, 48, 0.25, 0.2
    b = random_models(n, d, seed=1)
    start = random_models(1, d, seed=2).expand(n, -1).clone()
    network = Lockstep(lambda: Jwins(fractions=[fraction]), Ring(n), start)
    basis, w = matrix_of(d), WeightedGraph(Ring(n), MetropolisHastings()).matrix()
    x = start.numpy().copy()
    sent_last = x @ basis.T
    for _ in range(40):
        network.run(1, lambda i, x: x - b[i], eta)
        z = (x - eta * (x - b.numpy())) @ basis.T
        selected = largest(z - sent_last, round(fraction * d)) != 0
        sent_last = np.where(selected, z, sent_last)
        filled = np.where(selected[None], z[None], z[:, None])
        x = np.linalg.solve(basis, np.einsum("ij,ijk->ik", w, filled).T).T
        assert np.allclose(network.models.numpy(), x, rtol=0, atol=1e-9)


def test_the_share_of_bytes_is_the_published_one():
    """36.55 % of all bytes with Elias-gamma codes and raw fp32, so 63.5 % are saved."""
    d, shares = 32_000, []
    for fraction in FRACTIONS[:-1]:
        network = Lockstep(
            lambda f=fraction: Jwins(fractions=[f], index_coder="elias_gamma"), Ring(3), torch.zeros(3, d)
        )
        network.models = random_models(3, d, dtype=torch.float32)
        network.mix()
        shares.append(network.payloads[0].nbytes / (4 * d))
    assert np.mean([*shares, 1.0]) == pytest.approx(0.3655, abs=0.001)
    assert np.mean(FRACTIONS) == pytest.approx(0.3429, abs=1e-4)


def test_every_node_draws_its_own_fraction_in_every_round():
    d, rounds = 1000, 60
    network = Lockstep(Jwins, Ring(5), torch.zeros(5, d, dtype=torch.float64))
    drawn = np.zeros((rounds, 5))
    for t in range(rounds):
        network.models = random_models(5, d, seed=t)
        network.mix()
        drawn[t] = [payload.counts["values"] / 1008 for payload in network.payloads[::2]]
    assert set(np.round(drawn.ravel(), 2)) == set(FRACTIONS)
    assert drawn.mean() == pytest.approx(np.mean(FRACTIONS), abs=0.05)
    assert len({tuple(column) for column in drawn.T}) == 5
    assert not (drawn == drawn[0]).all(0).any()


def test_beyond_the_cap_everything_is_sent_and_no_indices():
    scheme = bound(Jwins(), 3, 1008)
    scheme.begin(torch.zeros(1008, dtype=torch.float64))
    model = random_models(1, 1008)[0]
    seen = set()
    for round in range(40):
        payload = scheme.chain.encode(model + round, Context(0, round, 0))
        everything = payload.counts["values"] == 1008
        seen.add(everything)
        assert (payload.index_bytes <= 4) == everything
    assert seen == {True, False}


@pytest.mark.parametrize("coder", ["auto", "elias_gamma", "rice", "bitmap"])
def test_every_coder_of_indices_gives_the_same_models(coder):
    models = random_models(8, 100)
    mixed = [
        Lockstep(lambda c=c: Jwins(index_coder=c), Ring(8), models.clone()).run(3) for c in ("auto", coder)
    ]
    assert torch.equal(*mixed)


def test_another_wavelet_can_be_named_and_a_wrong_one_is_refused():
    with pytest.raises(
        BadInput, match=r"transforms\[0\]: wavelet knows no family 'sim2'; did you mean 'sym2'\?"
    ):
        bound(Jwins(wavelet="sim2"), 3, 10)
    bound(Jwins(wavelet="db4", levels=2), 3, 10)
