"""Noise that cancels over edges: its covariance, what it costs and protects, and what both ends draw."""

import copy

import networkx
import numpy as np
import pytest
import torch

from decentnode.config.loader import understand
from decentnode.config.python_source import document_of
from decentnode.core.registry import GRAPHS
from decentnode.core.rng import SecureSource, SeededSource
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.node.experiment import Experiment
from decentnode.node.privacy.network_accountant import account
from decentnode.node.privacy.notices import notices_of
from decentnode.node.privacy.plans import noise_of
from decentnode.node.privacy.workload import edges_of, gram_of
from decentnode.sharing.blocks.network_privacy import gaussian_epsilon
from decentnode.training.privacy.accountants import ACCOUNTANTS, Spending
from decentnode.training.privacy.edges import Decor, EdgeNoise, EdgeShare
from tests.support.in_process import Nodes

GRAPHS_OF_PAPER = {
    "ring of 8": (networkx.cycle_graph(8), 3.096987, 15.0394),
    "ring of 16": (networkx.cycle_graph(16), 1.994450, 11.5782),
    "complete": (networkx.complete_graph(16), 1.418145, 9.4995),
    "line": (networkx.path_graph(6), 4.419300, 18.6852),
    "star": (networkx.star_graph(7), 3.198031, 15.3337),
    "florentine": (networkx.florentine_families_graph(), 2.339239, 12.7184),
}
"""Divergence per order and epsilon at 1e-5 of one round with deviations .3 and 2, clip 1, of a replaced user:
by the code of Allouah et al. (2024)."""


@pytest.mark.parametrize("name", GRAPHS_OF_PAPER)
def test_epsilon_is_that_of_the_authors(name):
    graph, divergence, epsilon = GRAPHS_OF_PAPER[name]
    edges, adjacency = Decor(adversary="outsider"), networkx.to_numpy_array(graph, weight=None)
    far = edges.sensitivities(adjacency, 2 / 0.3).max() / 0.3
    # A replaced user moves by two clipping norms.
    found = (2 * far) ** 2 / 2
    assert found == pytest.approx(divergence, rel=1e-6)
    assert found + 2 * np.sqrt(found * np.log(1e5)) == pytest.approx(epsilon, abs=1e-4)
    n = len(adjacency)
    dense = 0.3**2 * np.eye(n) + 2**2 * (np.diag(adjacency.sum(1)) - adjacency)
    assert far**2 == pytest.approx(np.diag(np.linalg.inv(dense)).max(), rel=1e-10)
    # Nodes that know the noise of their edges leave the graph of the others.
    others = np.delete(np.delete(adjacency, 1, 0), 1, 1)
    left = np.linalg.inv(0.3**2 * np.eye(n - 1) + 2**2 * (np.diag(others.sum(1)) - others))
    seen = edges.amplification(adjacency, 2 / 0.3, known=(1,)) / 0.3**2
    assert np.delete(seen, 1) == pytest.approx(np.diag(left), rel=1e-9)
    assert Decor().sensitivities(adjacency, 2 / 0.3).max() >= 0.3 * far
    assert edges.sensitivities(adjacency, 0.0) == pytest.approx(1)


def test_the_ratio_is_the_best_of_its_form():
    """tr(W S W') of one round where max_i (S^-1)_ii = 1: the optimum over ratios, by a solver of others."""
    for name, ratio, value in (("ring", 0.9810, 1.989356),):
        graph = WeightedGraph(GRAPHS.find(name)(nodes=8), MetropolisHastings())
        adjacency, gram = edges_of(graph, [[1]] * 8)
        edges = Decor(adversary="outsider")
        found = edges.chosen_ratio(adjacency, gram)
        assert found**2 == pytest.approx(ratio, rel=0.1)
        worst = edges.amplification(adjacency, found).max()
        assert worst * (edges.covariance(adjacency, found) * gram).sum() == pytest.approx(value, rel=1e-3)
    # A complete graph takes as much as it gets; with one step, noise counts as for the noise of time.
    complete = edges_of(
        WeightedGraph(GRAPHS.find("fully_connected")(nodes=6), MetropolisHastings()), [[1]] * 6
    )
    assert Decor(adversary="outsider").chosen_ratio(*complete) == 30
    ring = WeightedGraph(GRAPHS.find("ring")(nodes=6), MetropolisHastings())
    steps = [2, 0, 3, 1]
    assert np.trace(edges_of(ring, [steps] * 6)[1]) == pytest.approx(
        np.trace(gram_of(ring, steps)), rel=1e-12
    )


@pytest.mark.parametrize("seed", [None, 3])
def test_noise_of_edges_cancels_in_the_sum(seed):
    """What is left is the noise of the nodes' own, to rounding; its covariance is I + r^2 L."""
    adjacency, count = networkx.to_numpy_array(networkx.path_graph(3)), 4000
    neighbors = [tuple(np.flatnonzero(row).tolist()) for row in adjacency]
    nodes = [EdgeNoise(EdgeShare(0.5, 1.5, of_node), i, seed) for i, of_node in enumerate(neighbors)]
    keys = {i: node.handshake() for i, node in enumerate(nodes)}
    assert {len(key) for key in keys.values()} == ({32} if seed is None else {0})
    for node in nodes:
        node.receive_handshakes(keys)
    sources = [SeededSource(1, i) for i in range(3)]
    again = [SeededSource(1, i) for i in range(3)]
    rounds = [torch.stack([n.draw(s, count) for n, s in zip(nodes, sources, strict=True)]) for _ in range(2)]
    for noise in rounds:
        own = sum(0.5 * source.normal(count) for source in again)
        assert torch.allclose(noise.sum(0), own, atol=1e-12, rtol=0)
        expected = 0.25 * Decor().covariance(adjacency, 3.0)
        assert np.cov(noise.numpy()) == pytest.approx(expected, abs=0.35)
    assert abs(np.corrcoef(rounds[0][1], rounds[1][1])[0, 1]) < 0.06


def test_a_node_without_the_key_of_a_neighbor_ends():
    node = EdgeNoise(EdgeShare(1.0, 1.0, (1,)), 0, None)
    node.receive_handshakes({0: node.handshake()})
    with pytest.raises(RunFailed, match="rank 1 has given no public key"):
        node.draw(SecureSource(), 4)


def experiment_of(correlation, **changes):
    values = {
        "graph": {"name": "ring", "nodes": 5}, "rounds": 6, "communication": "inproc",
        "dataset": {
            "name": "digits", "train_size": 150, "test_size": 10, "partition": "iid", "mean": 4.9, "std": 6.0,
        },
        "model": "logistic_regression",
        "training": {
            "optimizer": {"name": "SGD", "lr": 0.1}, "batch_size": 6, "steps_per_round": 2,
            "privacy": {
                "name": "dp_sgd", "clip": 1.0, "noise": 2.0, "delta": 1e-4, "correlation": correlation
            },
        },
    }  # fmt: skip
    return Experiment.from_settings(understand(document_of(values | changes)))


def nodes_in(folder, correlation, **changes):
    """Nodes with a journal of what they have spent."""
    folder.mkdir()
    return Nodes(experiment_of(correlation, **changes), folder / "run")


def test_a_run_has_what_cancels_and_claims_what_is_left(tmp_path):
    seeded = {"training.privacy.generator": "seeded"}
    plain = nodes_in(tmp_path / "plain", "independent", **seeded).begin().run(0, 6)
    zero = nodes_in(tmp_path / "zero", {"name": "edges", "ratio": 0}, **seeded).begin().run(0, 6)
    assert torch.equal(plain.models, zero.models)
    # The mean model has the same noise with edges, and each node's model another one.
    once = {**seeded, "rounds": 1, "training.steps_per_round": 1}
    alone = nodes_in(tmp_path / "alone", "independent", **once).begin().run(0, 1)
    edges = nodes_in(tmp_path / "edges", {"name": "edges", "ratio": 4.0}, **once).begin().run(0, 1)
    assert torch.allclose(alone.models.mean(0), edges.models.mean(0), atol=1e-6)
    assert (alone.models - edges.models).abs().max() > 0.01
    # Resumed nodes draw the same noise of edges from the seed.
    given = {"name": "edges", "ratio": 1.5}
    straight = nodes_in(tmp_path / "straight", given, **seeded).begin().run(0, 6)
    saved = nodes_in(tmp_path / "first", given, **seeded).begin().run(0, 3).saved()
    resumed = nodes_in(tmp_path / "second", given, **seeded).load(saved).run(3, 6)
    assert torch.equal(straight.models, resumed.models)
    secure = nodes_in(tmp_path / "secure", given).begin().run(0, 2)
    adjacency = networkx.to_numpy_array(networkx.cycle_graph(5))
    far = Decor().sensitivities(adjacency, 1.5)[0]
    spending = Spending(6 / 30, 2.0 / far, 4)
    assert secure.nodes[0].local_steps.epsilon == pytest.approx(
        ACCOUNTANTS["rdp"].epsilon([spending], 1e-4), rel=1e-9
    )
    assert 0.45 < far < 1


def test_the_network_accountant_knows_who_knows_the_noise_of_edges():
    settings = experiment_of({"name": "edges", "ratio": 3.0, "adversary": "outsider"}).settings
    found, alone = account(settings), account(settings, colluders=[1, 4])
    independent = account(experiment_of("independent").settings)
    # All others together know all noise of edges, and both neighbors that of both edges of rank 0.
    assert found.local == pytest.approx(independent.local)
    assert alone.proven[0, 0] == pytest.approx(independent.proven[0, 1])
    assert alone.proven[2, 0] < found.local[2] and found.proven[0, 1] < independent.proven[0, 1]
    assert found.central == pytest.approx(independent.central)
    assert gaussian_epsilon(0.0, 1e-5) == 0
    silent = experiment_of("edges", **{"training.privacy.noise": 0.0, "training.privacy.epsilon": None})
    assert np.isinf(account(silent.settings).local).all()
    # Nodes of 31 and 30 samples with fixed batches: their noises do not simply add up.
    fixed = {"dataset.train_size": 152, "training.privacy.sampling": "cyclic"}
    uneven = account(experiment_of("independent", **fixed).settings)
    assert uneven.central == uneven.local
    assert any("nodes differ in steps or batches" in note for note in uneven.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": {"name": "exponential", "nodes": 5}, "sharing": {"name": "gossip", "weights": "uniform"}},
         "edges needs an undirected graph that does not change"),
        ({"training.steps_per_round": [2, 2, 2, 2, 3]},
         "rank 4 makes others than rank 0; set training.steps_per_round"),
        ({"dataset.train_size": 152, "training.privacy.sampling": "cyclic"},
         "edges needs equally many samples in a step of each node, and they have"),
        ({"failures.restart.attempts": 1},
         "failures.restart.attempts: a node that comes later lacks the keys"),
    ],
)  # fmt: skip
def test_what_edges_cannot_do_is_one_line(changes, message):
    with pytest.raises(BadInput, match=message):
        experiment_of("edges", **copy.deepcopy(changes))


def test_what_was_chosen_is_said_before_and_after():
    """So that independent noise is not taken for another one."""
    key = "training.privacy.correlation"
    plain, far = (experiment_of({"name": "edges", "ratio": ratio}) for ratio in (0, 1.5))
    assert notices_of(plain)[-1] == f"{key}: noise of edges is 0 times that of nodes (independent noise)"
    assert noise_of(far.privacy) == {"ratio": 1.5}
    one, several = (experiment_of({"name": "factorized", "band": band}) for band in (1, 3))
    assert notices_of(one)[-1].startswith(f"{key}: C has 1 diagonal (independent noise); each node keeps 0 ")
    assert notices_of(several)[-1].startswith(
        f"{key}: C has 3 diagonals; each node keeps 2 vectors of noise, "
    )
    assert (
        noise_of(several.privacy) == {"diagonals": 3} and noise_of(experiment_of("independent").privacy) == {}
    )
