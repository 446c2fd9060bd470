"""low_rank against the singular value decomposition, in double precision."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from decentnode.core.payload import PayloadError
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput, RunFailed
from decentnode.transforms import LowRank, Qsgd, Zstd
from decentnode.transforms.base import Context
from decentnode.transforms.basis.wavelet import Wavelet
from decentnode.transforms.chain import Chain


def context(round=0):
    return Context(seed=1, round=round, sender=3)


def layout_of(**shapes):
    entries, offset = [], 0
    for name, shape in shapes.items():
        entries.append(Entry(name, torch.Size(shape), offset))
        offset += torch.Size(shape).numel()
    return ParameterLayout(tuple(entries))


def chain_of(transform, parameters, dtype=torch.float64):
    return Chain([transform], parameters.numel, dtype, parameters)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def there_and_back(chain, signal, round=0):
    return chain.decode(chain.encode(signal, context(round)), context(round))


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_matrix_of_that_rank_comes_back(rank, dtype, digits):
    parameters = layout_of(w=(20, 30), conv=(8, 4, 3, 3), bias=(7,), scalar=(), none=(0, 3))
    pieces = [gaussian(20, rank) @ gaussian(rank, 30, seed=1), gaussian(8, rank) @ gaussian(rank, 36, seed=2)]
    signal = torch.cat([*(p.reshape(-1) for p in pieces), gaussian(8)]).to(dtype)
    chain = chain_of(LowRank(rank), parameters, dtype)
    for round in range(2):
        decoded = there_and_back(chain, signal, round)
        assert decoded.dtype == dtype
        assert torch.allclose(decoded, signal, rtol=0, atol=digits * float(signal.abs().max()) * 10)
        assert torch.equal(decoded[-8:], signal[-8:]), "one dimension: as it is"


def test_bytes_are_those_of_the_thin_matrices():
    parameters = layout_of(w=(20, 30), conv=(8, 4, 3, 3), square=(4, 4), bias=(7,))
    assert chain_of(LowRank(2), parameters).layout.max_bytes == 8 * (2 * 50 + 2 * 44 + 16 + 7)


def spectrum(m, n, values):
    """A matrix with given singular values."""
    u, v = torch.linalg.qr(gaussian(m, len(values))).Q, torch.linalg.qr(gaussian(n, len(values), seed=1)).Q
    return u @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ v.T


def test_iterations_and_rounds_approach_the_best_approximation():
    matrix = spectrum(40, 50, [2.0**-i for i in range(20)])
    best = (matrix.square().sum() - torch.linalg.svdvals(matrix)[:3].square().sum()).sqrt()
    parameters, signal = layout_of(w=(40, 50)), matrix.reshape(-1)

    def error(chain, round=0):
        return (there_and_back(chain, signal, round) - signal).norm()

    first = error(chain_of(LowRank(3), parameters))
    assert best * (1 - 1e-12) <= first <= 2 * best
    assert error(chain_of(LowRank(3, iterations=20), parameters)) == pytest.approx(float(best), rel=1e-6)
    warm = chain_of(LowRank(3), parameters)
    errors = [error(warm, round) for round in range(20)]
    assert errors[-1] == pytest.approx(float(best), rel=1e-6)
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(errors))
    cold = chain_of(LowRank(3, warm_start=False), parameters)
    assert error(cold, 0) == first and abs(error(cold, 1) - first) > 1e-6


def test_the_squared_error_is_what_the_second_factor_lacks():
    parameters, signal = layout_of(w=(10, 12)), gaussian(120)
    chain = chain_of(LowRank(2), parameters)
    payload = chain.encode(signal, context())
    p, q = payload["factors"][:20].view(10, 2), payload["factors"][20:]
    assert torch.allclose(p.T @ p, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-13)
    error = (chain.decode(payload, context()) - signal).square().sum()
    assert error == pytest.approx(float(signal.square().sum() - q.square().sum()), rel=1e-12)


def test_a_signal_grows_again_after_it_was_zero():
    parameters, signal = layout_of(w=(10, 12)), (gaussian(10, 1) @ gaussian(1, 12, seed=1)).reshape(-1)
    chain = chain_of(LowRank(1), parameters)
    assert torch.equal(there_and_back(chain, torch.zeros_like(signal)), torch.zeros_like(signal))
    assert torch.allclose(there_and_back(chain, signal, 1), signal, rtol=0, atol=1e-12)


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_are_matrices_in_either_memory_order(channels_last):
    module = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Linear(5, 9))
    parameters = ParameterLayout.of(module, channels_last=channels_last)
    signal = torch.zeros(parameters.numel)
    rank_one = torch.outer(torch.arange(1.0, 7), torch.arange(36.0).sin())
    parameters.entries[0].view(signal).copy_(rank_one.view(6, 4, 3, 3))
    assert torch.allclose(
        there_and_back(chain_of(LowRank(1), parameters, torch.float32), signal), signal, atol=1e-5
    )


@pytest.mark.parametrize("warm_start", [True, False])
def test_a_resumed_node_sends_the_same_bytes(warm_start):
    parameters = layout_of(w=(10, 12), v=(9, 9))
    chain, resumed = (chain_of(LowRank(2, 1, warm_start), parameters) for _ in range(2))
    for round in range(2):
        chain.encode(gaussian(201, seed=round), context(round))
    state = chain.state_dict()
    expected = chain.encode(gaussian(201, seed=2), context(2)).buffer
    resumed.load_state_dict(state)
    assert torch.equal(resumed.encode(gaussian(201, seed=2), context(2)).buffer, expected)
    assert chain.transforms[0].remembers == warm_start


def test_where_there_are_no_matrices_it_is_refused():
    parameters = layout_of(w=(8, 8))
    with pytest.raises(BadInput, match=r"^transforms\[1\]: low_rank needs the model's matrices"):
        Chain([Wavelet(), LowRank()], 64, parameters=parameters)
    with pytest.raises(BadInput, match=r"^transforms\[0\]: low_rank needs the model's matrices"):
        Chain([LowRank()], 64)
    with pytest.raises(BadInput, match=r"^transforms\[0\]: low_rank takes whole models of 64 values, not 65"):
        Chain([LowRank()], 65, parameters=parameters)
    with pytest.raises(BadInput, match=r"^transforms\[1\]: qsgd takes"):
        Chain([LowRank(), Qsgd()], 64, parameters=parameters)


def test_factors_that_are_no_numbers_are_refused():
    chain = chain_of(LowRank(), layout_of(w=(8, 8)))
    payload = chain.encode(gaussian(64), context())
    payload["factors"][3] = float("nan")
    with pytest.raises(PayloadError, match=r"^a factor of a matrix is not finite$"):
        chain.decode(payload, context())


def test_a_matrix_whose_products_overflow_ends_the_run_by_name():
    parameters = layout_of(bias=(3,), w=(20, 30))
    chain = chain_of(LowRank(), parameters, torch.float32)
    with pytest.raises(RunFailed, match=r"^rank 3, round 3: low_rank cannot encode w: "):
        chain.encode(torch.full((603,), 3e38), context(round=2))


def test_byte_coders_may_follow():
    parameters, signal = layout_of(w=(30, 30)), gaussian(900)
    plain, coded = (
        chain_of(LowRank(2), parameters),
        Chain([LowRank(2), Zstd()], 900, torch.float64, parameters),
    )
    assert torch.equal(there_and_back(coded, signal), there_and_back(plain, signal))
