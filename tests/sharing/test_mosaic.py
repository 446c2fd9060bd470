"""Fragments on graphs of their own, beside dense products for each fragment and gossip, in float64."""

from functools import partial
from itertools import pairwise

import pytest
import torch

import decentnode
from decentnode.core.payload import PayloadError
from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.mosaic import MosaicGraph
from decentnode.graph.redrawn import EpidemicOracle
from decentnode.graph.strength import StrengthMixing
from decentnode.sharing import Gossip, Mosaic
from decentnode.testing import Lockstep, random_models
from tests.sharing.test_outer import SMALL

N, S, K, D = 12, 3, 5, 23
GRAPH = MosaicGraph(N, S, K, seed=7)
BOUNDS = [0, 4, 9, 13, 18, 23]
"""Where the fragments of 23 values begin and end."""


def test_each_fragment_is_gossip_on_its_graph_and_shrinks_as_one_of_epidemic_learning():
    network, rounds = Lockstep(Mosaic, GRAPH, random_models(N, D)), 60
    graphs = [WeightedGraph(graph, MetropolisHastings()) for graph in GRAPH.of_fragments]
    assert len({str(graph.matrix(0)) for graph in graphs}) == K, "two fragments have one graph"
    factors = torch.zeros(K, dtype=torch.float64)
    for round in range(rounds):
        network.models = x = random_models(N, D, seed=round)
        before, x_next = x - x.mean(0), torch.empty_like(x)
        for k, graph in enumerate(graphs):
            part = slice(BOUNDS[k], BOUNDS[k + 1])
            x_next[:, part] = torch.from_numpy(graph.matrix(round)) @ x[:, part]
        network.mix()
        torch.testing.assert_close(network.models, x_next, rtol=0, atol=1e-13)
        after = x_next - x_next.mean(0)
        sizes = [(after[:, a:b].square().sum(), before[:, a:b].square().sum()) for a, b in pairwise(BOUNDS)]
        factors += torch.stack([shrunk / size for shrunk, size in sizes]) / rounds
    expected = (1 - S / (N - 1)) / (S + 1)
    torch.testing.assert_close(factors, torch.full_like(factors, expected), rtol=0.06, atol=0)
    # Each value goes to `degree` others, whatever K is, and each message has 8 bytes for its length.
    values = network.sent - 8 * sum(len(GRAPH.targets(i, r)) for i in range(N) for r in range(rounds))
    assert values == rounds * N * S * D * 8


def test_with_one_fragment_it_is_gossip_on_epidemic_oracle_bit_for_bit(tmp_path, monkeypatch):
    one, epidemic = MosaicGraph(N, S, 1, seed=7), EpidemicOracle(N, S, seed=7)
    for dtype in (torch.float64, torch.bfloat16):
        start = random_models(N, D, dtype=dtype)
        assert torch.equal(Lockstep(Mosaic, one, start).run(5), Lockstep(Gossip, epidemic, start).run(5))
    monkeypatch.chdir(tmp_path)
    run = partial(decentnode.run, SMALL | {"graph": {"name": "epidemic_oracle", "nodes": 4, "degree": 1}})
    gossip = run(progress=False, sharing="gossip")
    same, several = (
        run(
            progress=False,
            sharing="mosaic",
            graph={"name": "mosaic", "nodes": 4, "degree": 1, "fragments": fragments},
            communication={"name": "inproc", "overlap": False},
        )
        for fragments in (1, 3)
    )
    hashes = [result.summary["model_hash"] for result in (gossip, same, several)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_mixing_strength_holds_for_each_fragment_in_its_round():
    def strength(round):
        return 0.25 * (round + 1)

    weights = StrengthMixing(MetropolisHastings(), strength)
    weak, full = (Lockstep(Mosaic, GRAPH, random_models(N, D), weights=w) for w in (weights, weights.mixing))
    for round in range(4):
        full.models, a = weak.models, strength(round)
        torch.testing.assert_close(a * full.mix() + (1 - a) * weak.models, weak.mix(), rtol=0, atol=1e-13)


def test_a_node_that_is_lost_keeps_its_part_of_the_mean():
    network = Lockstep(Mosaic, GRAPH, random_models(N, D), is_live=lambda i, j: 3 not in (i, j))
    mean, lost = network.models.mean(0), network.models[3].clone()
    network.run(6)
    torch.testing.assert_close(network.models.mean(0), mean, rtol=0, atol=1e-13)
    assert torch.equal(network.models[3], lost)


def test_other_lengths_than_those_of_the_fragments_are_refused():
    network = Lockstep(Mosaic, GRAPH, random_models(N, D))
    view = network.weighted.view(0, 0)
    source, scheme = view.sources[0], network.schemes[0]
    payload = network.schemes[source].outgoing(network.models[source], network.weighted.view(source, 0))[0]
    short = type(payload).of(payload.layout, {"fragments": payload["fragments"][1:]})
    out = torch.empty(D, dtype=torch.float64)
    scheme.mix(network.models[0], {source: short}, view, out)
    assert torch.allclose(out, network.models[0], rtol=0, atol=1e-14)
    (refusal,) = scheme.refusals
    assert refusal.rank == source and isinstance(refusal.error, PayloadError)
    assert f"{len(short['fragments'])} values where" in str(refusal.error)


def test_what_has_no_fragments_is_refused():
    with pytest.raises(BadInput, match="fragments: a model of 4 values has no 5 fragments; use at most 4"):
        Lockstep(Mosaic, GRAPH, random_models(N, 4))
    with pytest.raises(
        BadInput, match=r"mosaic needs a graph for each fragment; use graph: .name: mosaic, nodes: 4,"
    ):
        Mosaic().check(WeightedGraph(Ring(4), MetropolisHastings()))
