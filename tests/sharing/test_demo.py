"""DeMo: the published equations as dense products, their limit, and the bytes on the wire."""

import numpy as np
import pytest
import scipy.fft
import torch

from decentnode.core.vector import Entry, ParameterLayout
from decentnode.graph.families import FullyConnected
from decentnode.sharing import DeMo
from decentnode.testing import Lockstep
from decentnode.transforms import Cast
from tests.support.scheme_cases import random_models

F64 = torch.float64
N, D, ETA = 5, 70, 0.05
MATRIX = ParameterLayout((Entry("w", torch.Size([16, 16]), 0), Entry("b", torch.Size([44]), 256)))


def network(d=D, chain=tuple, dtype=F64, parameters=None, **options):
    start = random_models(1, d, dtype=dtype).expand(N, -1).clone()
    return Lockstep(lambda: DeMo(**options), FullyConnected(N), start, chain, parameters=parameters)


def targets(d=D):
    return random_models(N, d, seed=9)


def train(net, rounds):
    b = targets(net.models.shape[1])
    return net.run(rounds, lambda i, x: x - b[i].to(x.dtype), ETA)


@pytest.mark.parametrize("sign", [True, False])
def test_it_is_the_published_equations(sign):
    """One chunk of 64 and one of 6; 6 and 1 of their coefficients are sent."""
    net, beta = network(sign=sign, matrices=False, fraction=0.1, beta=0.9), 0.9
    x, m, b = net.models[0].numpy().copy(), np.zeros((N, D)), targets().numpy()
    for _ in range(40):
        train(net, 1)
        m, step = beta * m + x - b, np.zeros(D)
        for i in range(N):
            for part, k in ((slice(0, 64), 6), (slice(64, D), 1)):
                X = scipy.fft.dct(m[i, part], norm="ortho")
                X[np.argsort(-np.abs(X), kind="stable")[k:]] = 0
                q = scipy.fft.idct(X, norm="ortho")
                m[i, part] -= q
                step[part] += q / N
        x = x - ETA * (np.sign(step) if sign else step)
        assert np.allclose(torch.stack(net.state("_m")).numpy(), m, rtol=0, atol=1e-12)
        assert np.allclose(net.models.numpy(), x, rtol=0, atol=1e-12)
    assert np.abs(m).max() > 0.1, "all was sent, which tests nothing"


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_all_coefficients_without_sign_are_sgd_of_the_mean_gradient(beta):
    """All of m is sent and subtracted, so nothing is left that momentum could carry on."""
    net = network(sign=False, matrices=False, fraction=1.0, beta=beta)
    x = torch.nn.Parameter(net.models[0].clone())
    optimizer = torch.optim.SGD([x], lr=ETA)
    for _ in range(20):
        train(net, 1)
        x.grad = (x.detach() - targets()).mean(0)
        optimizer.step()
        assert torch.allclose(net.models, x.detach().expand(N, -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("chain", [tuple, lambda: (Cast("bf16"),)])
def test_what_is_sent_and_what_is_kept_are_all_gradients(chain):
    """With beta near 1, m and the sum of all q_i are all gradients, whatever later stages round."""
    net = network(sign=False, matrices=False, fraction=0.05, beta=1 - 1e-15, chain=chain)
    start, total = net.models[0].clone(), torch.zeros(D, dtype=F64)
    for _ in range(30):
        total += net.models[0] - targets().mean(0)
        train(net, 1)
    kept = torch.stack(net.state("_m")).mean(0)
    assert torch.allclose((start - net.models[0]) / ETA + kept, total, rtol=0, atol=1e-9)


def test_models_stay_equal_bit_for_bit_in_single_precision():
    net = network(d=300, dtype=torch.float32, parameters=MATRIX, chunk=8, fraction=1 / 16)
    train(net, 30)
    assert all(torch.equal(net.models[0], row) for row in net.models)


def test_bytes_are_those_of_the_formula():
    """4 blocks of 8 x 8 and 44 other values: 4 of each block, 3 of the rest, with 6 bits each."""
    net = network(d=300, dtype=torch.float32, parameters=MATRIX, chunk=8, fraction=1 / 16)
    train(net, 1)
    k = 4 * 4 + 3
    padded = -(-4 * k // 8) * 8
    assert {payload.nbytes for payload in net.payloads} == {padded + -(-6 * k // 8)}
