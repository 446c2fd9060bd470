"""A random graph over few links: closed ones are opened again, a dead peer is found when it is needed."""

import signal
import tempfile
from pathlib import Path

import pytest

from decentnode.communication.zeromq import link_budget
from decentnode.graph.redrawn import EpidemicOracle
from tests.communication.test_rejoin import LIMIT, HostProcesses
from tests.support.processes import GUARDED, SHARED, TCP

NODES, DEGREE, KEPT = 8, 2, 2
REQUESTED = 3
"""Peers that a restarted node asks."""


class UnlinkedProcesses(HostProcesses):
    """Nodes that keep links to hardly more peers than one round has."""

    nodes = NODES

    def __init__(self, case, directory):
        super().__init__(case, directory)
        self.graph = EpidemicOracle(NODES, seed=5, degree=DEGREE)
        self.timeout = LIMIT

    def _host(self, own, incarnation, pipe):
        link_budget.kept_links, link_budget.LINK_MULTIPLE = lambda: KEPT, 1
        super()._host(own, incarnation, pipe)

    def partners(self, rank):
        return {(rank + hop) % NODES for hop in range(1, REQUESTED + 1)}

    def foresee(self, endpoint, round):
        peers = self.graph.peers_in(endpoint.rank, [round])
        endpoint.foresee(peers)
        assert endpoint.frame_route._unannounced <= peers, (
            "others were told before the local steps of this round"
        )
        self.links[endpoint.rank] += len(endpoint._sockets.linked()) < NODES - 1


@pytest.fixture
def hosts(request):
    with tempfile.TemporaryDirectory(prefix="dn-") as directory:
        processes = UnlinkedProcesses(request.param, Path(directory))
        for number in range(NODES):
            processes.start(number)
        yield processes
        processes.end()


def on(*stages):
    return pytest.mark.parametrize("hosts", stages, indirect=True, ids=[s.name for s in stages])


def missed_rounds(hosts, received, rounds, without=()):
    """The rounds in which some node did not hear all its neighbors that live."""
    return {
        (rank, round)
        for rank, by_round in received.items()
        for round, peers in by_round.items()
        if round in rounds and set(hosts.graph.sources(rank, round)) - {*without} != set(peers)
    }


@on(SHARED, GUARDED)
def test_every_neighbor_of_every_round_is_received_over_few_links(hosts):
    hosts.wait_for(0, 20)
    received = hosts.finish()
    assert missed_rounds(hosts, received, range(1000)) == set()
    assert min(hosts.links) > 10, "rounds that began with fewer links than peers"


@on(TCP)
def test_a_node_that_dies_without_a_link_is_lost_when_it_is_needed(hosts):
    hosts.wait_for(0, 5)
    hosts.receive(7)
    hosts.signal(7, signal.SIGKILL)
    hosts.wait_for(0, 20)
    del hosts.running[7]
    received = hosts.finish()
    assert missed_rounds(hosts, received, range(20, 1000), without=[7]) == set()
    assert all(len(by_round) > 30 for by_round in received.values())


@on(SHARED)
def test_a_restarted_node_that_asked_some_peers_is_received_by_all(hosts):
    hosts.wait_for(0, 5)
    hosts.receive(7)
    hosts.signal(7, signal.SIGKILL)
    hosts.running[7][0].join()
    hosts.wait_for(0, 8)
    hosts.start(7, incarnation=1)
    first = hosts.receive(7)
    hosts.wait_for(0, first + 30)
    received = hosts.finish()
    assert missed_rounds(hosts, received, range(first + 30, 1000)) == set()
