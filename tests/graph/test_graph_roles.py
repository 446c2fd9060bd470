"""Graphs with a server: who is drawn, who sends to whom, and what is refused."""

import numpy as np
import pytest
import torch

from decentnode.errors import GraphError
from decentnode.graph.families import Star
from decentnode.graph.files import write_graph
from decentnode.graph.mixing import FromGraph
from decentnode.graph.roles import Federated
from decentnode.graph.walks import TokenWalk
from decentnode.sharing import Gossip
from decentnode.testing import Lockstep, random_models


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        (Federated(11, rate=0.3), 3),
        (Federated(11, rate=0.01), 1),
        (Federated(11, clients=7), 7),
        (Federated(11, rate=0.5, server=3, standby=10), 4),
        (Federated(2), 1),
    ],
    ids=str,
)
def test_clients_of_a_round_send_and_those_of_the_next_receive(graph, count):
    for round in range(20):
        now, later = graph.chosen(round), graph.chosen(round + 1)
        assert len(now) == len(set(now)) == count and not set(now) & set(graph.servers)
        for rank in range(graph.nodes):
            others = set(graph.servers) - {rank}
            if rank in graph.servers:
                assert set(graph.sources(rank, round)) == others | set(now)
                assert set(graph.targets(rank, round)) == others | set(later)
            else:
                assert graph.targets(rank, round) == (tuple(sorted(others)) if rank in now else ())
                assert graph.sources(rank, round) == (tuple(sorted(others)) if rank in later else ())
            assert graph.trains(rank, round) == (rank in now or rank in graph.servers)
            assert {*graph.targets(rank, round), *graph.sources(rank, round)} <= graph.partners(rank)


def test_clients_are_linked_to_servers_alone():
    graph = Federated(6, server=1, standby=4)
    assert graph.partners(0) == {1, 4} and graph.partners(1) == {0, 2, 3, 4, 5}
    assert graph.static and not Federated(6, rate=0.5).static


def test_every_client_is_drawn_as_often():
    graph, rounds = Federated(9, rate=0.25), 4000
    drawn = np.zeros(9)
    for round in range(rounds):
        drawn[graph.chosen(round)] += 1
    assert drawn[0] == 0
    assert np.abs(drawn[1:] / rounds - 0.25).max() < 4.5 * np.sqrt(0.25 * 0.75 / rounds)


def tailed(tmp_path):
    """A triangle with a tail of three, as a file."""
    path = tmp_path / "tailed.edges"
    path.write_text("6\n0 1\n1 2\n0 2\n2 3\n3 4\n4 5\n")
    return str(path)


def test_a_token_visits_all_nodes_equally_often_whatever_their_degrees(tmp_path):
    graph, rounds = TokenWalk(6, path=tailed(tmp_path), tokens=20), 2000
    visits = np.zeros(6)
    for round in range(rounds):
        np.add.at(visits, graph.places(round), 1)
    # The tail mixes slowly: 20 walks of 2,000 steps are worth about 1,500 independent draws.
    assert np.abs(visits / visits.sum() - 1 / 6).max() < 0.03
    assert {len(graph.partners(rank)) for rank in range(6)} == {1, 2, 3}


@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_tokens_carry_their_models_and_meet_in_the_mean(tmp_path, tokens):
    graph = TokenWalk(6, path=tailed(tmp_path), tokens=tokens, seed=4)
    start = random_models(6)
    network, z = Lockstep(Gossip, graph, start, weights=FromGraph()), start[graph.places(0)].clone()
    met = 0
    for round in range(40):
        before, places, next_places = network.models.clone(), graph.places(round), graph.places(round + 1)
        assert all(i == j or j in graph.partners(i) for i, j in zip(places, next_places, strict=True))
        assert [rank for rank in range(6) if graph.trains(rank, round)] == sorted(set(places))
        z = torch.stack(
            [z[[t for t in range(tokens) if next_places[t] == place]].mean(0) for place in next_places]
        )
        met += len(set(next_places)) < tokens
        models = network.mix()
        assert torch.allclose(models[next_places], z, rtol=0, atol=1e-12)
        others = sorted(set(range(6)) - set(next_places))
        assert torch.equal(models[others], before[others])
    assert met or tokens == 1


def test_the_next_node_continues_a_lost_token_with_its_own_model():
    graph = TokenWalk(6, degree=2, seed=1)
    (place,), (next_place,) = graph.places(0), graph.places(1)
    assert place != next_place
    start = random_models(6)
    network = Lockstep(Gossip, graph, start, weights=FromGraph(), is_live=lambda i, j: j != place)
    assert torch.equal(network.mix()[next_place], start[next_place])
    assert graph.trains(next_place, 1)


def test_the_nodes_of_a_walk_are_those_of_its_file(tmp_path):
    write_graph(Star(4), str(tmp_path / "star.edges"))
    with pytest.raises(GraphError, match="token_walk: nodes must be those of the file, 4, got 6"):
        TokenWalk(6, path=str(tmp_path / "star.edges"))
