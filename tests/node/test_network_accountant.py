"""What nodes learn of each other, against brute force: the linear algebra of all that they receive."""

import itertools
import math

import numpy as np
import pytest

from decentnode.cli.privacy import colluders_of, report
from decentnode.config import loader
from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import EpidemicOracle
from decentnode.node.privacy.network_accountant import account
from decentnode.sharing.blocks.network_privacy import (
    gaussian_epsilon,
    pairwise_renyi,
    rounds_seen,
    sensitivity,
)

CONFIG = """\
graph: {name: ring, nodes: 8}
dataset: {name: digits, train_size: 240, test_size: 10, partition: {name: iid}}
model: logistic_regression
training: {optimizer: {name: SGD, lr: 0.1}, batch_size: 8, steps_per_round: 2}
sharing: {name: muffliato, noise: 5, steps: 2}
communication: inproc
rounds: 3
evaluation: {every: 0}
"""
PRIVATE = "training.privacy={name: dp_sgd, clip: 1.0, noise: 2.0, delta: 1.0e-3}"


def settings(folder, *overrides):
    (folder / "x.yaml").write_text(CONFIG)
    return loader.load(folder / "x.yaml", overrides)


def messages(weighted, rounds, steps, group):
    """All that the group receives, in coefficients of the noisy updates, one node and message at a time."""
    n, seen = weighted.num_nodes, []
    models = [np.zeros(rounds * n) for _ in range(n)]
    for round in range(rounds):
        models = [x + np.eye(rounds * n)[round * n + i] for i, x in enumerate(models)]
        for _ in range(steps):
            heard = {w for v in group for w in weighted.graph.sources(v, round)} - set(group)
            seen += [models[w] for w in sorted(heard)]
            models = [
                sum(weight * models[j] for j, weight in weighted.view(i, round).weights.items())
                for i in range(n)
            ]
    return np.array(seen)


def brute_force(seen, nodes, noise, group, u):
    """The most that signs of the updates of u move all messages, by generalized least squares."""
    rounds = seen.shape[1] // nodes
    unknown = [k for k in range(seen.shape[1]) if k % nodes not in group]
    by_noise = seen[:, unknown]
    precision = np.linalg.pinv(noise**2 * by_noise @ by_noise.T, rcond=1e-13, hermitian=True)
    signal = seen[:, [r * nodes + u for r in range(rounds)]]
    information = signal.T @ precision @ signal
    return math.sqrt(max(s @ information @ s for s in itertools.product((1, -1), repeat=rounds)))


@pytest.mark.parametrize(
    ("graph", "rounds", "steps", "group"),
    [
        (Ring(8), 1, 3, (0,)), (Ring(9), 3, 1, (2, 5)), (Regular(10, 3, seed=1), 2, 2, (4,)),
        (EpidemicOracle(9, 2), 3, 1, (0, 7)),
    ],
)  # fmt: skip
def test_all_messages_together_tell_what_least_squares_find(graph, rounds, steps, group):
    weighted = WeightedGraph(graph, MetropolisHastings())
    n, noise, seen = graph.num_nodes, 1.7, messages(weighted, rounds, steps, group)
    sensitivities = sensitivity(seen, n, noise, group)
    counts = rounds_seen(graph.sources, n, rounds, steps, group)
    assert {u for u in range(n) if np.isinf(sensitivities[u])} == set(group)
    for u in set(range(n)) - set(group):
        brute = brute_force(seen, n, noise, group, u)
        # Signs reach the bound where updates of all rounds show in the same direction; it is never exceeded.
        assert brute <= sensitivities[u] + 1e-6 and sensitivities[u] <= 1.05 * brute + 1e-6
        assert sensitivities[u] <= math.sqrt(counts[u]) / noise + 1e-9
        arrived = [r for r in range(rounds) if seen[:, r * n + u].any()]
        assert arrived == list(range(counts[u]))


def test_on_a_ring_messages_share_their_noise():
    """Ring of 64, 20 steps: published 0.01501 of local privacy eight hops away; together they tell it all."""
    weighted = WeightedGraph(Ring(64), MetropolisHastings())
    w = weighted.matrix()
    hears = (w > 0) & ~np.eye(64, dtype=bool)
    published = 2 * pairwise_renyi([(np.linalg.matrix_power(w, t), hears) for t in range(20)], 1.0)
    sensitivities = sensitivity(messages(weighted, 1, 20, (0,)), 64, 1.0, (0,)) ** 2
    assert math.isclose(published[8, 0], 0.01501, rel_tol=1e-3)
    assert np.allclose(sensitivities[[1, 2, 8, 20]], 1.0, atol=1e-6) and (sensitivities[21:44] == 0).all()
    # Two messages of a neighbor are enough for the node behind it; the theorem has a third.
    two = 2 * pairwise_renyi([(np.linalg.matrix_power(w, t), hears) for t in range(2)], 1.0)
    assert (
        math.isclose(two[2, 0], 1 / 3) and sensitivity(messages(weighted, 1, 2, (0,)), 64, 1.0, (0,))[2] == 1
    )


@pytest.mark.parametrize("mu", [0.01, 0.5, 1.0, 4.0, 60.0])
def test_epsilon_of_a_gaussian_mechanism_is_exact(mu):
    epsilon = gaussian_epsilon(mu, 1e-5)
    assert gaussian_epsilon(0.0, 1e-5) == 0 and gaussian_epsilon(math.inf, 1e-5) == math.inf
    # What N(mu, 1) has more than exp(epsilon) times N(0, 1), by a sum over a fine grid.
    x, step = np.linspace(-12, mu + 12, 200_001, retstep=True)
    excess = np.exp(-((x - mu) ** 2) / 2) * -np.expm1(np.minimum(epsilon - mu * x + mu**2 / 2, 0))
    assert epsilon == 0 or math.isclose(excess.sum() * step / math.sqrt(2 * math.pi), 1e-5, rel_tol=1e-6)
    assert epsilon <= mu**2 / 2 + mu * math.sqrt(2 * math.log(1e5))
    assert epsilon == 0 or epsilon >= mu**2 / 2


def test_the_accountant_of_a_run_with_muffliato(tmp_path):
    bound = account(settings(tmp_path), 1e-5)
    local, n = gaussian_epsilon(math.sqrt(3) / 5, 1e-5), 8
    assert bound.local == pytest.approx([local] * n)
    assert bound.central == pytest.approx([gaussian_epsilon(math.sqrt(3 / n) / 5, 1e-5)] * n)
    off = ~np.eye(n, dtype=bool)
    assert (bound.fixed[off] <= bound.proven[off] + 1e-9).all() and bound.proven[off].max() <= local + 1e-9
    # Six exchanges reach four hops; only the rounds count whose updates still arrive.
    assert bound.proven[4, 0] == pytest.approx(gaussian_epsilon(math.sqrt(2) / 5, 1e-5))
    assert np.isinf(np.diag(bound.proven)).all() and not bound.doubts
    pair = account(settings(tmp_path), 1e-5, [3, 0])
    assert pair.fixed.shape == (n, 1) and pair.published is None
    assert (pair.fixed[:, 0] >= np.maximum(bound.fixed[:, 0], bound.fixed[:, 3]) - 1e-9).all()
    assert account(settings(tmp_path, "sharing.generator=seeded")).doubts


def test_private_steps_are_accounted_under_any_scheme(tmp_path):
    privacy = account(settings(tmp_path, "sharing=choco", PRIVATE))
    more = account(settings(tmp_path, "sharing=choco", PRIVATE, "rounds=2"))
    assert privacy.delta == 1e-3 and privacy.fixed is None
    # A neighbor hears all three rounds, the next node two, and the fourth none.
    assert privacy.proven[1, 0] == pytest.approx(privacy.local[1])
    assert privacy.proven[2, 0] == pytest.approx(more.local[2])
    assert privacy.proven[4, 0] == 0 and max(privacy.central) < min(privacy.local)
    everybody = account(settings(tmp_path, "sharing=none", PRIVATE))
    assert everybody.proven[~np.eye(8, dtype=bool)].max() == 0
    server = account(settings(tmp_path, "sharing=fed_avg", "graph={name: federated, nodes: 8}", PRIVATE))
    assert "servers" in server.notes[0] and server.proven[5, 3] == pytest.approx(server.local[5])


def test_the_command_prints_and_draws_it(tmp_path):
    picture = tmp_path / "pairs.svg"
    lines = "\n".join(report(settings(tmp_path), 1e-5, None, picture))
    assert picture.read_text().count("<image") == 4  # three panels and the scale
    assert "local extreme" in lines and "distance" in lines
    assert "of each node, for ranks 3, 5 together" in "\n".join(report(settings(tmp_path), 1e-5, [5, 3]))
    for overrides, colluders, delta, message in (
        (["sharing=gossip"], None, None, "adds no noise that an accountant covers"),
        ([], "9", None, "ranks of this graph are 0..7, not 9"),
        ([], "0,1,2,3,4,5,6,7", None, "name some of the nodes"),
        ([], "a", None, "ranks as in 3,5, not 'a'"),
        ([], None, 1.5, "--delta must be between 0 and 1"),
        (
            ["sharing=gossip", PRIVATE[:-1] + ", accountant: none}"],
            None,
            None,
            "needs dp_sgd with rdp or pld",
        ),
    ):
        with pytest.raises(BadInput, match=message):
            list(report(settings(tmp_path, *overrides), delta, colluders_of(colluders)))
