"""Schemes with a server: the published equations as dense products, lost nodes, and what is refused."""

import numpy as np
import pytest
import torch

from decentnode.config.consistency import defects
from decentnode.core.payload import PayloadError
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.mixing import Uniform, WeightedGraph
from decentnode.graph.roles import Federated
from decentnode.sharing import FedAdam, FedAvg, FedProx, FedStc, Gossip, ParameterServer, Scaffold
from decentnode.sharing.scaffold import RATE
from decentnode.testing import Lockstep, Quadratics, bound
from decentnode.transforms import Qsgd
from decentnode.transforms.sparsify.top_k import TopK

N, D = 6, 3
RANDOM = np.random.default_rng(5)
A, B = RANDOM.uniform(0.5, 2, N), RANDOM.standard_normal((N, D))
PROBLEM = Quadratics(torch.from_numpy(A), torch.from_numpy(B))
SAMPLES = [0, 5, 2, 7, 1, 3]
"""The server, rank 0, has none."""
GRAPH = Federated(N, rate=0.6, seed=2)
ETA, STEPS = 0.05, 4


def lockstep(make, graph=GRAPH, samples=SAMPLES, chain=tuple, **options):
    start = torch.zeros(graph.num_nodes, D, dtype=torch.float64)
    setup_of = lambda rank: {"samples": samples[rank]}
    return Lockstep(make, graph, start, chain, weights=Uniform(), setup_of=setup_of, **options)


def run(network, rounds, steps=STEPS, eta=ETA, problem=PROBLEM):
    """Rounds of local steps of the nodes that train and have samples."""
    graph = network.graph
    for _ in range(rounds):
        round = network.round

        def gradient(i, x, round=round):
            trains = graph.trains(i, round) and network.schemes[i].setup.samples
            return problem.gradient(i, x) if trains else None

        for _ in range(steps):
            network.train(gradient, eta)
        network.mix()
    return network.models.numpy()


def local(x, i, steps=STEPS, eta=ETA, correction=0.0):
    """The model of client i after its steps from x."""
    for _ in range(steps):
        x = x - eta * (A[i] * (x - B[i]) + correction)
    return x


def shares(chosen, average):
    p = np.array([SAMPLES[i] if average == "samples" else 1 for i in chosen], float)
    return p / p.sum()


@pytest.mark.parametrize("average", ["samples", "equal"])
@pytest.mark.parametrize("down", ["next", "all"])
def test_fed_avg_is_the_published_algorithm(average, down):
    graph = Federated(N, rate=0.6, seed=2, down=down)
    network, x = lockstep(lambda: FedAvg(average=average), graph), np.zeros(D)
    for round in range(12):
        models, chosen = run(network, 1), graph.chosen(round)
        assert len(chosen) == 3
        x = shares(chosen, average) @ np.stack([local(x, i) for i in chosen])
        receivers = range(N) if down == "all" else [0, *graph.chosen(round + 1)]
        for rank in receivers:
            np.testing.assert_allclose(models[rank], x, rtol=0, atol=1e-13)


def test_fed_prox_is_the_published_algorithm():
    network, x = lockstep(lambda: FedProx(mu=0.7)), np.zeros(D)
    for round in range(8):
        models, chosen, parts = run(network, 1), GRAPH.chosen(round), []
        for i in chosen:
            y = x
            for _ in range(STEPS):
                y = y - ETA * (A[i] * (y - B[i]) + 0.7 * (y - x))
            parts.append(y)
        x = shares(chosen, "samples") @ np.stack(parts)
        np.testing.assert_allclose(models[0], x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rule", ["adam", "yogi"])
def test_adaptive_servers_are_the_published_algorithm(rule):
    network = lockstep(lambda: FedAdam(eta=0.3, beta1=0.8, beta2=0.9, tau=0.01, rule=rule))
    x, m, v = np.zeros(D), np.zeros(D), np.full(D, 0.01**2)
    for round in range(15):
        models, chosen = run(network, 1), GRAPH.chosen(round)
        u = shares(chosen, "samples") @ np.stack([local(x, i) - x for i in chosen])
        m = 0.8 * m + 0.2 * u
        v = 0.9 * v + 0.1 * u**2 if rule == "adam" else v - 0.1 * u**2 * np.sign(v - u**2)
        x = x + 0.3 * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(models[0], x, rtol=0, atol=1e-12)


def test_scaffold_is_the_published_algorithm():
    """Option II with both differences computed by the client, as in the paper."""
    network = lockstep(lambda: Scaffold(average="equal", eta=0.9))
    x, c, client_c = np.zeros(D), np.zeros(D), np.zeros((N, D))
    for round in range(15):
        models, chosen = run(network, 1), GRAPH.chosen(round)
        moved, changed = [], []
        for i in chosen:
            y = local(x, i, correction=c - client_c[i])
            new = client_c[i] - c + (x - y) / (STEPS * ETA)
            moved.append(y - x)
            changed.append(new - client_c[i])
            client_c[i] = new
        x, c = x + 0.9 * np.mean(moved, 0), c + len(chosen) / 5 * np.mean(changed, 0)
        np.testing.assert_allclose(models[0], x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(network.state("_model")[0][D:].numpy(), c, rtol=0, atol=1e-12)
        np.testing.assert_allclose(torch.stack(network.state("_c_own")).numpy(), client_c, rtol=0, atol=1e-12)


EQUAL = Quadratics(torch.from_numpy(A[1:]), torch.from_numpy(B[1:])).optimum.numpy()
"""The optimum of all clients, each as important."""


def test_scaffold_reaches_the_optimum_that_fed_avg_misses():
    reached, missed = (
        run(lockstep(lambda make=make: make(average="equal")), 150, steps=10, eta=0.1)
        for make in (Scaffold, FedAvg)
    )
    assert np.abs(reached[0] - EQUAL).max() < 1e-9
    assert np.abs(missed[0] - EQUAL).max() > 0.05


def test_control_variates_keep_their_mean_whatever_transforms_lose():
    network = lockstep(Scaffold, chain=lambda: (Qsgd(levels=4),))
    run(network, 20)
    mean = torch.stack(network.state("_c_own"))[1:].mean(0)
    assert torch.allclose(network.state("_model")[0][D:], mean, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("rule", "reference"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
@pytest.mark.parametrize("samples", [SAMPLES, [4, 5, 2, 7, 1, 3]])
def test_a_parameter_server_is_one_optimizer_on_all_gradients(rule, reference, samples):
    options = {"momentum": 0.5} if rule == "sgd" else {"beta1": 0.8, "beta2": 0.9}
    reference_options = {"momentum": 0.5} if rule == "sgd" else {"betas": (0.8, 0.9)}
    network = lockstep(lambda: ParameterServer(optimizer=rule, **options), Federated(N), samples)
    x = torch.zeros(D, dtype=torch.float64, requires_grad=True)
    optimizer, p = reference([x], lr=ETA, **reference_options), torch.tensor(samples, dtype=torch.float64)
    for _ in range(20):
        models = run(network, 1, steps=2)
        gradients = torch.stack([PROBLEM.gradient(i, x.detach()) for i in range(N)])
        x.grad = (p / p.sum()) @ gradients
        optimizer.step()
        for rank in range(N):
            np.testing.assert_allclose(models[rank], x.detach().numpy(), rtol=0, atol=1e-12)


def ternary(v, k=1):
    """The k entries of largest magnitude, as their signs times the mean magnitude."""
    kept = np.argsort(-np.abs(v))[:k]
    c = np.zeros_like(v)
    c[kept] = np.sign(v[kept]) * np.abs(v[kept]).mean()
    return c


def test_sparse_ternary_updates_are_the_published_algorithm():
    graph = Federated(N, rate=0.6, seed=2, down="all")
    network = lockstep(lambda: FedStc(fraction=0.3), graph)
    x, kept, kept_below = np.zeros(D), np.zeros((N, D)), np.zeros(D)
    for round in range(12):
        models, chosen, sent = run(network, 1), graph.chosen(round), []
        for i in chosen:
            v = local(x, i) - x + kept[i]
            sent.append(ternary(v))
            kept[i] = v - sent[-1]
        v = shares(chosen, "samples") @ np.stack(sent) + kept_below
        kept_below = v - ternary(v)
        x = x + ternary(v)
        np.testing.assert_allclose(models, np.tile(x, (N, 1)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", [float("nan"), -1.0, 1e39])
def test_a_client_whose_rate_no_model_can_have_is_refused(rate, capsys):
    server = bound(Scaffold(), N, D, dtype=torch.float32, graph=WeightedGraph(GRAPH, Uniform()))
    server.begin(torch.zeros(D))
    payload = RATE.join(server.chain.encode(torch.ones(D), None), rate)
    with pytest.raises(PayloadError, match="learning rate"):
        server._unpacked(1, payload)


def test_scaffold_needs_all_coordinates():
    with pytest.raises(BadInput, match="scaffold needs all coordinates of an update, but a transform"):
        bound(Scaffold(), N, D, (TopK(0.5),))


def test_updates_that_not_all_receive_are_refused():
    with pytest.raises(BadInput, match=r"fed_stc needs clients that receive every update; use graph\.down"):
        FedStc().check(WeightedGraph(GRAPH, Uniform()))


@pytest.mark.parametrize("scheme", [Gossip, Scaffold])
def test_roles_and_schemes_must_fit(scheme):
    mismatches = defects({"graph": GRAPH, "sharing": scheme()})
    expected = [
        "gossip is for peers, but federated has a server; use one of: fed_adam, fed_avg, fed_prox, fed_stc, "
        "fed_yogi, parameter_server, scaffold"
    ]
    assert [defect.what for defect in mismatches] == ([] if scheme is Scaffold else expected)


def test_a_lost_client_is_left_out_and_the_others_weigh_more():
    graph = Federated(N)
    network = lockstep(FedAvg, graph, is_live=lambda i, j: 3 not in (i, j) or network.round == 0)
    x, network.round = np.zeros(D), 0
    network.is_live = lambda i, j: network.round == 0 or j != 3
    for round in range(5):
        models = run(network, 1)
        chosen = [i for i in range(1, N) if i != 3 or round == 0]
        p = np.array([SAMPLES[i] for i in chosen], float)
        x = p / p.sum() @ np.stack([local(x, i) for i in chosen])
        np.testing.assert_allclose(models[0], x, rtol=0, atol=1e-13)


def test_a_server_without_payloads_keeps_its_model():
    network = lockstep(FedAvg, Federated(N), is_live=lambda i, j: i != 0)
    assert not run(network, 2).any()


def test_a_lost_server_ends_the_run_in_one_line():
    network = lockstep(FedAvg, Federated(N), is_live=lambda i, j: network.round < 2 or j != 0)
    run(network, 2)
    with pytest.raises(RunFailed, match=r"^rank 1, round 3: lost the server, rank 0; graph.standby names a "):
        run(network, 1)


@pytest.mark.parametrize("make", [FedAvg, FedAdam, Scaffold, FedStc, ParameterServer])
@pytest.mark.parametrize("samples", [[0, 5, 0, 7, 1, 3], [2, 5, 4, 7, 1, 3]])
def test_a_standby_continues_as_the_server_would_have(make, samples):
    graph = Federated(N, standby=2, rate=0.5, seed=1, down="all")
    whole, lossy = (lockstep(make, graph, samples) for _ in range(2))
    lossy.is_live = lambda i, j: lossy.round < 3 or j != 0
    for round in range(8):
        expected, models = run(whole, 1), run(lossy, 1)
        assert np.array_equal(expected[0], expected[2]), "the standby is the server's equal"
        if round < 3 or samples[0] == 0:
            assert np.array_equal(models[2:], expected[2:])
    assert np.array_equal(models[2], models[3]) and np.isfinite(models).all()


def test_a_server_that_missed_rounds_follows_the_other_from_then_on():
    graph = Federated(N, standby=2)
    network = lockstep(FedAvg, graph)
    run(network, 2)
    late = network.schemes[0]
    # As after a restart from a checkpoint of the first round.
    late._round, late._model = 0, torch.full((D,), 9.0, dtype=torch.float64)
    for scheme in network.schemes[1:]:
        scheme.on_peer_lost(0)
        scheme.on_peer_back(0)
    models = run(network, 1)
    assert np.array_equal(models[0], models[2]) and np.abs(models).max() < 5
    assert np.ptp(run(network, 2), axis=0).max() == 0


def test_bytes_are_those_of_the_formula():
    dense = 8 * D
    for make, up, down in (
        (FedAvg, dense, dense),
        (Scaffold, dense + 8, 2 * dense),
        (ParameterServer, dense, dense),
    ):
        network = lockstep(make)
        run(network, 10)
        assert network.sent == 10 * (3 * up + 3 * down)
