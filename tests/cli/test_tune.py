"""The search for gamma, on outcomes that are made up and on the case that was measured."""

import math

import pytest

from decentnode.cli import tune as tuning
from decentnode.cli.tune import SMALLEST, Trial, chosen, find, report, simulate
from decentnode.config import loader as config
from decentnode.errors import RunFailed
from decentnode.graph.mixing import WeightedGraph

CONFIG = """
rounds: 5
graph: {name: ring, nodes: 8}
dataset: digits
model: {name: mlp, hidden: [8]}
training: {optimizer: {name: SGD, lr: 0.1}, steps_per_round: 1}
sharing: SHARING
"""
CHOCO = "{name: choco, transforms: [{name: top_k, fraction: 0.1}, rice, zstd]}"


@pytest.fixture
def settings(tmp_path):
    """Reads a configuration with this sharing section."""

    def read(sharing=CHOCO, *overrides):
        path = tmp_path / "x.yaml"
        path.write_text(CONFIG.replace("SHARING", sharing))
        return config.load(path, overrides)

    return read


def decay(gamma, factor, rounds=tuning.ROUNDS):
    """A trial whose distance shrinks by a factor in every round."""
    return Trial(gamma, tuple(factor**t for t in range(1, rounds + 1)))


def searched(attempt):
    """All trials and the outcome of a search."""
    trials = list(find(attempt))
    return [trial.gamma for trial in trials], chosen(trials, attempt)


def below(limit):
    """Convergence that is the faster, the larger gamma is, and divergence beyond a limit."""
    return lambda gamma, rounds: decay(gamma, 1 - gamma / 2 if gamma < limit else 1.1, rounds)


@pytest.mark.parametrize("factor", [0.5, 0.9, 0.999])
def test_the_rate_of_a_steady_decay_is_exact(factor):
    assert math.exp(-decay(0.1, factor).rate) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("distances", [(2.0, 4.0), (0.5, 1.0), (0.5, math.inf), (0.5, math.nan)])
def test_what_diverges_has_no_rate(distances):
    assert Trial(0.1, distances).rate == 0
    assert "diverges" in str(Trial(0.1, distances))


@pytest.mark.parametrize("limit", [0.7, 0.3, 0.1, 0.02, 0.001])
def test_a_gamma_near_the_limit_is_found(limit):
    tried, best = searched(below(limit))
    assert limit / 2.1 <= best.gamma < limit
    assert tried[0] == 1
    assert len(tried) <= math.log2(1 / limit) + 6


def test_without_a_limit_it_is_1_or_little_less():
    tried, best = searched(below(2))
    assert best.gamma >= 0.7
    assert tried == [1, 0.5, 0.25, 0.71]


def test_where_nothing_converges_it_says_so():
    with pytest.raises(RunFailed, match=r"^no gamma from 1 to 6e-05 converges on this graph"):
        searched(lambda gamma, rounds: decay(gamma, 1.1))
    assert SMALLEST < 1e-4


def test_a_gamma_whose_differences_grow_later_is_not_chosen():
    def attempt(gamma, rounds):
        return decay(gamma, 0.9 if gamma < 0.2 or rounds == tuning.ROUNDS else 1.1, rounds)

    trials = [decay(0.5, 0.5), decay(0.35, 0.52), decay(0.18, 0.8)]
    assert chosen(trials, attempt).gamma == 0.18


def test_the_smaller_of_two_that_are_about_as_fast_is_chosen():
    trials = [decay(0.5, 0.80), decay(0.35, 0.81), decay(0.25, 0.95)]
    assert chosen(trials, lambda gamma, rounds: decay(gamma, 0.8)).gamma == 0.35


@pytest.mark.long
def test_on_the_measured_ring_gamma_is_below_the_cliff(settings, monkeypatch):
    """Ring of 8, top 10 %: 0.2 is good, 0.4 does not converge in the end."""
    monkeypatch.setattr(tuning, "ROUNDS", 100)
    *table, last = report(settings())
    name, gamma = last.split("=")
    assert name == "sharing.gamma"
    assert 0.2 <= float(gamma) < 0.4
    assert table[0].startswith("choco: consensus of 8 nodes, 100 rounds")
    assert "diverges" in next(line for line in table if line.split()[0] == "1")


def test_without_compression_a_round_shrinks_the_distance_as_the_matrix_does(settings):
    plain = settings("choco")
    trial = simulate(plain, WeightedGraph(plain.graph.make(), plain.sharing.weights.make()), 1.0, 60)
    assert trial.distances[-1] / trial.distances[-2] == pytest.approx(0.804738, abs=1e-5)


def test_the_same_seed_gives_the_same_trial(settings):
    tuned = settings()
    graph = WeightedGraph(tuned.graph.make(), tuned.sharing.weights.make())
    assert simulate(tuned, graph, 0.2, 5) == simulate(tuned, graph, 0.2, 5)


@pytest.mark.parametrize(
    "sharing",
    [
        "{name: beer, transforms: [sign]}",
        "{name: deep_squeeze, transforms: [{name: cast, dtype: bf16}]}",
        "{name: moniqua, theta: 0.01}",
        "{name: stc, fraction: 0.3}",
        "{name: choco, transforms: [{name: top_k, per_layer: true}]}",
    ],
)
def test_every_scheme_with_a_gamma_can_be_simulated(settings, sharing):
    tuned = settings(sharing)
    trial = simulate(tuned, WeightedGraph(tuned.graph.make(), tuned.sharing.weights.make()), 0.02, 40)
    assert trial.rate > 0


def test_the_command_prints_the_table_and_what_to_add(tmp_path, monkeypatch, call):
    monkeypatch.setattr(tuning, "ROUNDS", 20)
    path = tmp_path / "x.yaml"
    path.write_text(CONFIG.replace("SHARING", CHOCO))
    code, output, _ = call("tune", path, "graph.nodes=4")
    lines = output.splitlines()
    assert code == 0
    assert lines[1].split() == ["gamma", "distance", "left", "rounds", "a", "round"]
    assert config.load(path, [lines[-1]]).sharing.options["gamma"] == float(lines[-1].split("=")[1])
