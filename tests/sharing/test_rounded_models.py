"""Mixing models that the transforms round, select or correct: what is kept of their mean, and who agrees."""

import math

import numpy as np
import pytest
import torch

from decentnode.errors import BadInput, RunFailed
from decentnode.graph.families import FullyConnected, Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.sharing import AllReduce, Choco, DeepSqueeze, Gossip, GradientTracking, Jwins
from decentnode.testing import Lockstep, bound, random_models
from decentnode.transforms import (
    Cast,
    Clip,
    ErrorFeedback,
    GaussianNoise,
    Qsgd,
    RandomK,
    Rice,
    Sign,
    Threshold,
    TopK,
    Uniform,
    Wavelet,
    Zstd,
)
from decentnode.transforms.base import Context

KEEPS_MEAN = {
    "none": (tuple, True),
    "zstd": (lambda: (Zstd(),), True),
    "cast": (lambda: (Cast("fp16"),), True),
    "qsgd": (lambda: (Qsgd(),), True),
    "uniform, zstd": (lambda: (Uniform(4), Zstd()), True),
    "random_k shared": (lambda: (RandomK(0.3, shared_mask=True),), True),
    "random_k shared, qsgd": (lambda: (RandomK(0.3, shared_mask=True), Qsgd()), True),
    "top_k of all": (lambda: (TopK([1.0], metadata_cap=0.5),), True),
    "random_k": (lambda: (RandomK(0.3),), False),
    "top_k, rice": (lambda: (TopK(0.3), Rice()), False),
    "threshold": (lambda: (Threshold(0.8),), False),
    "clip": (lambda: (Clip(1.0),), False),
    "noise": (lambda: (GaussianNoise(0.01),), False),
    "noise for each": (lambda: (GaussianNoise(0.01, "neighbor"),), False),
    "error_feedback, sign": (lambda: (ErrorFeedback(), Sign()), False),
}


@pytest.mark.parametrize("chain", KEEPS_MEAN)
def test_gossip_declares_the_chains_that_keep_the_mean(chain):
    """In 12 rounds of a run in which both ends lose every fifth edge, in float64."""
    make, keeps = KEEPS_MEAN[chain]
    models = 1 + random_models(8, 64)
    network = Lockstep(Gossip, Ring(8), models, make, is_live=lambda i, j: (i + j) % 5 != network.round % 5)
    assert network.schemes[0].preserves_mean(network.schemes[0].chain) == keeps
    moved = (network.run(12).mean(0) - models.mean(0)).norm()
    assert moved < 1e-13 * models.norm() if keeps else moved > 1e-3


@pytest.mark.parametrize("chain", [tuple, lambda: (Zstd(),)], ids=["none", "zstd"])
def test_without_rounding_a_round_is_the_sum_of_the_received_models_bit_for_bit(chain):
    models = random_models(8, 50, dtype=torch.float32)
    network, third = Lockstep(Gossip, Ring(8), models, chain), 1 / 3
    own_weight = 1 - math.fsum([third, third])
    mixed = network.mix()
    for i in range(8):
        weights = {(i - 1) % 8: third, i: own_weight, (i + 1) % 8: third}
        expected = torch.zeros(50)
        for at, j in enumerate(sorted(weights)):
            expected = models[j] * weights[j] if not at else expected.add(models[j], alpha=weights[j])
        assert torch.equal(mixed[i], expected)


def test_rounding_at_random_leaves_models_as_far_apart_as_the_closed_form_says():
    """q a / (1 - q a) of the mean model's square, q what is lost and a the mean of (1 - l) / (1 + l)."""
    n, d = 8, 512
    mean = random_models(1, d)[0]
    network = Lockstep(Gossip, Ring(n), mean + random_models(n, d, seed=1), lambda: (Qsgd(60),))
    network.run(60)
    distances, lost = [], []
    chain = network.schemes[0].chain
    for _ in range(40):
        x = network.models[0]
        decoded = chain.decode(chain.encode(x, Context(1, network.round, 0)), Context(1, network.round, 0))
        lost.append(float((decoded - x).square().sum() / x.square().sum()))
        network.mix()
        distances.append(network.disagreement / n)
    eigenvalues = np.linalg.eigvalsh(WeightedGraph(Ring(n), MetropolisHastings()).matrix())
    qa = np.mean(lost) * np.mean((1 - eigenvalues) / (1 + eigenvalues))
    square = float(network.models.mean(0).square().sum())
    assert np.mean(distances) == pytest.approx(qa / (1 - qa) * square, rel=0.1)


def test_all_reduce_of_rounded_models_keeps_their_mean():
    models = random_models(6, 64)
    mixed = Lockstep(AllReduce, FullyConnected(6), models, lambda: (Cast(),)).mix()
    assert torch.allclose(mixed.mean(0), models.mean(0), rtol=0, atol=1e-15)


def test_gradient_tracking_with_rounded_models_moves_their_mean_as_exact_models():
    """m <- m - eta (m - mean b): what the transforms lose neither moves the models' mean nor the trackers."""
    b, eta = random_models(8, 32, seed=3), 0.1
    network = Lockstep(
        GradientTracking, Ring(8), torch.zeros(8, 32, dtype=torch.float64), lambda: (Qsgd(60),)
    )
    mean = torch.zeros(32, dtype=torch.float64)
    for _ in range(60):
        network.run(1, lambda i, x: x - b[i], eta)
        mean -= eta * (mean - b.mean(0))
        assert torch.allclose(network.models.mean(0), mean, rtol=0, atol=1e-12)
    assert network.disagreement > 1e-4, "nothing was rounded"


# Models that are rounded too much.


def test_a_chain_too_coarse_for_models_ends_the_run_and_names_what_would_do():
    problem = r"^rank \d, round 1: the transforms are too coarse for models of gossip: they err by 0\.\d+ of"
    suggestion = (
        "its norm, and 0.5 is the most; let them keep more, put error_feedback before them, or use choco$"
    )
    with pytest.raises(RunFailed, match=f"{problem} {suggestion}"):
        Lockstep(Gossip, Ring(8), random_models(8, 512), lambda: (Sign(),)).mix()


def test_zeros_are_never_too_coarse():
    models = torch.zeros(8, 16, dtype=torch.float64)
    assert torch.equal(Lockstep(Gossip, Ring(8), models, lambda: (Sign(),)).mix(), models)


def test_error_feedback_of_models_is_the_dense_recursion_and_its_sums_stay():
    """x_i <- w_ii x_i + sum_j w_ij c_j,   c_j = C(x_j + e_j);   the sum of x_i + (1 - w_ii) e_i is kept.

    So the mean of the models is never farther from where it was than the mean of (1 - w_ii) e_i. Without
    feedback it goes its way: in 60 rounds by more than .4 of its norm.
    """
    n, d, third = 8, 128, 1 / 3
    start = 1 + random_models(n, d)
    x, e, plain = start.clone(), torch.zeros(n, d, dtype=torch.float64), start.clone()
    w = torch.from_numpy(WeightedGraph(Ring(n), MetropolisHastings()).matrix())
    others = w - torch.eye(n, dtype=torch.float64) * third

    def signs(v):
        return v.abs().mean(1, keepdim=True) * torch.where(v >= 0, 1.0, -1.0)

    network = Lockstep(Gossip, Ring(n), start.clone(), lambda: (ErrorFeedback(), Sign()))
    for _ in range(60):
        c = signs(x + e)
        x, e = third * x + others @ c, x + e - c
        plain = third * plain + others @ signs(plain)
        assert torch.allclose(network.mix(), x, rtol=0, atol=1e-10)
        kept = network.models + 2 * third * e
        assert torch.allclose(kept.mean(0), start.mean(0), rtol=0, atol=1e-10)
    norm = start.mean(0).norm()
    assert (plain.mean(0) - start.mean(0)).norm() > 0.4 * norm
    assert (network.models.mean(0) - start.mean(0)).norm() < 0.3 * norm


def test_gossip_takes_error_feedback_before_rounding_alone():
    bound(Gossip(), 8, 64, (ErrorFeedback(), Sign()))
    with pytest.raises(BadInput, match=r"^gossip takes error feedback before transforms that round, not"):
        bound(Gossip(), 8, 64, (ErrorFeedback(), TopK(0.1)))


# The criterion of top_k.


def test_top_k_selects_by_change_what_are_models_and_by_magnitude_what_are_differences():
    def remembers(scheme, *transforms):
        return bound(scheme, 8, 64, transforms).chain.stages[-1].remembers

    assert remembers(Gossip(), TopK(0.1)) and remembers(GradientTracking(), TopK(0.1))
    assert not remembers(Choco(), TopK(0.1)) and not remembers(DeepSqueeze(), TopK(0.1))
    assert not remembers(Gossip(), TopK(0.1, by="magnitude")) and remembers(Choco(), TopK(0.1, by="change"))


@pytest.mark.parametrize(
    ("chain", "agrees"),
    [
        (lambda: (TopK(0.3),), True),
        (lambda: (Wavelet("haar"), TopK(0.3)), True),
        (lambda: (RandomK(0.3),), True),
        (lambda: (TopK(0.3, by="magnitude"),), False),
        (lambda: (Threshold(0.5),), False),
    ],
    ids=["top_k", "wavelet, top_k", "random_k", "top_k by magnitude", "threshold"],
)
def test_models_agree_where_every_coordinate_is_sent_some_time(chain, agrees):
    network, models = (
        Lockstep(Gossip, Ring(8), torch.zeros(8, 40, dtype=torch.float64), chain),
        1 + random_models(8, 40),
    )
    network.train(lambda i, x: -models[i], 1.0)
    before = network.disagreement
    network.run(120)
    left = network.disagreement / before
    assert left < 1e-4 if agrees else left > 1e-2


def test_jwins_that_always_sends_everything_is_gossip():
    models = random_models(8, 48)
    mixed = Lockstep(lambda: Jwins(fractions=[1.0]), Ring(8), models).mix()
    scheme = bound(Jwins(fractions=[0.6, 1.0]), 8, 48)
    assert scheme.preserves_mean(scheme.chain) and not scheme.chain.layout.has_indices
    w = torch.from_numpy(WeightedGraph(Ring(8), MetropolisHastings()).matrix())
    assert torch.allclose(mixed, w @ models, rtol=0, atol=1e-9)
