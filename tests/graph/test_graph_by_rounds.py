"""Graphs that hold from a round on: each as by itself, and late merging as runs chained by a checkpoint."""

import numpy as np
import pytest
import torch

from decentnode.errors import BadInput
from decentnode.graph.base_k import BaseKPlusOne
from decentnode.graph.by_rounds import ByRounds
from decentnode.graph.families import Empty, Exponential, FullyConnected, Ring, Star
from decentnode.graph.mixing import MIXINGS, FromGraph, WeightedGraph, default_weights
from decentnode.graph.redrawn import EpidemicOracle, PartialParticipation
from decentnode.graph.strength import StrengthMixing
from decentnode.node.experiment import Experiment
from decentnode.parallel.topology import digest
from decentnode.sharing import AllReduce, Gossip
from decentnode.sharing.blocks.stability import growth
from decentnode.testing import Lockstep, random_models
from tests.support.in_process import Nodes

N = 6
CONFIG = """
name: late
rounds: 6
graph: {graph}
dataset: {{name: synthetic, nodes: 6, samples_per_node: 20, features: 6, classes: 3}}
model: {{name: mlp, hidden: [8]}}
training:
  optimizer: {{name: SGD, lr: 0.2, momentum: 0.9}}
  batch_size: 5
  steps_per_round: 2
  dtype: float64
sharing: gossip
communication: inproc
evaluation: {{every: 0}}
"""
LATE = "{name: by_rounds, schedule: [[0, {name: empty, nodes: 6}], [3, {name: fully_connected, nodes: 6}]]}"


def experiment(folder, graph, *overrides):
    path = folder / "late.yaml"
    path.write_text(CONFIG.format(graph=graph))
    return Experiment.from_yaml(path, overrides)


def nodes(folder, graph, *overrides):
    """New nodes of such a run, in a folder of their own."""
    return Nodes(
        experiment(folder, graph, *overrides), folder / f"nodes{len(list(folder.iterdir()))}"
    ).begin()


def test_each_graph_is_in_its_rounds_as_by_itself():
    parts = [
        (0, Empty(N)), (2, Star(N)), (5, EpidemicOracle(N, 3, seed=4)), (9, BaseKPlusOne(N, 1)),
        (13, Exponential(N)), (15, PartialParticipation(N, 2, 0.5)),
    ]  # fmt: skip
    graph = ByRounds(tuple(parts))
    weighted = WeightedGraph(graph, FromGraph())
    assert graph.directed and graph.has_rests and not graph.static and not graph.changes.repeats
    graph.draw_ahead(range(20))
    for round in range(20):
        _, part = max((first, part) for first, part in parts if first <= round)
        plain = WeightedGraph(part, MIXINGS.find(default_weights(part))())
        assert np.array_equal(weighted.matrix(round), plain.matrix(round)), round
        for rank in range(N):
            view, alone = weighted.view(rank, round), plain.view(rank, round)
            assert (view.targets, view.sources, view.weights) == (alone.targets, alone.sources, alone.weights)
            assert (view.outgoing_weights, view.co_senders) == (alone.outgoing_weights, alone.co_senders)
            assert graph.trains(rank, round) == part.trains(rank, round)
            assert graph.in_degree(rank, round) == len(view.sources)
    assert graph.may_meet_all and graph.partners(1) == {0, 2, 3, 4, 5}
    known = ByRounds(((0, Empty(N)), (2, BaseKPlusOne(N, 1)), (4, Ring(N))))
    assert known.changes.repeats and known.changes.rounds() == [0, 2, 3, 4] and known.most_targets(1) == 2
    assert (
        not known.may_meet_all and known.is_partner(0, 1) and not ByRounds(((0, Ring(N)),)).is_partner(0, 2)
    )


def test_models_are_the_product_of_the_graphs_weights():
    graph = ByRounds(((0, Empty(N)), (2, Ring(N)), (5, FullyConnected(N)), (6, Empty(N))))
    W = np.eye(N)
    W = (W + np.roll(W, 1, 0) + np.roll(W, -1, 0)) / 3
    models = random_models(N)
    network = Lockstep(Gossip, graph, models, weights=FromGraph())
    expected, complete = models.numpy(), np.full((N, N), 1 / N)
    for matrix in [np.eye(N)] * 2 + [W] * 3 + [complete] + [np.eye(N)] * 2:
        expected = matrix @ expected
        assert np.allclose(network.mix().numpy(), expected, rtol=0, atol=1e-14)
    late = ByRounds(((0, Empty(N)), (2, FullyConnected(N))))
    network = Lockstep(AllReduce, late, models, weights=FromGraph())
    assert torch.equal(network.run(2), models)
    assert torch.allclose(network.mix(), models.mean(0).expand(N, -1), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "plain", ["{name: ring, nodes: 6}", "{name: epidemic_oracle, nodes: 6, degree: 3}",
              "{name: base_k_plus_one, nodes: 6}", "{name: exponential, nodes: 6}"],
)  # fmt: skip
def test_equal_graphs_are_the_graph_itself(tmp_path, plain):
    both = f"{{name: by_rounds, schedule: [[0, {plain}], [1, {plain}], [4, {plain}]]}}"
    expected = nodes(tmp_path, plain, "seed=5").run(0, 6)
    repeated = nodes(tmp_path, both, "seed=5").run(0, 6)
    assert torch.equal(repeated.models, expected.models) and repeated.bytes_sent == expected.bytes_sent
    assert not torch.equal(nodes(tmp_path, both, "seed=6").run(0, 6).models, expected.models)


def test_late_merging_is_two_runs_chained_by_a_checkpoint(tmp_path):
    whole = nodes(tmp_path, LATE).run(0, 4)
    alone = nodes(tmp_path, "{name: ring, nodes: 6}", "sharing=none").run(0, 3)
    assert alone.bytes_sent == 0
    merged = nodes(tmp_path, "{name: fully_connected, nodes: 6}").load(alone.saved()).run(3, 4)
    assert torch.equal(whole.models, merged.models) and whole.bytes_sent == merged.bytes_sent > 0
    unmerged = nodes(tmp_path, "{name: empty, nodes: 6}", "sharing=none").run(0, 4).models
    assert torch.allclose(whole.models, unmerged.mean(0).expand(N, -1), rtol=0, atol=1e-14)
    assert (unmerged - unmerged.mean(0)).abs().max() > 1e-2
    # Resumed within the first graph, and within the second one.
    for last in (2, 5):
        begun = nodes(tmp_path, LATE).run(0, last)
        again = nodes(tmp_path, LATE).load(begun.saved()).run(last, 6)
        assert torch.equal(again.models, nodes(tmp_path, LATE).run(0, 6).models)


def test_rounds_without_edges_change_nothing_that_schemes_need(tmp_path):
    for scheme in ("all_reduce", "{name: secure_aggregation, least_senders: 3}"):
        experiment(tmp_path, LATE, f"sharing={scheme}")
    # The random graph begins after the rounds that are tried of one that never repeats.
    late = LATE.replace("3, {name: fully_connected", "30, {name: epidemic_oracle, degree: 3")
    experiment(tmp_path, late, "sharing={name: secure_aggregation, least_senders: 3}", "rounds=40")
    ring = LATE.replace("fully_connected", "ring")
    with pytest.raises(BadInput, match="all_reduce needs a graph where every node receives from every other"):
        experiment(tmp_path, ring, "sharing=all_reduce")
    with pytest.raises(BadInput, match="hides models among at least 3 senders"):
        experiment(tmp_path, ring, "sharing={name: secure_aggregation, least_senders: 3}")
    # Momentum that makes models diverge on a graph does so after rounds without edges, too.
    base, diverging = FromGraph(), Exponential(12)
    factors = [
        growth(WeightedGraph(ByRounds(schedule), base), lambda mix, x, u: mix(x) - 0.9 * u)
        for schedule in (((0, diverging),), ((0, Empty(12)), (100, diverging)), ((0, Empty(12)),))
    ]
    assert factors == [pytest.approx(1.16, abs=0.01), factors[0], 1]


def test_a_strength_mixes_each_graph_by_it():
    graph = ByRounds(((0, Ring(N)), (3, FullyConnected(N))))
    mixing = StrengthMixing(FromGraph(), lambda round: 0.5)
    matrix = WeightedGraph(graph, mixing).matrix(3)
    part = WeightedGraph(FullyConnected(N), mixing.of_part(FullyConnected(N)))
    assert np.array_equal(matrix, part.matrix(3))
    assert np.allclose(matrix, 0.5 * np.eye(N) + 0.5 / N, rtol=0, atol=1e-15)


def test_ranks_of_a_wrapper_with_other_later_graphs_are_told_apart():
    last = (FullyConnected(N), 100), (FullyConnected(N), 101), (Star(N), 100)
    schedules = [((0, EpidemicOracle(N, 2)), (start, graph)) for graph, start in last]
    assert len({digest(WeightedGraph(ByRounds(schedule), FromGraph())) for schedule in schedules}) == 3
