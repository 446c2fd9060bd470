"""Flips: links stay mutual, the graph regular and connected, and after many flips all links are as likely."""

import numpy as np
import pytest
import torch

from decentnode.core.payload import Payload
from decentnode.errors import BadInput
from decentnode.graph.connectivity import is_connected
from decentnode.graph.families import FullyConnected
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.overlays.flipper import Flipper
from decentnode.parallel.topology import weighted_graph
from decentnode.sharing import Gossip
from decentnode.sharing.overlays import on_overlay
from decentnode.testing import Lockstep, random_models


def network(graph, elements=3, **options):
    """All nodes of the graph with gossip; the driver lets any two of them exchange."""
    weighted = WeightedGraph(graph, MetropolisHastings())
    models = random_models(graph.nodes, elements)
    return Lockstep(
        lambda: on_overlay(Gossip(), weighted), FullyConnected(graph.nodes), models, **options
    )  # fmt: skip


def links(nodes):
    return tuple(tuple(scheme.links) for scheme in nodes.schemes)


def are_mutual(adjacency):
    return all(i in adjacency[j] for i, neighbors in enumerate(adjacency) for j in neighbors)


@pytest.mark.parametrize(("nodes", "degree"), [(16, 4), (12, 3), (9, 2), (6, 5), (2, 1)])
def test_degrees_and_connection_stay_in_every_round(nodes, degree):
    run = network(Flipper(nodes, degree, start="lattice"))
    seen = set()
    for _ in range(25):
        run.mix()
        adjacency = links(run)
        assert all(len(neighbors) == degree for neighbors in adjacency)
        assert are_mutual(adjacency)
        assert is_connected(adjacency)
        seen.add(adjacency)
    assert (len(seen) > 5) == (degree < nodes - 1)


def test_after_many_flips_all_links_are_as_likely():
    """Each pair has the probability d / (n - 1) = 4/11, wherever the nodes were on the lattice."""
    graph = Flipper(12, 4, repeats=6, start="lattice")
    run, kept = network(graph), []
    for _ in range(18):
        run.mix()
        both = zip(links(run), graph.adjacency, strict=True)
        kept += [np.mean([j in now for j in start]) for now, start in both]
    assert abs(np.mean(kept[-12 * 12 :]) - 4 / 11) < 0.08


def test_a_round_mixes_with_the_links_after_its_flips():
    run = network(Flipper(10, 3, every=2, repeats=5))
    changed = []
    for round in range(6):
        before, earlier = run.models.clone(), links(run)
        mixed = run.mix()
        matrix = torch.eye(10, dtype=torch.float64) / 4
        for i, neighbors in enumerate(links(run)):
            matrix[i, list(neighbors)] = 1 / 4
        assert torch.allclose(mixed, matrix @ before, rtol=0, atol=1e-14)
        changed += [round] if earlier != links(run) else []
    assert changed == [0, 2, 4]  # in round 0 the links of the start are new


def test_a_resumed_node_has_its_links():
    whole, resumed = network(Flipper(12, 4)), network(Flipper(12, 4))
    whole.run(5)
    for scheme, saved in zip(resumed.schemes, whole.schemes, strict=True):
        scheme.load_state_dict(saved.state_dict())
    resumed.models, resumed.round = whole.models.clone(), whole.round
    assert torch.equal(whole.run(5), resumed.run(5))
    assert links(whole) == links(resumed)


def test_links_to_a_lost_node_stay_until_it_is_back():
    gone = set()
    run = network(Flipper(12, 4, seed=0), is_live=lambda i, j: not {i, j} & gone)
    run.run(4)
    gone.add(3)
    before = links(run)
    for i, scheme in enumerate(run.schemes):
        for j in scheme.links if i == 3 else {3} & {*scheme.links}:
            scheme.on_peer_lost(j)
    run.run(15)
    after = links(run)
    assert [3 in a for a in after] == [3 in a for a in before]
    assert after[3] == before[3]
    assert after != before
    assert are_mutual(after)
    gone.clear()
    for scheme in run.schemes:
        for j in [*scheme.lost]:
            scheme.on_peer_back(j)
    run.run(15)
    assert links(run)[3] != before[3]
    assert are_mutual(links(run))


def test_lost_messages_cost_links_but_no_degree():
    """Nobody crashes or gets more links; at most, an end of a link does not know it."""
    random = np.random.default_rng(1)
    run = network(Flipper(16, 4), is_live=lambda i, j: random.random() > 0.05)
    run.run(20)
    assert all(len(set(a)) == 4 and i not in a for i, a in enumerate(links(run)))
    ends = sum(map(len, links(run)))
    known = sum(i in links(run)[j] for i, a in enumerate(links(run)) for j in a)
    assert ends > known > 0.5 * ends


def test_a_link_to_a_rank_that_does_not_exist_is_refused():
    run = network(Flipper(6, 3))
    run.run(2)
    scheme = run.schemes[0]
    numbers = torch.tensor([1, 77], dtype=torch.int32)
    message = Payload.of(scheme.message_layout, {"ranks": numbers})
    assert scheme._links_in({2: message}, run.weighted.view(0, 2)) == {}
    assert str(scheme.refusals[0].error) == "links to ranks outside 0..5"


def test_a_custom_training_loop_has_no_messages_for_flips():
    with pytest.raises(BadInput, match="topology: nodes of flipper agree on edges by messages"):
        weighted_graph({"name": "flipper", "degree": 2}, None, 4)
