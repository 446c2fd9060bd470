"""Schemes against heterogeneity's bias: the published equations, as dense products, and their limits."""

import numpy as np
import pytest
import torch

from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.families import Chain, FullyConnected, Ring, Star, Torus
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph
from decentnode.sharing import D2, DecentLam, ExactDiffusion, Gossip, GradientTracking, QuasiGlobal
from decentnode.testing import Lockstep, bound, tracker_gap
from decentnode.transforms import Cast
from decentnode.transforms.sparsify.random_k import RandomK
from tests.support.scheme_cases import A8, B8, OPTIMUM8, q8_gradient, random_models

A, B = A8.numpy(), B8.numpy()
W8 = WeightedGraph(Ring(8), MetropolisHastings()).matrix()


def q8(make, graph=None, chain=tuple):
    return Lockstep(make, graph or Ring(8), torch.zeros(8, 1, dtype=torch.float64), chain)


def rms_error(models):
    return (models - OPTIMUM8).square().mean().sqrt().item()


def max_error(models, optimum=OPTIMUM8):
    return (models - optimum).abs().max().item()


def dense_gradient(x):
    return A * (x - B)


def without(absent):
    """The gradients of eight quadratics when some ranks have no samples, and the optimum of the others."""
    present = [i for i in range(8) if i not in absent]
    optimum = (A[present] * B[present]).sum() / A[present].sum()
    return (lambda i, x: None if i in absent else q8_gradient(i, x)), optimum


class TestGradientTracking:
    def test_it_reaches_the_optimum_that_gossip_misses(self):
        network = q8(GradientTracking)
        assert max_error(network.run(200, q8_gradient, 0.05)) <= 1e-6
        assert max_error(network.run(200, q8_gradient, 0.05)) <= 1e-11

    def test_it_is_the_published_equations(self):
        network, x = q8(GradientTracking), np.zeros(8)
        y = g = dense_gradient(x)
        for _ in range(50):
            network.run(1, q8_gradient, 0.05)
            x = W8 @ (x - 0.05 * y)
            y, g = W8 @ y + dense_gradient(x) - g, dense_gradient(x)
            assert np.allclose(network.models[:, 0].numpy(), x, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("chain", [tuple, lambda: (Cast(),), lambda: (RandomK(0.5),)])
    def test_trackers_sum_to_the_gradients_after_every_step(self, chain):
        models = torch.zeros(8, 5, dtype=torch.float64)
        network = Lockstep(GradientTracking, Ring(8), models, chain)
        for _ in range(30):
            network.train(q8_gradient, 0.05)
            assert tracker_gap(network).abs().max() <= 1e-12
            network.mix()
            assert tracker_gap(network).abs().max() <= 1e-12

    def test_several_local_steps_leave_the_limit_where_it_is(self):
        network = q8(GradientTracking)
        for _ in range(200):
            for _ in range(4):
                network.train(q8_gradient, 0.02)
            network.mix()
        assert max_error(network.models) <= 1e-6

    def test_ranks_without_samples_follow(self):
        network, (gradient, optimum) = q8(GradientTracking), without({2, 5})
        assert max_error(network.run(400, gradient, 0.05), optimum) <= 1e-9
        assert tracker_gap(network).abs().max() <= 1e-12

    def test_a_rank_without_a_step_goes_along_its_tracker_as_if_its_gradient_were_zero(self):
        gradient, _ = without({2})
        silent, zero = q8(GradientTracking), q8(GradientTracking)
        silent.run(20, gradient, 0.05)
        zero.run(20, lambda i, x: torch.zeros_like(x) if i == 2 else q8_gradient(i, x), 0.05)
        assert torch.allclose(silent.models, zero.models, rtol=0, atol=1e-13)

    def test_a_round_without_a_step_is_one_in_which_the_gradient_stays(self):
        pausing, repeating = q8(GradientTracking), q8(GradientTracking)
        for round in range(20):
            last = repeating.state("_g")[2].clone()
            pause = round % 2 == 1

            def silent(i, x, pause=pause):
                return None if pause and i == 2 else q8_gradient(i, x)

            def same(i, x, pause=pause, last=last):
                return last if pause and i == 2 else q8_gradient(i, x)

            pausing.run(1, silent, 0.05)
            repeating.run(1, same, 0.05)
        assert torch.allclose(pausing.models, repeating.models, rtol=0, atol=1e-13)

    def test_weights_whose_columns_do_not_sum_to_1_are_refused(self):
        with pytest.raises(BadInput, match="gradient_tracking needs weights whose columns sum to 1"):
            GradientTracking().check(WeightedGraph(Star(5), Uniform()))

    def test_each_round_sends_twice_the_bytes_of_gossip(self):
        assert q8_bytes(GradientTracking) == 2 * q8_bytes(Gossip)


def q8_bytes(make):
    network = q8(make)
    network.run(3, q8_gradient, 0.01)
    return network.sent


class TestExactDiffusion:
    def test_it_reaches_the_optimum_that_gossip_misses(self):
        """Gossip stalls at .717794 (test_sharings.py)."""
        assert max_error(q8(ExactDiffusion).run(160, q8_gradient, 0.1)) <= 1e-8

    @pytest.mark.parametrize(
        ("make", "graph", "alpha"), [(ExactDiffusion, Ring(8), 0.5), (D2, Chain(8), 1.0)]
    )
    def test_it_is_the_published_equation(self, make, graph, alpha):
        W = WeightedGraph(graph, MetropolisHastings()).matrix()
        W = (1 - alpha) * np.eye(8) + alpha * W
        network, eta, before = q8(make, graph), 0.05, np.zeros(8)
        x = W @ (before - eta * dense_gradient(before))
        network.run(1, q8_gradient, eta)
        for _ in range(50):
            assert np.allclose(network.models[:, 0].numpy(), x, rtol=0, atol=1e-12)
            network.run(1, q8_gradient, eta)
            g, g_before = dense_gradient(x), dense_gradient(before)
            x, before = W @ (2 * x - before - eta * (g - g_before)), x

    def test_several_local_steps_end_where_displacements_cancel(self):
        network, H, eta = q8(ExactDiffusion), 5, 0.02
        for _ in range(180):
            for _ in range(H):
                network.train(q8_gradient, eta)
            network.mix()
        pull = 1 - (1 - eta * A) ** H
        optimum = (pull * B).sum() / pull.sum()
        assert max_error(network.models, optimum) <= 1e-9
        assert abs(optimum - OPTIMUM8) < 0.01

    def test_it_settles_again_after_a_change_of_the_learning_rate(self):
        network = q8(ExactDiffusion)
        assert max_error(network.run(200, q8_gradient, 0.1)) <= 1e-9
        assert max_error(network.run(1, q8_gradient, 0.05)) >= 0.01
        assert max_error(network.run(220, q8_gradient, 0.05)) <= 1e-8

    def test_ranks_without_samples_follow(self):
        network, (gradient, optimum) = q8(ExactDiffusion), without({2, 5})
        assert max_error(network.run(220, gradient, 0.1), optimum) <= 1e-9

    def test_the_mean_does_not_drift_under_a_coarse_chain(self):
        network = q8(ExactDiffusion, chain=lambda: (Cast(),))
        for _ in range(200):
            network.train(q8_gradient, 0.05)
            before = network.models.mean()
            assert abs(network.mix().mean() - before) <= 1e-12
        assert max_error(network.models) <= 0.05

    @pytest.mark.parametrize("chain", [tuple, lambda: (Cast(),)])
    def test_the_mean_survives_a_round_in_which_both_ends_receive_nothing(self, chain):
        network = q8(ExactDiffusion, chain=chain)
        network.is_live = lambda i, j: network.round != 2 or {i, j} != {3, 4}
        for _ in range(5):
            network.train(q8_gradient, 0.05)
            before = network.models.mean()
            assert abs(network.mix().mean() - before) <= 1e-12

    @pytest.mark.parametrize(("make", "graph"), [(ExactDiffusion, Ring(8)), (D2, Chain(8))])
    def test_rounding_does_not_add_up(self, make, graph):
        """With c = x - psi_prev it did, linearly with the rounds: 2e-4 here."""
        start = torch.zeros(8, 1)
        network = Lockstep(make, graph, start)
        network.run(300, lambda i, x: q8_gradient(i, x).float(), 0.1)
        assert max_error(network.models) <= 3e-6
        settled = network.models
        assert torch.equal(network.run(3, lambda i, x: q8_gradient(i, x).float(), 0.1), settled)

    @pytest.mark.parametrize("make", [ExactDiffusion, D2])
    def test_a_chain_that_selects_is_refused(self, make):
        with pytest.raises(BadInput, match="needs all coordinates of a model, but a transform selects some"):
            bound(make(), 8, 10, (RandomK(0.5),))

    def test_weights_that_are_not_symmetric_are_refused(self):
        with pytest.raises(BadInput, match="exact_diffusion needs symmetric weights"):
            ExactDiffusion().check(WeightedGraph(Star(5), Uniform()))


class TestD2:
    @pytest.mark.parametrize(("graph", "least"), [(Torus(4, 4), "-0.6"), (Ring(8), "-0.3333")])
    def test_it_is_refused_where_it_diverges(self, graph, least):
        with pytest.raises(BadInput, match=f"here it is {least}; use exact_diffusion"):
            D2().check(WeightedGraph(graph, MetropolisHastings()))

    @pytest.mark.parametrize("graph", [Chain(8), Ring(7), FullyConnected(6)])
    def test_it_is_allowed_where_it_converges(self, graph):
        D2().check(WeightedGraph(graph, MetropolisHastings()))

    def test_it_reaches_the_optimum_on_a_chain(self):
        assert max_error(q8(D2, Chain(8)).run(250, q8_gradient, 0.1)) <= 1e-9

    def test_what_is_refused_would_have_diverged_and_exact_diffusion_does_not(self):
        def gradient(i, x):
            return q8_gradient(i % 8, x)

        start = torch.zeros(16, 1, dtype=torch.float64)
        with pytest.raises(RunFailed, match="d2 diverges: the norm of its correction is"):
            Lockstep(D2, Torus(4, 4), start).run(200, gradient, 0.05)
        assert max_error(Lockstep(ExactDiffusion, Torus(4, 4), start).run(160, gradient, 0.1)) <= 1e-9


class TestQuasiGlobal:
    @pytest.mark.parametrize("nesterov", [False, True])
    @pytest.mark.parametrize("H", [1, 3])
    def test_it_is_the_published_equations(self, nesterov, H):
        network = q8(lambda: QuasiGlobal(beta=0.8, mu=0.7, nesterov=nesterov))
        x, m = np.zeros(8), np.zeros(8)
        for round in range(60):
            eta = 0.05 / (1 + round // 20)
            psi = x
            for _ in range(H):
                network.train(q8_gradient, eta)
                g = dense_gradient(psi)
                step = 0.8 * m + g
                psi = psi - eta * (g + 0.8 * step if nesterov else step)
            network.mix()
            mixed = W8 @ psi
            m = 0.7 * m + 0.3 * (x - mixed) / (H * eta)
            x = mixed
            assert np.allclose(network.models[:, 0].numpy(), x, rtol=0, atol=1e-11)

    def test_its_limit_is_that_of_gossip(self):
        assert rms_error(q8(QuasiGlobal).run(160, q8_gradient, 0.1)) == pytest.approx(0.717794, abs=1e-6)

    def test_it_gets_there_sooner(self):
        rounds, eta = 60, 0.01
        momentum = q8(lambda: QuasiGlobal(beta=0.5)).run(rounds, q8_gradient, eta)
        assert rms_error(momentum) < 0.5 * rms_error(q8(Gossip).run(rounds, q8_gradient, eta))

    def test_a_learning_rate_of_zero_leaves_the_momentum_alone(self):
        network = q8(QuasiGlobal)
        network.run(5, q8_gradient, 0.05)
        before = torch.stack(network.state("_m"))
        network.run(1, q8_gradient, 0.0)
        assert torch.equal(torch.stack(network.state("_m")), before)
        assert network.models.isfinite().all()

    def test_a_rank_without_steps_has_no_momentum_and_does_not_harm(self):
        network, (gradient, optimum) = q8(QuasiGlobal), without({2, 5})
        assert max_error(network.run(300, gradient, 0.02), optimum) <= 0.7
        assert not network.state("_m")[2].any()


@pytest.mark.parametrize("make", [QuasiGlobal, DecentLam])
def test_momentum_leaves_buffers_alone(make):
    entries = Entry("weight", torch.Size((1,)), 0), Entry("running_var", torch.Size((1,)), 1, is_buffer=True)
    statistics = np.arange(1.0, 9.0)
    models = torch.from_numpy(np.stack([np.zeros(8), statistics], axis=1))
    network = Lockstep(make, Ring(8), models, parameters=ParameterLayout(entries))
    for _ in range(30):
        # Before a gradient is known, the forward pass has moved the running statistics to small numbers.
        network.models[:, 1] *= 0.5
        network.run(1, lambda i, x: torch.stack([q8_gradient(i, x[0]), torch.zeros_like(x[1])]), 0.1)
        statistics = W8 @ (0.5 * statistics)
    np.testing.assert_allclose(network.models[:, 1].numpy(), statistics, rtol=1e-12)


class TestDecentLam:
    @pytest.mark.parametrize("H", [1, 3])
    def test_it_is_the_published_equations(self, H):
        network = q8(lambda: DecentLam(beta=0.8))
        x, m = np.zeros(8), np.zeros(8)
        for round in range(60):
            eta = 0.02 / (1 + round // 20)
            psi = x
            for _ in range(H):
                network.train(q8_gradient, eta)
                psi = psi - eta * dense_gradient(psi)
            network.mix()
            ghat = (x - W8 @ psi) / (H * eta)
            m = 0.8 * m + ghat
            x = x - H * eta * m
            assert np.allclose(network.models[:, 0].numpy(), x, rtol=0, atol=1e-11)

    @pytest.mark.parametrize(("beta", "rounds"), [(0.0, 80), (0.9, 300)])
    def test_its_limit_is_that_of_gossip_without_momentum(self, beta, rounds):
        models = q8(lambda: DecentLam(beta=beta)).run(rounds, q8_gradient, 0.1)
        assert rms_error(models) == pytest.approx(0.717794, abs=1e-6)

    def test_a_rank_without_steps_counts_as_one_whose_gradient_is_zero(self):
        gradient, _ = without({2})
        silent, zero = q8(DecentLam), q8(DecentLam)
        silent.run(30, gradient, 0.05)
        zero.run(30, lambda i, x: torch.zeros_like(x) if i == 2 else q8_gradient(i, x), 0.05)
        assert torch.allclose(silent.models, zero.models, rtol=0, atol=1e-13)

    def test_a_learning_rate_of_zero_is_gossip(self):
        models = random_models(8)
        lam, gossip = (Lockstep(make, Ring(8), models).run(5) for make in (DecentLam, Gossip))
        assert torch.allclose(lam, gossip, rtol=0, atol=1e-14)
