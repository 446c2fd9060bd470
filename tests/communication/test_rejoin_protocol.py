"""The rejoin protocol: what each end sends, until both count on the same round."""

import random
import time

import pytest

from decentnode.communication.peers.edges import FAR_AHEAD, EdgeProtocol, farewell
from decentnode.communication.peers.peer import BACKOFF_ROUNDS
from decentnode.communication.peers.peers import Peers, PeerTransport
from decentnode.communication.peers.rejoin import RejoinProtocol
from decentnode.communication.wire import Header, Kind
from decentnode.core.clock import Clock
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLost, PeerTimeout

NOBODY = 99


class FakeNetwork:
    """Nodes whose messages a test delivers one by one."""

    def __init__(self, nodes):
        self.boxes = {rank: Peers(rank, PeerTransport()).mailbox for rank in range(nodes)}
        self.edges = {
            rank: EdgeProtocol({rank: box.peers}, self.send_control, self.is_reachable)
            for rank, box in self.boxes.items()
        }
        self.post, self.cut_off = [], set()

    def is_reachable(self, rank):
        return rank not in self.cut_off

    def send_control(self, kind, sender, peer, key, seq):
        self.post.append(Header(kind, 1, sender, peer, *key, seq=seq))

    def lose(self, i, j):
        for rank, peer in ((i, j), (j, i)):
            self.boxes[rank].peers.lose(peer, PeerLost(peer, "on purpose"))

    def begin_round(self, rank, round):
        """The node begins the exchange of this round, and waits in it for a peer that does not exist."""
        self.boxes[rank].peers.admit(round)
        self.boxes[rank].open((round, 0, 0), round + 1, (), (NOBODY,), 10.0)

    def deliver(self, lose=lambda header: False, pick=lambda post: 0):
        while self.post:
            header = self.post.pop(pick(self.post))
            if not lose(header):
                self.edges[header.receiver].receive(self.boxes[header.receiver].peers, header.kind, header)

    def propose(self):
        for edges in self.edges.values():
            edges.propose()

    def first(self, rank, peer):
        """From which round on a node counts on a lost peer; None when it does not."""
        return self.boxes[rank].peers.rejoin_round(peer)


def test_both_ends_agree_on_a_round_that_neither_has_begun():
    network = FakeNetwork(2)
    network.begin_round(0, 3)
    network.begin_round(1, 4)
    network.lose(0, 1)
    network.propose()
    network.deliver()
    assert network.first(0, 1) == network.first(1, 0) >= 5


def test_the_lower_rank_alone_proposes():
    network = FakeNetwork(2)
    network.lose(0, 1)
    network.propose()
    assert [(h.kind, h.sender) for h in network.post] == [(Kind.REJOIN_PROPOSE, 0)]


def test_nobody_proposes_to_a_peer_that_has_ended_or_cannot_be_reached():
    network = FakeNetwork(3)
    network.lose(0, 1)
    network.boxes[0].peers.depart(2, (0, 0, 0))
    network.cut_off = {1}
    network.edges[0].propose()
    assert network.post == []


def test_whoever_is_far_behind_continues_where_the_other_is():
    network = FakeNetwork(2)
    network.begin_round(0, 2)
    network.begin_round(1, 2 + 10 * FAR_AHEAD)
    network.lose(0, 1)
    network.propose()
    network.deliver()
    assert network.boxes[0].peers.ahead == network.first(0, 1) == network.first(1, 0)
    assert network.boxes[1].peers.ahead == 0


def test_a_skip_is_followed_and_the_peer_is_back_from_there_on():
    network = FakeNetwork(2)
    network.begin_round(0, 5)
    network.send_control(Kind.SKIP, 1, 0, (60, 0, 0), 0)
    network.deliver()
    assert network.boxes[0].peers.ahead == network.first(0, 1) == 60
    assert not network.boxes[0].peers.has_dropped(1, 60)
    assert network.boxes[0].peers.has_dropped(1, 59)


def test_who_has_passed_the_proposed_round_says_so_and_a_later_one_is_agreed():
    network = FakeNetwork(2)
    network.lose(0, 1)
    network.propose()
    network.begin_round(1, 50)  # while the proposal is on its way
    network.deliver()
    assert network.first(0, 1) == network.first(1, 0) >= 51


@pytest.mark.parametrize("seed", range(30))
def test_whatever_was_lost_and_reordered_both_count_on_the_same_round_in_the_end(seed):
    """While messages are lost the ends may disagree; what is missing then shows it, and they begin again."""
    chance, network, rounds = random.Random(seed), FakeNetwork(2), [0, 0]
    network.lose(0, 1)
    for _ in range(20):
        network.propose()
        moving = chance.randrange(2)
        rounds[moving] += chance.randrange(1, 4)
        network.deliver(lambda header: chance.random() < 0.5, lambda post: chance.randrange(len(post)))
        network.begin_round(moving, rounds[moving])
    network.lose(0, 1)  # as a deadline would, or an answer to what was missed
    network.propose()
    network.deliver()
    assert network.first(0, 1) == network.first(1, 0) is not None


def rejoining(rounds):
    """Rank 0 comes back; the others are in these rounds."""
    network = FakeNetwork(1 + len(rounds))
    for rank, round in enumerate(rounds, start=1):
        network.begin_round(rank, round)
        network.boxes[rank].peers.lose(0, PeerLost(0, "died"))
    network.edges[0].rejoining = RejoinProtocol({0: network.boxes[0].peers}, network.send_control)
    return network, network.edges[0].rejoining


def test_who_rejoins_takes_the_latest_round_of_all_neighbors():
    network, protocol = rejoining([7, 9, 8])
    protocol.request_positions([(0, peer) for peer in (1, 2, 3)])
    network.deliver()
    assert protocol.concluded.is_set()
    assert protocol.round == 10
    for peer in (1, 2, 3):
        assert network.first(peer, 0) == network.first(0, peer) == 10


def test_who_has_only_neighbors_that_rejoin_follows_them():
    """0 comes back with its neighbor 1, which alone knows 2, where the run is."""
    network = FakeNetwork(3)
    network.begin_round(2, 7)
    for rank in (0, 1):
        network.edges[rank].rejoining = RejoinProtocol(
            {rank: network.boxes[rank].peers}, network.send_control
        )
    inner, outer = (network.edges[rank].rejoining for rank in (0, 1))
    network.boxes[2].peers.lose(1, PeerLost(1, "died"))
    outer.request_positions([(1, 0), (1, 2)])
    inner.request_positions([(0, 1)])
    network.deliver()
    assert (inner.round, outer.round) == (None, 8)
    inner.concluded.clear()
    inner.request_positions([(0, 1)])
    network.deliver()
    assert inner.round == network.first(1, 0) == network.first(0, 1) == 8
    assert network.boxes[0].next_round == 8


def test_who_continues_meanwhile_makes_it_a_later_round():
    network, protocol = rejoining([7, 7])
    protocol.request_positions([(0, 1), (0, 2)])
    for _ in range(4):  # two questions and their answers
        header = network.post.pop(0)
        network.edges[header.receiver].receive(network.boxes[header.receiver].peers, header.kind, header)
    network.begin_round(2, 8)
    network.deliver()
    assert protocol.round == network.first(1, 0) == network.first(2, 0)
    assert protocol.round >= 9


def test_a_peer_whose_answer_is_late_agrees_to_the_later_round_too():
    network, protocol = rejoining([7, 7])
    protocol.request_positions([(0, 1), (0, 2)])
    for _ in range(4):  # two questions and their answers
        header = network.post.pop(0)
        network.edges[header.receiver].receive(network.boxes[header.receiver].peers, header.kind, header)
    network.begin_round(2, 8)
    network.deliver(
        pick=lambda post: next((i for i, header in enumerate(post) if header.kind != Kind.REJOIN_ACCEPT), 0)
    )
    assert protocol.round == network.first(1, 0) == network.first(2, 0) >= 9


def test_proposals_that_cross_end_in_one_agreement():
    """A neighbor of lower rank proposes by itself, while the one that comes back has agreed with it."""
    network, protocol = rejoining([7])
    early = Header(Kind.REJOIN_PROPOSE, 1, 1, 0, 12, seq=8)
    protocol.request_positions([(0, 1)])
    network.deliver()
    network.edges[0].receive(network.boxes[0].peers, early.kind, early)
    network.deliver()
    assert network.first(0, 1) == network.first(1, 0) == protocol.round


def test_who_only_looks_binds_nobody_and_asks_again_before_it_takes_part():
    network, protocol = rejoining([7, 9])
    protocol.request_positions([(0, 1), (0, 2)], enough=20)
    network.deliver()
    assert (protocol.concluded.is_set(), protocol.latest, protocol.round) == (True, 10, None)
    assert network.first(1, 0) is network.first(2, 0) is None
    protocol.request_positions([(0, 1), (0, 2)])
    assert not protocol.concluded.is_set()
    network.begin_round(1, 11)
    network.deliver()
    assert protocol.round == 12 == network.first(1, 0) == network.first(2, 0)


def test_who_looks_waits_for_nobody_else_once_a_peer_is_far_enough():
    network, protocol = rejoining([7, 9])
    protocol.request_positions([(0, 1), (0, 2)], enough=6)
    network.deliver(lambda header: 2 in (header.sender, header.receiver))
    assert (protocol.concluded.is_set(), protocol.latest) == (True, 8)


def test_who_looks_and_receives_nothing_does_not_know():
    network, protocol = rejoining([7])
    protocol.request_positions([(0, 1)], enough=6)
    network.deliver(lambda header: True)
    assert not protocol.concluded.is_set()
    protocol.stop_waiting()
    assert (protocol.concluded.is_set(), protocol.latest) == (True, None)


def test_a_late_answer_to_a_look_does_not_end_what_is_asked_next():
    network, protocol = rejoining([7, 9])
    protocol.request_positions([(0, 1), (0, 2)], enough=6)
    network.deliver(lambda header: 2 in (header.sender, header.receiver))
    network.send_control(Kind.POSITION, 2, 0, (9, 0, 0), 10)
    commands = []

    def post(command):
        commands.append(command)
        network.deliver()  # the late answer comes first
        command()
        network.deliver()

    assert protocol.seek([(0, 1), (0, 2)], time.monotonic() + 10.0, post) == 10
    assert len(commands) == 1


def test_who_does_not_answer_is_not_waited_for():
    network, protocol = rejoining([7, 7])
    protocol.request_positions([(0, 1), (0, 2)])
    network.deliver(lambda header: 2 in (header.sender, header.receiver))
    assert not protocol.concluded.is_set()
    protocol.stop_waiting()
    network.deliver()
    assert protocol.round == 8 == network.first(1, 0)


def test_where_nobody_is_left_there_is_no_round():
    _, protocol = rejoining([7])
    protocol.request_positions([(0, 1)])
    protocol.stop_waiting()
    assert protocol.concluded.is_set()
    assert protocol.round is None


def test_what_is_received_before_anybody_was_asked_ends_no_search():
    network, protocol = rejoining([7])
    network.send_control(Kind.REJOIN_PROPOSE, 1, 0, (9, 0, 0), 8)
    network.deliver()
    assert not protocol.concluded.is_set()


def test_a_farewell_names_the_last_exchange_if_there_was_one():
    box = Peers(0, PeerTransport()).mailbox
    assert farewell(box) == ((0, 0, 0), 0)
    box.open((4, 1, 0), 1, (), (), 1.0)
    assert farewell(box) == ((4, 1, 0), 1)


def connected_again(network, rank, since):
    """By peer the rounds in which a node meets it anew, from this one on."""
    met = {}
    for round in range(since, since + 9):
        for peer in network.boxes[rank].peers.admit(round):
            met.setdefault(peer, []).append(round)
    return met


def test_a_process_in_the_place_of_another_is_connected_again_in_the_same_round_by_both():
    """Although nobody misses it: the round after it begins only when it is back."""
    network = FakeNetwork(2)
    network.boxes[0].peers.admit(6)
    network.boxes[0].open((6, 0, 0), 7, (1,), (), 10.0)
    network.boxes[0].peers.lose(1, PeerLost(1, "died"))
    protocol = network.edges[1].rejoining = RejoinProtocol({1: network.boxes[1].peers}, network.send_control)
    protocol.request_positions([(1, 0)])
    network.deliver()
    assert protocol.round == 7
    assert (connected_again(network, 0, 7), connected_again(network, 1, 7)) == ({1: [7]}, {0: [7]})


def test_a_lost_welcome_is_resent():
    network = FakeNetwork(2)
    network.begin_round(0, 5)
    network.boxes[0].peers.lose(1, PeerLost(1, "on purpose"))
    for _ in range(2):
        network.edges[0].receive(
            network.boxes[0].peers, Kind.REJOIN_PROPOSE, Header(Kind.REJOIN_PROPOSE, 1, 1, 0, 6)
        )
        network.begin_round(0, 6)
    assert [header.kind for header in network.post] == [Kind.REJOIN_ACCEPT, Kind.REJOIN_ACCEPT]


def test_who_has_ended_agrees_to_nothing_and_the_others_decide():
    network, protocol = rejoining([7, 99])
    network.boxes[2].ended = True
    protocol.request_positions([(0, 1), (0, 2)])
    network.deliver()
    assert protocol.round == 8
    assert network.first(2, 0) is None
    assert network.boxes[0].peers.has_left(2)


@pytest.mark.parametrize("enough", [None, 98])
def test_where_all_have_ended_nothing_is_left_to_do(enough):
    network, protocol = rejoining([99, 98])
    for rank in (1, 2):
        network.boxes[rank].ended = True
    protocol.request_positions([(0, 1), (0, 2)], enough)
    network.deliver()
    assert protocol.concluded.is_set()
    assert (protocol.latest if enough else protocol.round) == 100


@pytest.mark.parametrize("enough", [None, 98])
def test_one_that_is_silent_is_asked_again_before_the_word_of_those_counts_that_have_ended(enough):
    network, protocol = rejoining([99, 50])
    network.boxes[1].ended = True
    protocol.request_positions([(0, 1), (0, 2)], enough)
    network.deliver(lambda header: header.sender == 2)
    protocol.stop_waiting()
    assert protocol.concluded.is_set()
    assert (protocol.latest if enough else protocol.round) is None
    protocol.request_positions([(0, 1), (0, 2)], enough)
    network.deliver()
    assert (protocol.latest if enough else protocol.round) == 51


def test_in_the_end_the_word_of_those_counts_that_have_ended():
    network, protocol = rejoining([99, 50])
    network.boxes[1].ended = True
    protocol._limit = time.monotonic() + 1.0
    protocol.request_positions([(0, 1), (0, 2)])
    network.deliver(lambda header: header.sender == 2)
    protocol.stop_waiting()
    assert protocol.round == 100


def test_a_peer_that_was_lost_keeps_its_reason_until_it_is_back():
    """Whoever is to stop at a loss would hear nothing of a link that broke and held again between rounds."""
    box = Peers(0, PeerTransport()).mailbox
    box.peers.lose(1, PeerLost(1, "its link broke"))
    assert box.peers.readmit(1, 6)
    assert box.peers[1].error.reason == "its link broke"


def test_who_has_ended_says_so_to_a_running_peer_that_proposes():
    network = FakeNetwork(2)
    network.begin_round(1, 5)
    network.lose(0, 1)
    network.boxes[1].ended = True
    network.propose()
    network.deliver()
    assert network.boxes[0].peers.has_left(1)


def gives_up(network, rank, peer, deadline=10.0):
    """A deadline has passed in the round that the node is in."""
    box = network.boxes[rank]
    error = PeerTimeout(peer, "silent", deadline)
    network.edges[rank].time_out(box.peers, box.position, error, box.clock.now())
    network.deliver()


@pytest.mark.parametrize(("waiting", "hung"), [(0, 1), (1, 0)])
def test_who_is_dropped_as_too_slow_is_back_when_its_node_has_got_on(waiting, hung):
    network = FakeNetwork(2)
    network.begin_round(waiting, 3)
    network.begin_round(hung, 2)
    gives_up(network, waiting, hung)
    for round in range(4, 10):
        network.begin_round(waiting, round)
        network.propose()
        network.deliver()
        assert network.first(waiting, hung) is None, "only its sockets answer"
    network.boxes[hung].peers.admit(3)
    network.propose()
    network.deliver()
    assert network.first(waiting, hung) == network.first(hung, waiting) >= 10


def test_who_is_too_slow_again_and_again_is_left_out_for_longer_each_time(monkeypatch):
    network, now, left_out = FakeNetwork(2), [1000.0], []
    monkeypatch.setattr(Clock, "now", lambda clock: now[0])
    network.begin_round(0, 0)
    for _ in range(10):
        gives_up(network, 0, 1)
        network.begin_round(1, network.boxes[0].next_round)
        began = now[0]
        while network.first(0, 1) is None:
            now[0] += 1.0
            network.propose()
            network.deliver()
        left_out.append(now[0] - began)
        for rank in (0, 1):
            network.begin_round(rank, network.first(rank, 1 - rank) or 0)
    assert left_out == [
        1.0,
        *(10.0 * (2**times - 1) for times in range(1, 7)),
        *[Timeouts.exclusion(10.0)] * 3,
    ]
    for rank in (0, 1):
        network.begin_round(rank, network.boxes[rank].next_round + BACKOFF_ROUNDS)
    gives_up(network, 0, 1)
    network.begin_round(1, network.boxes[0].next_round)
    now[0] += 1.0
    network.propose()
    network.deliver()
    assert network.first(0, 1) is not None, "it has kept up for a while in between"


def test_another_process_is_not_held_to_what_the_one_before_did():
    network = FakeNetwork(2)
    network.begin_round(0, 3)
    network.begin_round(1, 2)
    gives_up(network, 0, 1)
    network.boxes[0].peers[1].forget_timeouts()
    network.boxes[1].peers[0].forget_timeouts()
    network.propose()
    network.deliver()
    assert network.first(0, 1) == network.first(1, 0) is not None


def test_nobody_agrees_who_cannot_say_so():
    """A link that is broken one way: what comes is heard, what answers is lost."""
    network = FakeNetwork(2)
    network.lose(0, 1)
    network.propose()
    network.cut_off = {0}
    network.deliver()
    assert network.first(1, 0) is None
    network.cut_off = set()
    network.propose()
    network.deliver()
    assert network.first(0, 1) == network.first(1, 0) is not None


def test_who_is_too_slow_again_in_the_round_that_was_agreed_on_is_not_taken_back_before_it_gets_on(
    monkeypatch,
):
    """It trains for that round, so it has not taken the other back itself when it is given up."""
    network, now = FakeNetwork(2), [1000.0]
    monkeypatch.setattr(Clock, "now", lambda clock: now[0])
    network.begin_round(0, 3)
    network.begin_round(1, 2)
    gives_up(network, 0, 1)
    network.boxes[1].peers.admit(3)
    network.propose()
    network.deliver()
    for _ in range(3):
        network.begin_round(0, network.first(0, 1))
        gives_up(network, 0, 1)
        for _ in range(10):
            now[0] += Timeouts.exclusion(10.0)
            network.propose()
            network.deliver()
            assert network.first(0, 1) is None
        network.boxes[1].peers.admit(network.boxes[1].next_round)
        now[0] += Timeouts.exclusion(10.0)
        network.propose()
        network.deliver()
        assert network.first(0, 1) is not None


def test_nodes_that_rejoined_in_one_process_connect_again():
    network = FakeNetwork(3)
    network.begin_round(2, 5)
    edges = EdgeProtocol(
        {0: network.boxes[0].peers, 1: network.boxes[1].peers}, network.send_control, network.is_reachable
    )
    network.edges[0] = network.edges[1] = edges
    protocol = edges.rejoining = RejoinProtocol(
        {0: network.boxes[0].peers, 1: network.boxes[1].peers}, network.send_control
    )
    protocol.request_positions([(0, 2)])
    network.deliver()
    assert (
        connected_again(network, 0, protocol.round)[1]
        == connected_again(network, 1, protocol.round)[0]
        == [protocol.round]
    )
