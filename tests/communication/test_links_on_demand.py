"""A random graph over few links: closed ones are opened again, a dead peer is found when it is needed."""

import signal
import tempfile
from pathlib import Path

import pytest

from decentnode.communication.zeromq import link_budget
from decentnode.graph.redrawn import EpidemicOracle
from tests.communication.test_rejoin import LIMIT, Company
from tests.support.processes import GUARDED, SHARED, TCP

NODES, DEGREE, KEPT = 8, 2, 2
ASKED = 3
"""Peers that a restarted node asks."""


class Strangers(Company):
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
        return {(rank + hop) % NODES for hop in range(1, ASKED + 1)}

    def foresee(self, endpoint, round):
        met = self.graph.peers_in(endpoint.rank, [round])
        endpoint.foresee(met)
        assert endpoint._unsaid <= met, "others were told before the local steps of this round"
        self.links[endpoint.rank] += len(endpoint._io_thread.linked()) < NODES - 1


@pytest.fixture
def strangers(request):
    with tempfile.TemporaryDirectory(prefix="dn-") as directory:
        found = Strangers(request.param, Path(directory))
        for own in range(NODES):
            found.start(own)
        yield found
        found.end()


def on(*stages):
    return pytest.mark.parametrize("strangers", stages, indirect=True, ids=[s.name for s in stages])


def heard_all(strangers, heard, rounds, without=()):
    """The rounds in which some node did not hear all its neighbors that live."""
    return {
        (rank, round)
        for rank, found in heard.items()
        for round, peers in found.items()
        if round in rounds and set(strangers.graph.sources(rank, round)) - {*without} != set(peers)
    }


@on(SHARED, GUARDED)
def test_every_neighbor_of_every_round_is_heard_over_few_links(strangers):
    strangers.wait_for(0, 20)
    heard = strangers.finish()
    assert heard_all(strangers, heard, range(1000)) == set()
    assert min(strangers.links) > 10, "rounds that began with fewer links than peers"


@on(TCP)
def test_a_node_that_dies_without_a_link_is_lost_when_it_is_needed(strangers):
    strangers.wait_for(0, 5)
    strangers.receive(7)
    strangers.signal(7, signal.SIGKILL)
    strangers.wait_for(0, 20)
    del strangers.running[7]
    heard = strangers.finish()
    assert heard_all(strangers, heard, range(20, 1000), without=[7]) == set()
    assert all(len(found) > 30 for found in heard.values())


@on(SHARED)
def test_a_restarted_node_that_asked_some_peers_is_heard_by_all(strangers):
    strangers.wait_for(0, 5)
    strangers.receive(7)
    strangers.signal(7, signal.SIGKILL)
    strangers.running[7][0].join()
    strangers.wait_for(0, 8)
    strangers.start(7, incarnation=1)
    first = strangers.receive(7)
    strangers.wait_for(0, first + 30)
    heard = strangers.finish()
    assert heard_all(strangers, heard, range(first + 30, 1000)) == set()
