"""Graphs with a server: who is drawn, who sends to whom, and what is refused."""

import numpy as np
import pytest

from decentnode.errors import GraphError
from decentnode.graph.roles import Federated


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


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nodes": 1}, "nodes must be at least 2, so that there is a client, got 1"),
        ({"nodes": 4, "server": 4}, "server must be a rank, 0..3, got 4"),
        ({"nodes": 4, "standby": 5}, "standby must be a rank, 0..3, got 5"),
        ({"nodes": 4, "standby": 0}, "standby must be another rank than the server, 0"),
        ({"nodes": 4, "clients": 4}, "clients must be at most 3, got 4"),
        ({"nodes": 4, "clients": 2, "rate": 0.5}, "give the rate or the number of clients, not both"),
    ],
)
def test_impossible_roles_are_refused(options, why):
    with pytest.raises(GraphError) as refused:
        Federated(**options)
    assert str(refused.value) == f"federated: {why}"
