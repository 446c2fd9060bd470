"""The rejoin protocol: what each end sends, until both count on the same round."""

import random
import time

import pytest

from decentnode.communication.exchange.handle import Transport
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.peers.edges import FAR_AHEAD, EdgeProtocol, farewell
from decentnode.communication.peers.peer import PROBATION
from decentnode.communication.peers.rejoin import RejoinProtocol
from decentnode.communication.wire import Header, Kind
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLost, PeerTimeout

NOBODY = 99


class Town:
    """Nodes whose messages are carried one by one, by whoever tests."""

    def __init__(self, nodes):
        self.boxes = {rank: Mailbox(rank, Transport()) for rank in range(nodes)}
        self.edges = {
            rank: EdgeProtocol({rank: box}, self.send_control, self.is_reachable)
            for rank, box in self.boxes.items()
        }
        self.post, self.cut_off = [], set()

    def is_reachable(self, rank):
        return rank not in self.cut_off

    def send_control(self, kind, sender, peer, key, seq):
        self.post.append(Header(kind, 1, sender, peer, *key, seq=seq))

    def lose(self, i, j):
        for rank, peer in ((i, j), (j, i)):
            self.boxes[rank].lose(peer, PeerLost(peer, "on purpose"))

    def go_to(self, rank, round):
        """The node begins the exchange of this round, and waits in it for somebody who never comes."""
        self.boxes[rank].admit(round)
        self.boxes[rank].open((round, 0, 0), round + 1, (), (NOBODY,), 10.0)

    def carry(self, lose=lambda header: False, pick=lambda post: 0):
        while self.post:
            header = self.post.pop(pick(self.post))
            if not lose(header):
                self.edges[header.receiver].receive(self.boxes[header.receiver], header.kind, header)

    def propose(self):
        for edges in self.edges.values():
            edges.propose()

    def first(self, rank, peer):
        """From which round on a node counts on a lost peer; None when it does not."""
        return self.boxes[rank].returns_in(peer)


def test_both_ends_agree_on_a_round_that_neither_has_begun():
    town = Town(2)
    town.go_to(0, 3)
    town.go_to(1, 4)
    town.lose(0, 1)
    town.propose()
    town.carry()
    assert town.first(0, 1) == town.first(1, 0) >= 5


def test_the_lower_rank_alone_proposes():
    town = Town(2)
    town.lose(0, 1)
    town.propose()
    assert [(h.kind, h.sender) for h in town.post] == [(Kind.REJOIN_PROPOSE, 0)]


def test_nobody_proposes_to_a_peer_that_has_ended_or_cannot_be_reached():
    town = Town(3)
    town.lose(0, 1)
    town.boxes[0].depart(2, (0, 0, 0))
    town.cut_off = {1}
    town.edges[0].propose()
    assert town.post == []


def test_whoever_is_far_behind_goes_on_where_the_other_is():
    town = Town(2)
    town.go_to(0, 2)
    town.go_to(1, 2 + 10 * FAR_AHEAD)
    town.lose(0, 1)
    town.propose()
    town.carry()
    assert town.boxes[0].ahead == town.first(0, 1) == town.first(1, 0)
    assert town.boxes[1].ahead == 0


def test_a_skip_is_followed_and_the_peer_is_back_from_there_on():
    town = Town(2)
    town.go_to(0, 5)
    town.send_control(Kind.SKIP, 1, 0, (60, 0, 0), 0)
    town.carry()
    assert town.boxes[0].ahead == town.first(0, 1) == 60
    assert not town.boxes[0].has_dropped(1, 60)
    assert town.boxes[0].has_dropped(1, 59)


def test_who_has_passed_the_proposed_round_says_so_and_a_later_one_is_agreed():
    town = Town(2)
    town.lose(0, 1)
    town.propose()
    town.go_to(1, 50)  # while the proposal is on its way
    town.carry()
    assert town.first(0, 1) == town.first(1, 0) >= 51


@pytest.mark.parametrize("seed", range(30))
def test_whatever_was_lost_and_reordered_both_count_on_the_same_round_in_the_end(seed):
    """While messages are lost the ends may disagree; what is missing then shows it, and they begin again."""
    chance, town, rounds = random.Random(seed), Town(2), [0, 0]
    town.lose(0, 1)
    for _ in range(20):
        town.propose()
        moving = chance.randrange(2)
        rounds[moving] += chance.randrange(1, 4)
        town.carry(lambda header: chance.random() < 0.5, lambda post: chance.randrange(len(post)))
        town.go_to(moving, rounds[moving])
    town.lose(0, 1)  # as a deadline would, or an answer to what was missed
    town.propose()
    town.carry()
    assert town.first(0, 1) == town.first(1, 0) is not None


def rejoining(rounds):
    """Rank 0 comes back; the others are in these rounds."""
    town = Town(1 + len(rounds))
    for rank, round in enumerate(rounds, start=1):
        town.go_to(rank, round)
        town.boxes[rank].lose(0, PeerLost(0, "died"))
    town.edges[0].rejoining = RejoinProtocol({0: town.boxes[0]}, town.send_control)
    return town, town.edges[0].rejoining


def test_who_comes_back_takes_the_latest_round_of_all_neighbors():
    town, coming = rejoining([7, 9, 8])
    coming.request_positions([(0, peer) for peer in (1, 2, 3)])
    town.carry()
    assert coming.concluded.is_set()
    assert coming.round == 10
    for peer in (1, 2, 3):
        assert town.first(peer, 0) == town.first(0, peer) == 10


def test_who_has_only_neighbors_that_come_back_follows_them():
    """0 comes back with its neighbor 1, which alone knows 2, where the run is."""
    town = Town(3)
    town.go_to(2, 7)
    for rank in (0, 1):
        town.edges[rank].rejoining = RejoinProtocol({rank: town.boxes[rank]}, town.send_control)
    inner, outer = (town.edges[rank].rejoining for rank in (0, 1))
    town.boxes[2].lose(1, PeerLost(1, "died"))
    outer.request_positions([(1, 0), (1, 2)])
    inner.request_positions([(0, 1)])
    town.carry()
    assert (inner.round, outer.round) == (None, 8)
    inner.concluded.clear()
    inner.request_positions([(0, 1)])
    town.carry()
    assert inner.round == town.first(1, 0) == town.first(0, 1) == 8
    assert town.boxes[0].upcoming == 8


def test_who_goes_on_meanwhile_makes_it_a_later_round():
    town, coming = rejoining([7, 7])
    coming.request_positions([(0, 1), (0, 2)])
    for _ in range(4):  # two questions and their answers
        header = town.post.pop(0)
        town.edges[header.receiver].receive(town.boxes[header.receiver], header.kind, header)
    town.go_to(2, 8)
    town.carry()
    assert coming.round == town.first(1, 0) == town.first(2, 0)
    assert coming.round >= 9


def test_a_peer_whose_answer_is_late_agrees_to_the_later_round_too():
    town, coming = rejoining([7, 7])
    coming.request_positions([(0, 1), (0, 2)])
    for _ in range(4):  # two questions and their answers
        header = town.post.pop(0)
        town.edges[header.receiver].receive(town.boxes[header.receiver], header.kind, header)
    town.go_to(2, 8)
    town.carry(
        pick=lambda post: next((i for i, header in enumerate(post) if header.kind != Kind.REJOIN_ACCEPT), 0)
    )
    assert coming.round == town.first(1, 0) == town.first(2, 0) >= 9


def test_proposals_that_cross_end_in_one_agreement():
    """A neighbor of lower rank proposes by itself, while the one that comes back has agreed with it."""
    town, coming = rejoining([7])
    early = Header(Kind.REJOIN_PROPOSE, 1, 1, 0, 12, seq=8)
    coming.request_positions([(0, 1)])
    town.carry()
    town.edges[0].receive(town.boxes[0], early.kind, early)
    town.carry()
    assert town.first(0, 1) == town.first(1, 0) == coming.round


def test_who_only_looks_binds_nobody_and_asks_again_before_it_takes_part():
    town, coming = rejoining([7, 9])
    coming.request_positions([(0, 1), (0, 2)], enough=20)
    town.carry()
    assert (coming.concluded.is_set(), coming.latest, coming.round) == (True, 10, None)
    assert town.first(1, 0) is town.first(2, 0) is None
    coming.request_positions([(0, 1), (0, 2)])
    assert not coming.concluded.is_set()
    town.go_to(1, 11)
    town.carry()
    assert coming.round == 12 == town.first(1, 0) == town.first(2, 0)


def test_who_looks_waits_for_nobody_else_once_a_peer_is_far_enough():
    town, coming = rejoining([7, 9])
    coming.request_positions([(0, 1), (0, 2)], enough=6)
    town.carry(lambda header: 2 in (header.sender, header.receiver))
    assert (coming.concluded.is_set(), coming.latest) == (True, 8)


def test_who_looks_and_hears_nothing_does_not_know():
    town, coming = rejoining([7])
    coming.request_positions([(0, 1)], enough=6)
    town.carry(lambda header: True)
    assert not coming.concluded.is_set()
    coming.stop_waiting()
    assert (coming.concluded.is_set(), coming.latest) == (True, None)


def test_a_late_answer_to_a_look_does_not_end_what_is_asked_next():
    town, coming = rejoining([7, 9])
    coming.request_positions([(0, 1), (0, 2)], enough=6)
    town.carry(lambda header: 2 in (header.sender, header.receiver))
    town.send_control(Kind.POSITION, 2, 0, (9, 0, 0), 10)
    commands = []

    def post(command):
        commands.append(command)
        town.carry()  # the late answer comes first
        command()
        town.carry()

    assert coming.seek([(0, 1), (0, 2)], time.monotonic() + 10.0, post) == 10
    assert len(commands) == 1


def test_who_does_not_answer_is_not_waited_for():
    town, coming = rejoining([7, 7])
    coming.request_positions([(0, 1), (0, 2)])
    town.carry(lambda header: 2 in (header.sender, header.receiver))
    assert not coming.concluded.is_set()
    coming.stop_waiting()
    town.carry()
    assert coming.round == 8 == town.first(1, 0)


def test_where_nobody_is_left_there_is_no_round():
    _, coming = rejoining([7])
    coming.request_positions([(0, 1)])
    coming.stop_waiting()
    assert coming.concluded.is_set()
    assert coming.round is None


def test_what_is_heard_before_anybody_was_asked_ends_no_search():
    town, coming = rejoining([7])
    town.send_control(Kind.REJOIN_PROPOSE, 1, 0, (9, 0, 0), 8)
    town.carry()
    assert not coming.concluded.is_set()


def test_a_farewell_names_the_last_exchange_if_there_was_one():
    box = Mailbox(0, Transport())
    assert farewell(box) == ((0, 0, 0), 0)
    box.open((4, 1, 0), 1, (), (), 1.0)
    assert farewell(box) == ((4, 1, 0), 1)


def met_anew(town, rank, since):
    """By peer the rounds in which a node meets it anew, from this one on."""
    met = {}
    for round in range(since, since + 9):
        for peer in town.boxes[rank].admit(round):
            met.setdefault(peer, []).append(round)
    return met


def test_a_process_in_the_place_of_another_is_met_anew_in_the_same_round_by_both():
    """Although nobody misses it: the round after it begins only when it is back."""
    town = Town(2)
    town.boxes[0].admit(6)
    town.boxes[0].open((6, 0, 0), 7, (1,), (), 10.0)
    town.boxes[0].lose(1, PeerLost(1, "died"))
    coming = town.edges[1].rejoining = RejoinProtocol({1: town.boxes[1]}, town.send_control)
    coming.request_positions([(1, 0)])
    town.carry()
    assert coming.round == 7
    assert (met_anew(town, 0, 7), met_anew(town, 1, 7)) == ({1: [7]}, {0: [7]})


def test_a_lost_welcome_is_said_again():
    town = Town(2)
    town.go_to(0, 5)
    town.boxes[0].lose(1, PeerLost(1, "on purpose"))
    for _ in range(2):
        town.edges[0].receive(town.boxes[0], Kind.REJOIN_PROPOSE, Header(Kind.REJOIN_PROPOSE, 1, 1, 0, 6))
        town.go_to(0, 6)
    assert [header.kind for header in town.post] == [Kind.REJOIN_ACCEPT, Kind.REJOIN_ACCEPT]


def test_who_has_ended_agrees_to_nothing_and_the_others_decide():
    town, coming = rejoining([7, 99])
    town.boxes[2].ended = True
    coming.request_positions([(0, 1), (0, 2)])
    town.carry()
    assert coming.round == 8
    assert town.first(2, 0) is None
    assert town.boxes[0].peers.has_left(2)


@pytest.mark.parametrize("enough", [None, 98])
def test_where_all_have_ended_nothing_is_left_to_do(enough):
    town, coming = rejoining([99, 98])
    for rank in (1, 2):
        town.boxes[rank].ended = True
    coming.request_positions([(0, 1), (0, 2)], enough)
    town.carry()
    assert coming.concluded.is_set()
    assert (coming.latest if enough else coming.round) == 100


@pytest.mark.parametrize("enough", [None, 98])
def test_one_that_is_silent_is_asked_again_before_the_word_of_those_counts_that_have_ended(enough):
    town, coming = rejoining([99, 50])
    town.boxes[1].ended = True
    coming.request_positions([(0, 1), (0, 2)], enough)
    town.carry(lambda header: header.sender == 2)
    coming.stop_waiting()
    assert coming.concluded.is_set()
    assert (coming.latest if enough else coming.round) is None
    coming.request_positions([(0, 1), (0, 2)], enough)
    town.carry()
    assert (coming.latest if enough else coming.round) == 51


def test_in_the_end_the_word_of_those_counts_that_have_ended():
    town, coming = rejoining([99, 50])
    town.boxes[1].ended = True
    coming._limit = time.monotonic() + 1.0
    coming.request_positions([(0, 1), (0, 2)])
    town.carry(lambda header: header.sender == 2)
    coming.stop_waiting()
    assert coming.round == 100


def test_a_peer_that_was_lost_keeps_its_reason_until_it_is_back():
    """Whoever is to stop at a loss would hear nothing of a link that broke and held again between rounds."""
    box = Mailbox(0, Transport())
    box.lose(1, PeerLost(1, "its link broke"))
    assert box.readmit(1, 6)
    assert box.peers[1].error.reason == "its link broke"


def test_who_has_ended_says_so_to_a_running_peer_that_proposes():
    town = Town(2)
    town.go_to(1, 5)
    town.lose(0, 1)
    town.boxes[1].ended = True
    town.propose()
    town.carry()
    assert town.boxes[0].peers.has_left(1)


def gives_up(town, rank, peer, deadline=10.0):
    """A deadline has passed in the round that the node is in."""
    box = town.boxes[rank]
    error = PeerTimeout(peer, "silent", deadline)
    town.edges[rank].time_out(box, box.position, error, time.monotonic())
    town.carry()


@pytest.mark.parametrize(("waiting", "hung"), [(0, 1), (1, 0)])
def test_who_is_given_up_as_too_slow_is_back_when_its_node_has_got_on(waiting, hung):
    town = Town(2)
    town.go_to(waiting, 3)
    town.go_to(hung, 2)
    gives_up(town, waiting, hung)
    for round in range(4, 10):
        town.go_to(waiting, round)
        town.propose()
        town.carry()
        assert town.first(waiting, hung) is None, "only its sockets answer"
    town.boxes[hung].admit(3)
    town.propose()
    town.carry()
    assert town.first(waiting, hung) == town.first(hung, waiting) >= 10


def test_who_is_too_slow_again_and_again_is_left_out_for_longer_each_time(monkeypatch):
    town, now, left_out = Town(2), [1000.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    town.go_to(0, 0)
    for _ in range(10):
        gives_up(town, 0, 1)
        town.go_to(1, town.boxes[0].upcoming)
        began = now[0]
        while town.first(0, 1) is None:
            now[0] += 1.0
            town.propose()
            town.carry()
        left_out.append(now[0] - began)
        for rank in (0, 1):
            town.go_to(rank, town.first(rank, 1 - rank) or 0)
    assert left_out == [
        1.0,
        *(10.0 * (2**times - 1) for times in range(1, 7)),
        *[Timeouts.exclusion(10.0)] * 3,
    ]
    for rank in (0, 1):
        town.go_to(rank, town.boxes[rank].upcoming + PROBATION)
    gives_up(town, 0, 1)
    town.go_to(1, town.boxes[0].upcoming)
    now[0] += 1.0
    town.propose()
    town.carry()
    assert town.first(0, 1) is not None, "it has kept up for a while in between"


def test_another_process_is_not_held_to_what_the_one_before_did():
    town = Town(2)
    town.go_to(0, 3)
    town.go_to(1, 2)
    gives_up(town, 0, 1)
    town.boxes[0].peers[1].forget_timeouts()
    town.boxes[1].peers[0].forget_timeouts()
    town.propose()
    town.carry()
    assert town.first(0, 1) == town.first(1, 0) is not None


def test_nobody_agrees_who_cannot_say_so():
    """A link that is broken one way: what comes is heard, what answers is lost."""
    town = Town(2)
    town.lose(0, 1)
    town.propose()
    town.cut_off = {0}
    town.carry()
    assert town.first(1, 0) is None
    town.cut_off = set()
    town.propose()
    town.carry()
    assert town.first(0, 1) == town.first(1, 0) is not None


def test_who_is_too_slow_again_in_the_round_that_was_agreed_on_is_not_taken_back_before_it_gets_on(
    monkeypatch,
):
    """It trains for that round, so it has not taken the other back itself when it is given up."""
    town, now = Town(2), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    town.go_to(0, 3)
    town.go_to(1, 2)
    gives_up(town, 0, 1)
    town.boxes[1].admit(3)
    town.propose()
    town.carry()
    for _ in range(3):
        town.go_to(0, town.first(0, 1))
        gives_up(town, 0, 1)
        for _ in range(10):
            now[0] += Timeouts.exclusion(10.0)
            town.propose()
            town.carry()
            assert town.first(0, 1) is None
        town.boxes[1].admit(town.boxes[1].upcoming)
        now[0] += Timeouts.exclusion(10.0)
        town.propose()
        town.carry()
        assert town.first(0, 1) is not None


def test_nodes_that_came_back_in_one_process_meet_each_other_anew():
    town = Town(3)
    town.go_to(2, 5)
    edges = EdgeProtocol({0: town.boxes[0], 1: town.boxes[1]}, town.send_control, town.is_reachable)
    town.edges[0] = town.edges[1] = edges
    coming = edges.rejoining = RejoinProtocol({0: town.boxes[0], 1: town.boxes[1]}, town.send_control)
    coming.request_positions([(0, 2)])
    town.carry()
    assert met_anew(town, 0, coming.round)[1] == met_anew(town, 1, coming.round)[0] == [coming.round]
