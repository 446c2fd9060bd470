"""Schemes over many events and rounds, beside dense float64 models made by the equations of their papers."""

from collections import Counter
from math import exp

import numpy as np
import pytest
import torch

from decentnode.graph.families import FullyConnected, Hypercube, Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.graph.relayed import Relayed
from decentnode.sharing import Balance, Cesar, Shatter, Ubar
from decentnode.sharing.asynchronous import AdPsgd, DivShare
from decentnode.testing import Lockstep, Quadratics, random_models
from decentnode.transforms.sparsify.top_k import TopK
from tests.support.messages import Messages, standard_normal

ETA = 0.1


def assert_near(ours, expected):
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=0, atol=1e-12)


def quadratics(n, d):
    """f_i(x) = a_i |x - b_i|^2 / 2."""
    draw = np.random.default_rng(n)
    a, b = draw.uniform(0.5, 2, n), draw.standard_normal((n, d))
    return Quadratics(torch.from_numpy(a), torch.from_numpy(b)), lambda i, x: a[i] * (x - b[i])


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("graph", [Ring(6), Hypercube(3)], ids=["ring", "hypercube"])
def test_ad_psgd_is_algorithm_1_where_active_nodes_send_requests_to_passive_ones(graph, staleness):
    """Lian et al., 2018, Algorithm 1: X <- X W_k - eta g(X^), W_k the average of a pair, X^ an older X.

    As in the paper's system the graph is bipartite: active nodes ask, passive ones answer. Messages arrive in
    any order. The average takes place when a request arrives; gradients that were computed since it was sent,
    at the model that was sent, are of later iterations.
    """
    n, d, draw = graph.num_nodes, 3, np.random.default_rng(staleness)
    _, gradient = quadratics(n, d)
    active = [bin(i).count("1") % 2 == 0 if n == 8 else i % 2 == 0 for i in range(n)]
    schemes = iter([AdPsgd(staleness, every=1 if is_active else 10**9) for is_active in active])
    net = Messages(lambda: next(schemes), graph, standard_normal(n, d))
    x = net.models.numpy().copy()
    sent, steps, late = {}, {}, {}
    """By active node with an open request: the model that it sent, its steps since, and until the average
    takes place the other node and what its gradients will add."""
    averages = 0

    def average(i):
        j, change = late.pop(i)
        W = np.eye(n)
        W[np.ix_([i, j], [i, j])] = 0.5
        x[:] = W @ x
        x[i] += change

    for _ in range(1000):
        if net.flying and draw.random() < 0.5:
            sender, post = net.flying[index := draw.integers(len(net.flying))]
            if active[sender]:
                average(sender)
                averages += 1
            else:
                del sent[post.target], steps[post.target]
            net.arrive(index)
        else:
            i = draw.integers(n)
            if not net.step(i, lambda i, model: -ETA * torch.from_numpy(gradient(i, model.numpy()))):
                assert steps[i] == staleness
                continue
            change = -ETA * gradient(i, sent.get(i, x[i]))
            if i in late:
                late[i] = late[i][0], late[i][1] + change
            else:
                x[i] += change
            if i in sent:
                steps[i] += 1
            elif active[i]:
                sent[i], steps[i], late[i] = x[i].copy(), 0, (net.flying[-1][1].target, np.zeros(d))
        settled = [i for i in range(n) if i not in sent]
        assert_near(net.models[settled], x[settled])
    assert averages > 100
    net.flush()
    for i in list(late):
        average(i)
    assert_near(net.models, x)


@pytest.mark.parametrize("every", [1, 3])
def test_divshare_is_its_algorithm(every):
    """Biswas et al., WWW 2025, Algorithm 1: per fragment the mean of the own one and the newest of each peer
    since the last mean; H local steps; each fragment to J random nodes, in any order, or lost.
    """
    n, d, parts, degree, draw = 6, 8, 3, 2, np.random.default_rng(every)
    _, gradient = quadratics(n, d)
    make = lambda: DivShare(fragments=parts, degree=degree, every=every)
    net = Messages(make, FullyConnected(n), standard_normal(n, d))
    x, place = net.models.numpy().copy(), [slice(0, 3), slice(3, 6), slice(6, 8)]
    newest, received = {}, [[{} for _ in range(parts)] for _ in range(n)]
    for _ in range(600):
        if net.flying and draw.random() < 0.85:
            sender, post = net.flying[index := draw.integers(len(net.flying))]
            i, f, values = post.target, post.tag, post.payload["vector"].numpy()
            if draw.random() < 0.2:
                net.flying.pop(index)
                continue
            if post.number > newest.get((i, f, sender), -1):
                newest[i, f, sender] = post.number
                received[i][f][sender] = values[: place[f].stop - place[f].start].copy()
            net.arrive(index)
        else:
            i, before = draw.integers(n), len(net.flying)
            averages = net.steps[i] % every == 0
            net.step(i, lambda i, model: -ETA * torch.from_numpy(gradient(i, model.numpy())))
            if averages:
                for f, part in enumerate(place):
                    x[i, part] = (x[i, part] + sum(received[i][f].values())) / (1 + len(received[i][f]))
                    received[i][f] = {}
            x[i] -= ETA * gradient(i, x[i])
            sent = [post for _, post in net.flying[before:]]
            assert len(sent) == (0 if net.steps[i] % every else parts * degree)
            for f, part in enumerate(place) if sent else ():
                of_part = [post for post in sent if post.tag == f]
                assert len({post.target for post in of_part} - {i}) == degree
                padded = np.pad(x[i, part], (0, 3 - (part.stop - part.start)))
                for post in of_part:
                    assert_near(post.payload["vector"], padded)
        assert_near(net.models, x)


def test_divshare_draws_the_targets_of_each_fragment_evenly():
    net = Messages(lambda: DivShare(fragments=3, degree=2), FullyConnected(6), standard_normal(6, 3))
    for _ in range(500):
        net.step(0)
    pairs = Counter((post.tag, post.target) for _, post in net.flying)
    assert len(pairs) == 15
    assert all(abs(count - 200) < 4 * np.sqrt(500 * 0.4 * 0.6) for count in pairs.values())


@pytest.mark.parametrize(("chunks", "per_neighbor"), [(4, 2), (5, 3)])
def test_shatter_mixes_each_chunk_with_a_graph_of_its_own(chunks, per_neighbor):
    """Biswas et al., PETS 2025: X[c] <- (I + D_c)^-1 (I + A_c) X[c], A_c who received chunk c of whom."""
    graph, d, dealt = Relayed(12, 8, seed=1), 30, []

    class Watched(Shatter):
        def _sealed(self, chunk, values, receiver, view, source):
            dealt.append((chunk, receiver, view.rank))
            return super()._sealed(chunk, values, receiver, view, source)

    n, (problem, gradient) = 12, quadratics(12, d)
    net = Lockstep(lambda: Watched(chunks=chunks, per_neighbor=per_neighbor), graph, random_models(n, d))
    x, size = net.models.numpy().copy(), -(-d // chunks)
    for round in range(4):
        dealt.clear()
        net.run(1, problem.gradient, ETA)
        x = np.stack([x[i] - ETA * gradient(i, x[i]) for i in range(n)])
        A = np.zeros((chunks, n, n))
        for c, receiver, owner in dealt:
            A[c, receiver, owner] += 1
        # A chunk goes to r nodes, as those of the paper: r = degree per_neighbor / chunks, up or down.
        assert {*A.sum(1).ravel()} <= {8 * per_neighbor // chunks, -(-8 * per_neighbor // chunks)}
        assert (A.sum((0, 2)) == 8 * per_neighbor).all() and A.max() == 1
        neighbors = [set(graph.neighbors.targets(i, round)) for i in range(n)]
        assert all(owner in neighbors[receiver] for _, receiver, owner in dealt)
        for c in range(chunks):
            part = slice(c * size, (c + 1) * size)
            x[:, part] = (x[:, part] + A[c] @ x[:, part]) / (1 + A[c].sum(1, keepdims=True))
        assert_near(net.models, x)


@pytest.mark.parametrize("s", [1, 2])
def test_cesar_adds_up_what_enough_senders_select(s):
    """Biswas et al., 2024: on the coordinates that s + 1 senders to r selected, x_r <- x_r + sum w_ra (x_a -
    x_r) over those senders; top-k selects by the change since a coordinate was selected last.
    """
    n, d, k, graph = 8, 20, 8, Regular(8, 4, seed=3)
    problem, gradient = quadratics(n, d)
    make = lambda: Cesar(bits=64, scale=1 << 50, least_senders=s + 1)
    net = Lockstep(make, graph, random_models(n, d), lambda: (TopK(k / d),))
    x, W = net.models.numpy().copy(), WeightedGraph(graph, MetropolisHastings()).matrix()
    h, shared = x.copy(), []
    for _ in range(6):
        net.run(1, problem.gradient, ETA)
        x = np.stack([x[i] - ETA * gradient(i, x[i]) for i in range(n)])
        selected = np.zeros((n, d), bool)
        np.put_along_axis(selected, np.argsort(-abs(x - h), 1)[:, :k], True, axis=1)
        h[selected] = x[selected]
        mixed = x.copy()
        for r in range(n):
            senders = np.flatnonzero(W[r] * (np.arange(n) != r))
            T = selected[senders].sum(0) >= s + 1
            shared.append((selected[senders] & T).mean())
            for a in senders:
                mixed[r] += W[r, a] * (selected[a] & T) * (x[a] - x[r])
        x = mixed
        assert_near(net.models, x)
    assert 0.05 < np.mean(shared) < k / d


def spread_models(n, d):
    """Models near each other, but for the last one."""
    x = random_models(1, d) + 0.2 * random_models(n, d, seed=1)
    x[-1] += 2
    return x


def test_balance_is_its_algorithm():
    """Fang et al., 2024, Algorithm 1: S_i has the j with |y_i - y_j| <= gamma exp(-kappa t / T) |y_i|,
    x_i <- alpha y_i + (1 - alpha) mean of S_i, y_i after the local step.
    """
    n, d, T, graph = 10, 12, 12, Regular(10, 4, seed=2)
    problem, gradient = quadratics(n, d)
    net = Lockstep(lambda: Balance(limit=0.5, kappa=2.0, alpha=0.3, horizon=T), graph, spread_models(n, d))
    x, accepted = net.models.numpy().copy(), []
    for t in range(T):
        net.run(1, problem.gradient, ETA)
        y = np.stack([x[i] - ETA * gradient(i, x[i]) for i in range(n)])
        for i in range(n):
            reach = 0.5 * exp(-2.0 * t / T) * np.linalg.norm(y[i])
            S = [j for j in graph.targets(i, t) if np.linalg.norm(y[i] - y[j]) <= reach]
            x[i] = 0.3 * y[i] + 0.7 * y[S].mean(0) if S else y[i]
            accepted.append(len(S))
        assert_near(net.models, x)
    assert {0, 1, 2, 3, 4} == {*accepted}


def test_ubar_is_its_algorithm():
    """Guo et al., 2021, Algorithm 2: the rho |N_i| nearest, of them those with no larger loss, else the best
    of them; x_i <- alpha y_i + (1 - alpha) mean. In the paper y_i is x_i before the local step.
    """
    n, d, rho, alpha, graph = 10, 12, 0.6, 0.3, Regular(10, 4, seed=2)
    problem, gradient = quadratics(n, d)
    loss = lambda i, x: float(problem.a[i]) * np.square(x - problem.b[i].numpy()).sum() / 2
    setup_of = lambda i: {"local_loss": lambda model, round: loss(i, model.numpy())}
    net = Lockstep(lambda: Ubar(rho=rho, alpha=alpha), graph, spread_models(n, d), setup_of=setup_of)
    x, kept = net.models.numpy().copy(), []
    for t in range(10):
        net.run(1, problem.gradient, ETA)
        y = np.stack([x[i] - ETA * gradient(i, x[i]) for i in range(n)])
        for i in range(n):
            near = sorted(graph.targets(i, t), key=lambda j: np.linalg.norm(y[i] - y[j]))[:3]  # .6 * 4, up
            better = [j for j in near if loss(i, y[j]) <= loss(i, y[i])]
            chosen = better or [min(near, key=lambda j: loss(i, y[j]))]
            x[i] = alpha * y[i] + (1 - alpha) * y[chosen].mean(0)
            kept.append(len(better))
        assert_near(net.models, x)
    assert {0, 1} <= {*kept}
