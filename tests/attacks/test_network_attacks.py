"""Attacks that solve for all rounds together: against the authors' sets, closed forms, and runs."""

import math
import shutil
from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch

from decentnode.attacks.attackers import attacked, passive, scene_of
from decentnode.attacks.passive.knowledge import (
    LEAST_LEVERAGE,
    JointNoise,
    distinguished,
    krylov_basis,
    least_squares,
    leverage,
    row_basis,
)
from decentnode.attacks.passive.reconstruction import (
    Reconstruction,
    covariance_over_nodes,
    encoder_of_rounds,
    noise_in_updates,
)
from decentnode.attacks.passive.topology_inference import TopologyInference, mixing_matrix
from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.node.experiment import Experiment
from decentnode.node.privacy.network_accountant import account
from decentnode.sharing import Choco, Gossip, SecureAggregation
from decentnode.sharing.blocks.network_privacy import gaussian_epsilon, sent_mixes
from decentnode.training.privacy.edges import Decor, EdgeShare
from tests.attacks.test_passive import finish
from tests.node.test_configs import QUICKSTART
from tests.support.in_process import Nodes

SMALL = [
    "communication=inproc",
    "dataset={name: digits, train_size: 96, test_size: 10, partition: iid, mean: 4.9, std: 6.0}",
    "model=logistic_regression", "training.optimizer={name: SGD, lr: 0.001, momentum: 0}",
    "training.batch_size=null", "training.steps_per_round=1", "evaluation.every=0", "seed=3",
]  # fmt: skip
ALL = "{{name: record, ranks: [{ranks}], every: 1, own: true}}"


def metropolis(graph):
    """W of a networkx graph, its nodes numbered as they come."""
    a = nx.to_numpy_array(graph, weight=None)
    degrees = a.sum(1)
    w = a / (1 + np.maximum.outer(degrees, degrees))
    return w + np.diag(1 - w.sum(1))


def normal_cdf(x):
    return (1 + math.erf(x / math.sqrt(2))) / 2


# What the code of El Mrini, Cyffers and Bellet reconstructs by averaging (AbdellahElmrini/decAttack, decided
# in exact fractions): graph, attackers, rounds that they see, nodes that they know, themselves included.
SETS = {
    "line6-1": (nx.path_graph(6), [0], 1, {0, 1}),
    "line6-3": (nx.path_graph(6), [0], 3, {0, 1, 2, 3}),
    "line6-middle": (nx.path_graph(6), [3], 2, {1, 2, 3, 4, 5}),
    "ring8-2": (nx.cycle_graph(8), [0], 2, {0, 1, 2, 6, 7}),
    "ring8-3": (nx.cycle_graph(8), [0], 3, {*range(8)} - {4}),
    "ring8-5": (nx.cycle_graph(8), [0], 5, {*range(8)}),
    "ring8-two": (nx.cycle_graph(8), [0, 4], 1, {0, 1, 3, 4, 5, 7}),
    "star7-center": (nx.star_graph(6), [0], 1, {*range(7)}),
    "star7-leaf": (nx.star_graph(6), [3], 7, {0, 3}),
    "tree": (nx.balanced_tree(2, 3), [0], 15, {0, 1, 2}),
    # Where elimination in float64 decides wrongly.
    "karate": (nx.karate_club_graph(), [0], 34, 29),
    "karate-17": (nx.karate_club_graph(), [17], 34, 25),
    "karate-two": (nx.karate_club_graph(), [0, 17], 34, 29),
    "florentine": (nx.convert_node_labels_to_integers(nx.florentine_families_graph()), [0], 15, {*range(15)}),
    "random": (nx.gnp_random_graph(12, 0.25, seed=1), [0], 12, {*range(12)}),
}


@pytest.mark.parametrize("case", SETS.values(), ids=SETS)
def test_the_reconstructed_nodes_are_those_of_the_authors(case):
    graph, attackers, rounds, want = case
    w, others = metropolis(graph), [i for i in graph if i not in attackers]
    starts = sorted({j for a in attackers for j in graph[a]} - {*attackers})
    basis = krylov_basis(w[np.ix_(others, others)], np.eye(len(w))[np.ix_(starts, others)], rounds)
    shares = leverage(basis)
    known = {others[k] for k in np.flatnonzero(shares > LEAST_LEVERAGE)} | {*attackers}
    assert len(known) == want if isinstance(want, int) else known == want
    assert np.allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-9)
    if rounds <= 5:
        # Rows themselves, while powers are far from parallel.
        powers = [np.linalg.matrix_power(w[np.ix_(others, others)], t) for t in range(rounds)]
        rows = np.vstack([power[[others.index(s) for s in starts]] for power in powers])
        assert np.allclose(leverage(row_basis(rows)), shares, atol=1e-6)
        x = np.random.default_rng(1).normal(size=(len(others), 3))
        estimate = least_squares(rows, rows @ x, 0.0)
        exact = shares > LEAST_LEVERAGE
        assert np.allclose(estimate.values[exact], x[exact], atol=1e-6)
        assert np.allclose(estimate.gain, np.linalg.norm(np.linalg.pinv(rows, rcond=1e-12), axis=1))


@pytest.mark.parametrize(
    ("attackers", "rounds", "want"),
    [((0,), 1, {1}), ((0,), 2, {1, 2}), ((0,), 3, {1, 2, 3}), ((0,), 6, {1, 2, 3, 4, 5})],
)
def test_equal_gradients_are_known_as_by_the_authors(attackers, rounds, want):
    """On a line of 6 with I - L / 2: their rows of the first rounds are those below."""
    w = np.eye(6) - nx.laplacian_matrix(nx.path_graph(6)).toarray() / 2
    others = [i for i in range(6) if i not in attackers]
    rows = np.array([mixes[1] for _, _, mixes in sent_mixes(lambda t: w, rounds, [1.0])])
    summed = rows.reshape(rounds, rounds, 6)[:, :, others].sum(1)
    theirs = np.array([[1, 0, 0, 0, 0], [1, 0.5, 0, 0, 0], [1.25, 0.5, 0.25, 0, 0]])[:rounds]
    shares = leverage(row_basis(summed))
    assert {others[k] for k in np.flatnonzero(shares > LEAST_LEVERAGE)} == want
    if rounds <= 3:
        # What passes through the attacker itself is in ours alone, and a mix of the other rows.
        assert np.allclose(leverage(row_basis(theirs)), shares, atol=1e-9)


def test_the_gain_of_a_line_grows_with_the_hops():
    """The authors' matrix on a line of 10, T = 10: 0.79 0.95 3.2 10 37 130 480 1700 5700 12000 by hops."""
    w = metropolis(nx.path_graph(10))
    rows = [np.linalg.matrix_power(w, t)[v] for t in range(10) for v in (0, 1)]
    gain = least_squares(np.array(rows), np.zeros((20, 1)), 0.0).gain
    want = [0.79, 0.95, 3.2, 10, 37, 130, 480, 1700, 5700, 12000]
    assert np.allclose(gain, want, rtol=0.06)


def simulated(rng, rounds, steps, observers, d, encoder, ratio=0.0, n=8, deviation=2.0, clip=1.0):
    """What observers on a ring see of noisy updates, of which the victim's have the norm `clip`.

    Returns rows, values, updates and, as a dense matrix, the covariance of the noise of all rounds and nodes
    given that of the observers' edges, which values lack.
    """
    graph = WeightedGraph(Ring(n), MetropolisHastings())
    sent = [*sent_mixes(graph.matrix, rounds, [1.0] * steps)]
    heard = sorted({w for v in observers for w in graph.graph.sources(v, 0)} - {*observers})
    rows = np.array([mixes[w] for _, _, mixes in sent for w in heard])
    updates = rng.normal(size=(rounds, n, d))
    updates *= clip / np.linalg.norm(updates, axis=2, keepdims=True)
    # Edge e is between e and e + 1; one end adds its noise, and the other subtracts it.
    signs = (np.eye(n) - np.roll(np.eye(n), 1, 0)) * ratio
    own, shared = (rng.normal(scale=deviation, size=(rounds, n, d)) for _ in range(2))
    known = np.array([e in observers or (e + 1) % n in observers for e in range(n)])
    shared[:, known] = 0.0
    noise = own + np.einsum("ne,ted->tnd", signs, shared)
    noise = np.einsum("ts,sjd->tjd", np.linalg.inv(encoder), noise)
    noisy = updates + noise
    noisy[:, list(observers)] = 0.0  # known, and taken out
    # n = [I B] (z, v), of which some v are known: the Schur complement of its covariance.
    both = np.hstack([np.eye(n), signs])
    with_known = both[:, n:][:, known]
    of_nodes = deviation**2 * (both @ both.T - with_known @ with_known.T)
    over_rounds = np.linalg.inv(encoder.T @ encoder)
    return rows, rows @ noisy.reshape(-1, d), updates, np.kron(over_rounds, of_nodes)


@pytest.mark.parametrize(
    ("rounds", "steps", "observers", "encoder", "ratio"),
    [(1, 3, (0,), np.eye(1), 0), (3, 1, (0, 3), np.eye(3), 0), (3, 2, (0,), np.tri(3), 0),
     (1, 3, (0,), np.eye(1), 1.5), (3, 1, (0, 3), np.eye(3), 1.5), (2, 2, (2,), np.tri(2), 0.7)],
    ids=["one round", "coalition", "correlated", "edges", "edges, coalition", "edges, correlated"],
)  # fmt: skip
def test_the_adversary_of_the_accountant_reaches_its_bound_alone(rounds, steps, observers, encoder, ratio):
    d, deviation = 40_000, 2.0
    given = rounds, steps, observers, d, encoder, ratio
    rows, values, updates, dense = simulated(np.random.default_rng(5), *given)
    neighbors = [((v - 1) % 8, (v + 1) % 8) for v in range(8)]
    plans = [SimpleNamespace(edges=EdgeShare(1.0, ratio, each)) for each in neighbors]
    covariance = covariance_over_nodes(plans, observers)
    noise = JointNoise(deviation * np.linalg.cholesky(covariance), encoder)
    basis = row_basis(noise.seen(rows, observers).reshape(len(rows), -1))
    shares = noise.shares(rows, basis)
    # The least variance of an estimate: generalized least squares with the dense covariance.
    others = np.repeat([[v not in observers for v in range(8)]], rounds, axis=0).ravel()
    of_messages = rows[:, others] @ dense[np.ix_(others, others)] @ rows[:, others].T
    most = 4 * 0.29 * math.sqrt(2 / d)  # four deviations of an AUC of 40,000 trials on each side
    for victim in {*range(8)} - {*observers}:
        moved = rows.reshape(-1, rounds, 8)[:, :, victim]
        gram = moved.T @ np.linalg.pinv(of_messages, rcond=1e-12, hermitian=True) @ moved
        assert np.allclose(shares[:, :, victim].T @ shares[:, :, victim], gram, rtol=1e-6, atol=1e-9)
        found = distinguished(rows, values, updates, observers, victim, noise=noise, clip=1.0)
        assert math.isclose(found.bound, normal_cdf(found.mu / math.sqrt(2)))
        assert found.mu**2 <= np.abs(gram).sum() + 1e-9
        assert found.auc <= found.bound + most
        # Signs of one eigenvector lose little.
        assert found.auc >= normal_cdf(0.9 * found.mu / math.sqrt(2)) - most
        if found.mu:
            assert math.isclose(found.deviations, 1, abs_tol=4 / math.sqrt(2 * d))
        error = found.estimate - updates[:, victim]
        if rounds == 1 and np.linalg.matrix_rank(gram):
            assert math.isclose(np.sqrt((error**2).mean()), gram[0, 0] ** -0.5, rel_tol=0.02)
    if rounds == 1:
        # The neighbors' updates, and those behind them, are seen with their noise alone.
        near = distinguished(rows, values, updates, observers, 1, noise=noise, clip=1.0)
        seen = np.linalg.inv(covariance)[1, 1] ** 0.5 / deviation
        # Noise of edges also hides behind that of the node opposite, which three steps do not reach.
        assert seen * (0.97 if ratio else 1 - 1e-6) <= near.mu <= seen * (1 + 1e-9)


def test_noise_of_a_round_is_that_of_its_steps(averaged):
    experiment, folder = averaged
    private = "training.privacy={name: dp_sgd, clip: 0.5, noise: 2.0, delta: 1.0e-3}"
    c = np.tri(6) + np.eye(6)
    for steps in (1, 2):
        overrides = [*SMALL, "graph={name: ring, nodes: 6}", "rounds=3", private]
        run = Experiment.from_yaml(QUICKSTART, [*overrides, f"training.steps_per_round={steps}"])
        scene = scene_of(run, folder)
        noise = noise_in_updates(scene, 2, [0])
        # 16 samples in each step, lr 0.001.
        assert np.allclose(noise.clips, steps * 0.001 * 0.5 / 16) and noise.leaves_truth == (steps == 1)
        assert np.allclose(noise.deviations, 2 * 0.001 * 0.5 / 16 * math.sqrt(steps))
        plan = SimpleNamespace(rate=1.0, noise=2.0, period=1, edges=None, strategy=SimpleNamespace(matrix=c))
        correlated = noise_in_updates(replace(scene, plans=[plan] * 6), 2, [0])
        sums = np.kron(np.eye(3), np.ones((1, steps))) @ np.linalg.inv(c[: 3 * steps, : 3 * steps])
        inverse = np.linalg.inv(correlated.noise.encoder)
        assert np.allclose(inverse @ inverse.T, sums @ sums.T) and np.allclose(np.triu(inverse, 1), 0)
        assert np.allclose(correlated.deviations, 2 * 0.001 * 0.5 / 16)
    assert np.allclose(encoder_of_rounds(c, [1] * 6), c)
    assert noise_in_updates(scene_of(experiment, folder), 2, [0]) is None


def test_w_follows_from_one_pair_of_exchanges():
    rng = np.random.default_rng(2)
    w = metropolis(nx.gnp_random_graph(12, 0.3, seed=4))
    models = rng.normal(size=(30, 12))
    assert np.allclose(mixing_matrix(models, models @ w.T), w, atol=1e-9)
    noisy = mixing_matrix(models, models @ w.T + rng.normal(scale=0.01, size=models.shape))
    assert (noisy[~np.eye(12, dtype=bool)] >= 0).all() and np.allclose(noisy.sum(1), 1)


def transcribed(tmp_path, overrides, attack, graph="{name: ring, nodes: 6}", first=None):
    """A run with transcripts and own models of all nodes; `first`: the models that they begin to mix."""
    nodes = 6
    record = ALL.format(ranks=", ".join(map(str, range(nodes))))
    adversaries = f"adversaries=[{attack}, {record}]"
    experiment = Experiment.from_yaml(QUICKSTART, [*SMALL, f"graph={graph}", adversaries, *overrides])
    made = Nodes(experiment, tmp_path / "records").begin()
    for node in made.nodes if first is not None else ():
        node.training.settings = replace(node.training.settings, steps_per_round=0)
        node.training.vector.values.copy_(first[node.rank])
    finish(made.run(0, experiment.settings.rounds))
    return experiment


def results_of(experiment, tmp_path, *attacks):
    results = [*attacked(experiment, tmp_path, attacks or passive(experiment)[:1])]
    return {result.victim: result for result in results}


def within(auc, bound, trials=1300):
    """Whether an AUC of as many trials on each side is within four deviations of its expectation."""
    return abs(auc - bound) <= 4 * 0.29 * math.sqrt(2 / trials)


FIRST = torch.randn(6, 650, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """Six nodes on a ring that only mix, three rounds."""
    folder = tmp_path_factory.mktemp("averaged")
    attack = "{name: reconstruction, ranks: [0], unknowns: models, every: 1}"
    return transcribed(folder, ["rounds=3"], attack, first=FIRST), folder


def test_nodes_are_known_hop_by_hop_and_by_coalitions_sooner(averaged):
    experiment, folder = averaged
    results = [*attacked(experiment, folder, passive(experiment)[:1])]
    known = {t: {r.victim for r in results if r.round == t and r.victim and r.solvable} for t in range(3)}
    assert known == {0: {1, 5}, 1: {1, 2, 4, 5}, 2: {1, 2, 3, 4, 5}}
    assert [r.solvable for r in results if r.victim is None] == [2, 4, 5]
    errors = {(r.round, r.victim): r.relative_error for r in results}
    assert all((errors[t, v] < 1e-5) == (v in known[t]) for t in range(3) for v in range(1, 6))
    assert {r.victim: r.hops for r in results if r.victim} == {1: 1, 2: 2, 3: 3, 4: 2, 5: 1}
    two = Reconstruction(ranks=(0, 3), unknowns="models", every=1)
    assert [r.solvable for r in attacked(experiment, folder, [two]) if r.victim is None] == [4, 4, 4]
    # Each update has unknowns of its own: only the first ones of neighbors, and what follows from them.
    free = results_of(experiment, folder, Reconstruction(ranks=(0,), unknowns="updates"))
    assert [free[v].solvable for v in range(1, 6)] == [1, 0, 0, 0, 1] and free[None].solvable == 0


def test_edges_are_found_from_models_alone(averaged):
    experiment, folder = averaged
    for attack in (
        TopologyInference(ranks=(0, 3)), TopologyInference(ranks=(0, 3), method="models"),
        TopologyInference(links=((0, 1), (2, 3), (4, 5))),
    ):  # fmt: skip
        (result,) = attacked(experiment, folder, [attack])
        assert result.accuracy == 1 and result.f1 == 1 and result.relative_error < 1e-3
        assert result.chance == (9 / 15 if attack.links else 4 / 6)
    one = TopologyInference(ranks=(0,), method="models", every=1)
    curve = [*attacked(experiment, folder, [one])]
    # It sees both neighbors and itself, but none behind them: no edge between 1 and 5, and wrong weights.
    assert [(r.round, r.accuracy) for r in curve] == [(1, 1.0), (2, 1.0)] and curve[0].relative_error > 0.01


def test_an_image_three_hops_away_is_seen(tmp_path):
    attack = "{name: reconstruction, ranks: [0], victims: [3], invert: dlg}"
    experiment = transcribed(tmp_path, ["rounds=4", "dataset.train_size=6"], attack)
    of_update, image, together = attacked(experiment, tmp_path, passive(experiment)[:1])
    assert (of_update.hops, of_update.solvable, together.solvable) == (3, 1, 5)
    assert of_update.relative_error < 0.05
    assert image.attack == "reconstruction_dlg" and image.victim == image.hops == 3 and image.ssim > 0.9


def test_muffliato_gives_what_the_accountant_says(tmp_path):
    sharing = "sharing={name: muffliato, noise: 1.0, clip: 0.01, steps: 2}"
    attack = "{name: reconstruction, ranks: [0], unknowns: updates}"
    experiment = transcribed(tmp_path, ["rounds=1", sharing], attack)
    assert results_of(experiment, tmp_path)[None].solvable == 4
    for ranks, known in (((0,), {1, 2, 4, 5}), ((0, 1), {2, 3, 4, 5})):
        fixed = account(experiment.settings, 1e-5, colluders=ranks).fixed[:, 0]
        exact = results_of(experiment, tmp_path, Reconstruction(ranks=ranks))
        told = results_of(experiment, tmp_path, Reconstruction(ranks=ranks, knows_others=True))
        assert {victim for victim, r in exact.items() if victim and r.solvable} == known
        for victim in {*range(6)} - {*ranks}:
            mu = math.sqrt(2) * NormalDist().inv_cdf(told[victim].auc_bound)
            assert math.isclose(gaussian_epsilon(mu, 1e-5), fixed[victim], abs_tol=1e-4)
            assert within(told[victim].auc, told[victim].auc_bound, 650)
            if victim in known:
                # What is known exactly is known with its noise.
                assert math.isclose(exact[victim].deviations, 1, abs_tol=4 / math.sqrt(2 * 650))
    (tmp_path / "transcript" / "00003.jsonl").unlink()
    with pytest.raises(BadInput, match="the models of rank 3, which has not recorded them; record"):
        results_of(experiment, tmp_path, Reconstruction(ranks=(0,), knows_others=True))


def test_private_steps_give_less_than_is_proven(tmp_path):
    private = "training.privacy={name: dp_sgd, clip: 1.0, noise: 1.0, delta: 1.0e-3, generator: seeded}"
    attack = "{name: reconstruction, ranks: [0], unknowns: updates}"
    experiment = transcribed(tmp_path, ["rounds=4", private], attack)
    results = results_of(experiment, tmp_path)
    assert [results[v].solvable for v in range(1, 6)] == [1, 0, 0, 0, 1]
    for ranks in ((0,), (0, 2)):
        proven = account(experiment.settings, 1e-3, colluders=ranks).proven[:, 0]
        told = results_of(experiment, tmp_path, Reconstruction(ranks=ranks, knows_others=True))
        for victim in {*range(6)} - {*ranks}:
            mu = math.sqrt(2) * NormalDist().inv_cdf(told[victim].auc_bound)
            assert gaussian_epsilon(mu, 1e-3) <= proven[victim] + 1e-6
            assert within(told[victim].auc, told[victim].auc_bound, 650)
            assert told[victim].deviations > 0.9


def test_noise_of_edges_hides_what_the_accountant_says(tmp_path):
    """One node, or two, who know the noise of their own edges: what they receive, and all messages."""
    private = "training.privacy={name: dp_sgd, clip: 1.0, noise: 1.0, delta: 1.0e-3, sampling: cyclic, %s}"
    edges = "generator: seeded, correlation: {name: edges, ratio: 2.0}"
    attack = "{name: reconstruction, ranks: [0], unknowns: updates}"
    experiment = transcribed(tmp_path, ["rounds=4", private % edges], attack)
    exact = results_of(experiment, tmp_path)
    links = tuple((rank, (rank + 1) % 6) for rank in range(6))
    adjacency = nx.to_numpy_array(nx.cycle_graph(6))
    for ranks in ((0,), (0, 2)):
        proven = account(experiment.settings, 1e-3, colluders=ranks).proven[:, 0]
        most = 2 * Decor().amplification(adjacency, 2.0, ranks) ** 0.5  # four rounds
        for seen in ((), links):
            adversary = Reconstruction(ranks=ranks, links=seen, knows_others=True)
            told = results_of(experiment, tmp_path, adversary)
            for victim in {*range(6)} - {*ranks}:
                mu = math.sqrt(2) * NormalDist().inv_cdf(told[victim].auc_bound)
                assert mu <= most[victim] * (1 + 1e-6)
                assert seen or gaussian_epsilon(mu, 1e-3) <= proven[victim] + 1e-6
                # All messages tell all that the accountant allows.
                assert not seen or mu == pytest.approx(most[victim], rel=1e-5)
                assert within(told[victim].auc, told[victim].auc_bound, 650)
        # It rounds up, to four digits; the models of neighbors arrive in all rounds.
        assert gaussian_epsilon(most[1], 1e-3) == pytest.approx(proven[1], rel=3e-4)
    proven = account(experiment.settings, 1e-3).proven[1, 0]
    assert experiment.privacy[0].epsilon == pytest.approx(proven, rel=3e-4)
    assert [exact[v].solvable for v in range(1, 6)] == [1, 0, 0, 0, 1]
    secret = private % "correlation: {name: edges, ratio: 2.0}"
    hidden = Experiment.from_yaml(QUICKSTART, [*SMALL, "graph={name: ring, nodes: 6}", "rounds=4", secret])
    with pytest.raises(BadInput, match=r"its ranks, whose keys are in no file; run with .*generator: seeded"):
        results_of(hidden, tmp_path, Reconstruction(ranks=(0,), knows_others=True))


def test_secure_aggregation_hides_neighbors_but_not_over_rounds(tmp_path):
    """On a ring the two neighbors look alike, and the node opposite does not; two ranks tell all apart."""
    sharing = "sharing={name: secure_aggregation, scale: 1048576}"
    attack = "{name: reconstruction, ranks: [0], unknowns: models}"
    experiment = transcribed(tmp_path, ["rounds=4", sharing], attack, first=FIRST)
    alone = results_of(experiment, tmp_path)
    assert [alone[v].solvable for v in range(1, 6)] == [0, 0, 1, 0, 0] and alone[3].relative_error < 1e-3
    two = results_of(experiment, tmp_path, Reconstruction(ranks=(0, 2), unknowns="models"))
    assert two[None].solvable == 4 and max(two[v].relative_error for v in (1, 3, 4, 5)) < 1e-3


@pytest.mark.parametrize(
    ("sharing", "graph"),
    [("{name: zip_dl, sigma: 0.5}", "{name: ring, nodes: 6}"),
     ("{name: gossip, transforms: [{name: top_k, fraction: 0.3}]}", "{name: ring, nodes: 6}"),
     ("{name: shatter, chunks: 4, per_neighbor: 2}", "{name: relayed, nodes: 6, degree: 3}")],
    ids=["zip_dl", "top_k", "shatter"],
)  # fmt: skip
def test_what_is_imprecise_is_estimated_alone(tmp_path, sharing, graph):
    attack = "{name: reconstruction, ranks: [0], unknowns: models}"
    experiment = transcribed(tmp_path, ["rounds=3", f"sharing={sharing}"], attack, graph=graph, first=FIRST)
    results = results_of(experiment, tmp_path)
    assert results[None].solvable == 0 and all(results[v].solvable == 0 for v in range(1, 6))
    errors = [results[v].relative_error for v in range(1, 6)]
    assert all(0.05 < error < 5 for error in errors), errors
    if "zip_dl" in sharing:
        assert all(results[v].deviations > 0.5 for v in range(1, 6))


def test_what_was_not_recorded_is_said_before_the_start(averaged, tmp_path):
    experiment, folder = averaged
    attack = passive(experiment)[0]
    shutil.copytree(folder / "transcript", tmp_path / "transcript")
    path = tmp_path / "transcript" / "00000.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    remedy = r"record in the run with adversaries: \[\{name: record, ranks: \[0\], every: 1, own: true\}\]"
    for unwanted, what in (("mixed", "its own models"), ('"round":1', "what arrived in round 2")):
        path.write_text("".join(line for line in lines if unwanted not in line))
        with pytest.raises(BadInput, match=f"^reconstruction: rank 0 has not recorded {what}; {remedy}"):
            next(attacked(experiment, tmp_path, [attack]))
    path.unlink()
    with pytest.raises(BadInput, match=f"rank 0 has recorded nothing here; {remedy}"):
        next(attacked(experiment, tmp_path, [attack]))
    shutil.copytree(folder / "transcript", tmp_path / "transcript", dirs_exist_ok=True)
    (tmp_path / "transcript" / "00004.jsonl").unlink()
    overlap = replace(experiment.settings.communication, overlap=True)
    settings = replace(experiment.settings, communication=overlap)
    with pytest.raises(BadInput, match="reconstruction needs rounds of local steps, then one mix by W"):
        next(attacked(replace(experiment, settings=settings), tmp_path, [attack]))
    path.write_text("".join(line for line in lines if not ('"round":1' in line and '"source":5' in line)))
    with pytest.raises(BadInput, match="rank 0 did not receive from rank 5 in round 2, so that W"):
        results_of(experiment, tmp_path, Reconstruction(ranks=(0,)))
    path.write_text("".join(lines))
    results = results_of(experiment, tmp_path, Reconstruction(ranks=(0,), unknowns="models"))
    assert results[4].solvable == 1 and results[4].relative_error is None
    with pytest.raises(BadInput, match="knows_others needs updates whose noise is known"):
        next(attacked(experiment, tmp_path, [Reconstruction(ranks=(0,), knows_others=True)]))


def test_what_cannot_be_solved_is_refused():
    cases = [
        (Reconstruction(ranks=(0,), online=True), Gossip(), "solves for all rounds after the run"),
        (Reconstruction(ranks=(0,)), Choco(), "does not know how choco mixes; it knows gossip,"),
        (TopologyInference(ranks=(0,)), SecureAggregation(), "shows their mean alone"),
    ]
    for attack, sharing, line in cases:
        lines = [defect.what for defect in attack.defects(Ring(6), sharing)]
        assert len(lines) == 1 and line in lines[0], lines
