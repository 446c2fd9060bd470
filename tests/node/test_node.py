"""What a node makes of peers that are missing."""

from collections import Counter
from types import SimpleNamespace

import pytest

from decentnode.communication.launcher_link.reports import PeerBack, PeerMissing
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLost, ProtocolError
from decentnode.formats.records import RoundRecord
from decentnode.node.round_exchange import RoundExchange


@pytest.fixture
def reports():
    return []


@pytest.fixture
def exchanger(reports):
    """That of rank 0, in a round; `reports` gets its reports and what its scheme hears."""
    endpoint = SimpleNamespace(rank=0, refused=Counter(), admit=lambda round: [], offer=lambda *_: None)
    sharing = SimpleNamespace(
        refusals=[],
        watched_weight=None,
        promises=SimpleNamespace(tolerates_loss=True),
        on_peer_lost=lambda peer: reports.append(("lost", peer)),
        on_peer_back=lambda peer: reports.append(("back", peer)),
    )
    return RoundExchange(
        endpoint, sharing, None, SimpleNamespace(send=reports.append), None, Timeouts(1.0, 1.0, 1.0, 1.0)
    )


def rounds_of(exchanger, heard, missed):
    """One round in which these were heard, and those missed, by the reason."""
    exchanger.begin(exchanger._round + 1 if hasattr(exchanger, "_round") else 0, None, None)
    exchanger._received.update(heard)
    for error in missed.values():
        exchanger.continue_without(error)
    exchanger.end(RoundRecord(0, exchanger._round), 0.0)


def test_a_peer_whose_payload_could_not_be_used_is_back_when_one_can(exchanger, reports):
    rounds_of(exchanger, {2}, {1: ProtocolError(1, "sent another layout")})
    rounds_of(exchanger, {2}, {1: ProtocolError(1, "sent another layout")})
    rounds_of(exchanger, {1, 2}, {})
    assert reports == [
        PeerMissing(0, 0, 1, "sent another layout"),
        ("lost", 1),
        PeerBack(0, 2, 1),
        ("back", 1),
    ]
    assert exchanger.missing == {}


def test_a_peer_whose_edge_was_dropped_is_back_when_both_ends_have_agreed(exchanger, reports):
    rounds_of(exchanger, {1}, {1: PeerLost(1, "gone")})
    rounds_of(exchanger, {1}, {})
    assert list(exchanger.missing) == [1]
    exchanger.endpoint.admit = lambda round: [1]
    rounds_of(exchanger, {1}, {})
    assert reports[2:] == [PeerBack(0, 2, 1), ("back", 1)]


def test_a_peer_that_was_replaced_unmissed_is_lost_and_back_for_the_scheme_alone(exchanger, reports):
    rounds_of(exchanger, {1}, {})
    exchanger.endpoint.admit = lambda round: [1]
    rounds_of(exchanger, {1}, {})
    assert reports == [("lost", 1), ("back", 1)]
