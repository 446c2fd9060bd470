"""The mailbox: when an exchange is done, what is kept, what is dropped, and who is accused."""

import asyncio
import threading
import time
from dataclasses import dataclass

import pytest

from decentnode.communication.exchange import handle as handles
from decentnode.communication.exchange import mailbox as module
from decentnode.communication.exchange.handle import Transport
from decentnode.communication.exchange.mailbox import MOST_PARKED, Mailbox
from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatBoard
from decentnode.communication.peers.failure_detector import overdue
from decentnode.communication.peers.peer import PeerEvent, PeerState
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLeft, PeerLost, PeerTimeout, RunFailed


@dataclass(frozen=True)
class Letter:
    seq: int
    is_invalidated: bool = False

    def read(self, layout):
        raise NotImplementedError


def key(round, phase=0):
    return round, phase, 0


class Hand(Transport):
    """A mailbox of rank 0 that writes down what it asked of its transport, and opens exchanges in turn."""

    def __init__(self):
        self.acknowledged, self.asked, self.given = [], [], []
        self.slot = HeartbeatBoard([0]).of(0)
        self.box = Mailbox(0, self)
        self.seq = 0

    def waits_for(self, peers):
        self.slot.wait_for(peers)

    def acknowledge(self, source, message):
        self.acknowledged.append((source, message.seq))

    def request_resend(self, peer, key):
        self.asked.append((peer, key))

    def give_model(self):
        self.given += self.box.take_wanting()

    def open(self, exchange, sources=(), targets=(), timeout=10.0, waits=True):
        self.seq += 1
        handle = self.box.open(exchange, self.seq, targets, sources, timeout)
        if waits and not handle.done:
            handle.start_waiting()
        return handle


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def now(monkeypatch):
    """Time stands still at `now.time`."""

    class Time:
        time = 1000.0

        def monotonic(self):
            return self.time

    fake = Time()
    monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(handles, "time", fake)
    return fake


def test_done_when_every_source_was_heard(hand):
    handle = hand.open(key(0), sources=[1, 2])
    hand.box.deliver(1, key(0), Letter(1))
    assert not handle.done
    hand.box.deliver(2, key(0), Letter(1))
    assert handle.done
    assert handle.messages == {1: Letter(1), 2: Letter(1)}
    assert handle.missing == {}


def test_an_exchange_with_nobody_is_done_at_once(hand):
    assert hand.open(key(0)).done


def test_done_only_when_all_readers_released_the_exchange_before(hand):
    first = hand.open(key(0), targets=[1, 2])
    assert first.done
    second = hand.open(key(1), targets=[1])
    hand.box.acknowledged(1, 1)
    assert not second.done
    hand.box.acknowledged(2, 1)
    assert second.done


def test_an_acknowledgement_frees_everything_up_to_its_number(hand):
    hand.open(key(0), targets=[1])
    hand.open(key(1), targets=[1])
    third = hand.open(key(2), targets=[1])
    assert not hand.box.is_read()
    hand.box.acknowledged(1, 2)
    assert third.done
    assert not hand.box.is_read()
    hand.box.acknowledged(1, 3)
    assert hand.box.is_read()


def test_an_acknowledgement_of_one_part_frees_no_other(hand):
    for round in range(2):
        handles = [hand.open((round, 0, part), targets=[1]) for part in range(2)]
    hand.box.acknowledged(1, 2, part=1)
    assert [handle.done for handle in handles] == [False, True]


def test_an_acknowledgement_of_the_present_does_not_free_what_others_still_read(hand):
    hand.open(key(0), targets=[1, 2])
    second = hand.open(key(1), targets=[1])
    hand.box.acknowledged(1, 2)
    assert not second.done


def test_later_messages_are_parked_and_given_out_in_their_exchange(hand):
    hand.box.deliver(1, key(1), Letter(2))
    hand.box.deliver(1, key(0), Letter(1))
    assert hand.open(key(0), sources=[1]).messages == {1: Letter(1)}
    assert hand.open(key(1), sources=[1]).messages == {1: Letter(2)}


def test_phases_are_told_apart(hand):
    hand.box.deliver(1, key(0, 1), Letter(2))
    handle = hand.open(key(0, 0), sources=[1])
    assert not handle.done
    hand.box.deliver(1, key(0, 0), Letter(1))
    assert handle.messages == {1: Letter(1)}
    assert hand.open(key(0, 1), sources=[1]).messages == {1: Letter(2)}


def test_a_duplicate_is_dropped(hand):
    handle = hand.open(key(0), sources=[1, 2])
    hand.box.deliver(1, key(0), Letter(1))
    hand.box.deliver(1, key(0), Letter(9))
    assert handle.messages == {1: Letter(1)}
    assert not handle.done
    assert hand.box.refused == {"repeated": 1}


def test_a_stale_message_is_dropped(hand):
    hand.open(key(3))
    hand.box.deliver(1, key(3), Letter(1))
    hand.box.deliver(1, key(2), Letter(1))
    assert hand.box.refused == {"stale": 2}


def test_a_message_of_a_stranger_does_not_enter_an_exchange(hand):
    handle = hand.open(key(0), sources=[1])
    hand.box.deliver(7, key(0), Letter(1))
    hand.box.deliver(1, key(0), Letter(1))
    assert handle.messages == {1: Letter(1)}
    assert hand.box.refused == {"unexpected source": 1}


def test_one_sender_parks_a_few_messages_at_most_and_holds_up_no_other(hand):
    for round in range(1, MOST_PARKED + 4):
        hand.box.deliver(1, key(round), Letter(round))
    hand.box.deliver(2, key(9), Letter(1))
    assert hand.box.refused == {"too many ahead": 3}
    assert hand.open(key(9), sources=[2]).done


def test_parked_messages_that_are_passed_over_are_acknowledged(hand):
    hand.box.deliver(1, key(1), Letter(5))
    hand.open(key(2))
    assert hand.acknowledged == [(1, 5)]
    assert hand.box.refused == {"stale": 1}


def test_releasing_acknowledges_every_message_once(hand):
    handle = hand.open(key(0), sources=[1, 2])
    hand.box.deliver(2, key(0), Letter(4))
    hand.box.deliver(1, key(0), Letter(3))
    handle.release()
    handle.release()
    assert sorted(hand.acknowledged) == [(1, 3), (2, 4)]


def test_a_lost_peer_ends_waiting_for_it_as_source_and_as_reader(hand):
    hand.open(key(0), targets=[1])
    handle = hand.open(key(1), sources=[1, 2])
    hand.box.deliver(2, key(1), Letter(1))
    lost = PeerLost(1, "gone")
    hand.box.lose(1, lost)
    assert handle.done
    assert handle.missing == {1: lost}
    assert handle.messages == {2: Letter(1)}


def test_a_lost_peer_is_missing_in_every_later_exchange_and_its_first_reason_stays(hand):
    first = PeerLeft(1, 3)
    hand.box.lose(1, first)
    hand.box.lose(1, PeerLost(1, "again"))
    handle = hand.open(key(0), sources=[1], targets=[1])
    assert handle.done
    assert handle.missing == {1: first}
    assert str(first) == "rank 1: left after round 4"
    assert hand.box.is_read()


def test_what_a_lost_peer_had_sent_still_counts(hand):
    hand.box.deliver(1, key(0), Letter(1))
    hand.box.lose(1, PeerLeft(1, 0))
    handle = hand.open(key(0), sources=[1])
    assert handle.messages == {1: Letter(1)}
    assert handle.missing == {}


def accused(box, time):
    return {error.peer for _, error in overdue(box, time)}


def test_a_silent_source_and_a_silent_reader_are_overdue_after_the_deadline(hand, now):
    hand.open(key(0), targets=[2])
    hand.open(key(1), sources=[1], timeout=10.0)
    assert accused(hand.box, now.time + 10.0) == set()
    assert accused(hand.box, now.time + 10.1) == {1, 2}


def test_the_accusation_names_seconds_and_exchange(hand, now):
    hand.open((4, 1, 0), sources=[1], timeout=10.0)
    [(exchange, error)] = overdue(hand.box, now.time + 11)
    assert exchange == (4, 1, 0)
    assert isinstance(error, PeerTimeout)
    assert str(error) == "rank 1: silent for 10 s in exchange 4/1/0"


@pytest.mark.parametrize(("exchange", "blamed"), [(key(4), set()), (key(5), {1}), (key(6), {1})])
def test_only_waiting_in_an_earlier_exchange_is_an_excuse(hand, now, exchange, blamed):
    hand.open(key(5), sources=[1], timeout=10.0)
    now.time += 8
    hand.box.note_waiting(1, exchange)
    assert accused(hand.box, now.time + 3) == blamed
    assert accused(hand.box, now.time + 11) == {1}


def test_who_has_begun_a_round_and_sent_nothing_in_it_is_excused_as_before(hand, now):
    """A neighbor of it waits in round 5, while it waited in round 4 and now encodes what it will send."""
    hand.open(key(5), sources=[1], timeout=10.0)
    now.time += 8
    hand.box.note_waiting(1, key(4))
    peer = Mailbox(1, Transport())
    peer.open(key(4), 1, (), (2,), 10.0)
    peer.admit(5)
    now.time += 4
    hand.box.note_progress(1, peer.position)
    assert accused(hand.box, now.time) == set()
    peer.open(key(5), 2, (), (2,), 10.0)
    hand.box.note_progress(1, peer.position)
    assert accused(hand.box, now.time) == {1}, "it has sent, and that was lost"


def hold_out(hand, now, exchanges, note, timeout=10.0):
    """Seconds until a peer is accused that makes these statements, one a second, the last one for ever."""
    handle = hand.open(key(5), sources=[1], timeout=timeout)
    for seconds in range(1, 1000):
        now.time += 1
        note(1, exchanges[min(seconds, len(exchanges)) - 1])
        if accused(hand.box, now.time):
            return now.time - handle.opened
    return float("inf")


def test_a_peer_that_always_says_it_waits_in_an_earlier_exchange_is_given_up_in_the_end(hand, now):
    assert (
        hold_out(hand, now, [key(0)], hand.box.note_waiting) == Timeouts.peer_behind(10) + 10 + 2
    )  # heard after 1 s


@pytest.mark.parametrize("statement", ["note_waiting", "note_progress"])
def test_a_peer_that_steps_through_the_phases_of_an_earlier_round_is_given_up_in_the_end(
    hand, now, statement
):
    phases = [key(4, phase) for phase in range(1000)]
    assert hold_out(hand, now, phases, getattr(hand.box, statement)) == Timeouts.peer_behind(10) + 10 + 2


def test_a_peer_that_gets_on_from_round_to_round_is_given_time_for_each(hand, now):
    rounds = [key(round) for round in range(4) for _ in range(90)]
    assert hold_out(hand, now, rounds, hand.box.note_waiting) > 4 * 90


def test_to_wait_in_an_earlier_round_than_before_is_no_sign_of_life(hand, now):
    hand.box.note_waiting(1, key(4))
    assert hold_out(hand, now, [key(3)], hand.box.note_waiting) == 11


def test_to_wait_in_an_earlier_round_than_that_of_a_payload_is_no_sign_of_life(hand, now):
    hand.box.deliver(1, key(4), Letter(1))
    assert hold_out(hand, now, [key(3)], hand.box.note_waiting) == 11


def test_who_comes_back_may_be_in_an_earlier_round_than_it_was(hand, now):
    hand.open(key(3), sources=[1])
    hand.box.note_waiting(1, key(4))
    assert hand.box.readmit(1, 5)
    hand.box.admit(5)
    assert hold_out(hand, now, [key(3)], hand.box.note_waiting) > 100


def test_time_in_which_this_process_stood_still_adds_to_that_of_a_peer_that_is_behind(hand, now):
    hand.open(key(5), sources=[1], timeout=10.0)
    hand.box.note_waiting(1, key(4))
    now.time += 1000
    hand.box.extend_deadlines(1000)
    now.time += Timeouts.peer_behind(10) + 5
    hand.box.note_waiting(1, key(4))
    assert accused(hand.box, now.time) == set()
    assert accused(hand.box, now.time + 6) == {1}


@pytest.mark.parametrize("heard", [False, True])
def test_time_in_which_this_process_stood_still_is_forgiven(hand, now, heard):
    hand.open(key(1), sources=[1], timeout=10.0)
    if heard:
        now.time += 5
        hand.box.note_waiting(1, key(0))
    hand.box.extend_deadlines(60.0)
    assert accused(hand.box, now.time + 69) == set()
    assert accused(hand.box, now.time + 71) == {1}


@pytest.mark.parametrize("arrives", [False, True])
def test_while_the_node_does_something_else_nobody_is_accused_or_asked(hand, now, arrives):
    handle = hand.open(key(0), sources=[1, 2] if arrives else [1], timeout=10.0, waits=False)
    assert accused(hand.box, now.time + 1000) == set()
    if arrives:
        hand.box.deliver(2, key(0), Letter(1))
    now.time += 1000
    assert not handle.finish_within(0.0)
    assert accused(hand.box, now.time + 10) == set()
    assert accused(hand.box, now.time + 10.1) == {1}


def test_what_came_while_nobody_waited_is_there_at_once(hand, now):
    handle = hand.open(key(0), sources=[1], timeout=10.0, waits=False)
    hand.box.deliver(1, key(0), Letter(1))
    assert handle.done
    assert handle.finish_within(0.0)


def neighbors_of(nodes, ring):
    return [{(i + step) % nodes for step in (-1, 1) if ring or 0 <= i + step < nodes} for i in range(nodes)]


def simulate(neighbors, stopped, timeout, seconds, clock):
    """Undirected rounds without end in which one node never sends; returns {accuser: accused} by second."""
    boxes = [Mailbox(i, Transport()) for i in range(len(neighbors))]
    rounds, handles, blame = [0] * len(boxes), {}, {}

    def open_next(i):
        handles[i] = boxes[i].open(key(rounds[i]), rounds[i] + 1, (), sorted(neighbors[i]), timeout)
        handles[i].start_waiting()
        for j in [j for j in neighbors[i] if boxes[i].peers.error(j) is None]:
            boxes[j].deliver(i, key(rounds[i]), Letter(rounds[i] + 1))

    running = [i for i in range(len(boxes)) if i != stopped]
    for i in running:
        open_next(i)
    for _ in range(seconds):
        for _ in boxes:  # as far as the distance to the stopped node lets them come
            for i in running:
                if handles[i].done and rounds[i] < len(boxes):
                    rounds[i] += 1
                    open_next(i)
        clock.time += 1
        for i in running:
            for handle, peers in boxes[i].awaited():
                for j in peers | neighbors[i]:
                    boxes[j].note_waiting(i, handle.key)
        for i in running:
            for _, error in overdue(boxes[i], clock.time):
                blame.setdefault(i, set()).add(error.peer)
                boxes[i].lose(error.peer, error)
    return blame, rounds


@pytest.mark.parametrize("ring", [False, True], ids=["chain", "ring"])
@pytest.mark.parametrize("nodes", [8, 40])
def test_only_the_neighbors_of_a_stopped_node_accuse_it_and_the_rest_go_on(now, ring, nodes):
    neighbors = neighbors_of(nodes, ring)
    blame, rounds = simulate(neighbors, stopped=0, timeout=10.0, seconds=40, clock=now)
    assert blame == {i: {0} for i in neighbors[0]}
    assert set(rounds[1:]) == {nodes}


def test_a_message_lost_between_two_waiting_nodes_is_not_waited_for_forever(now):
    """Both wait in the same exchange: each has sent, so each is right to give the other up."""
    boxes = [Mailbox(i, Transport()) for i in range(2)]
    for i, box in enumerate(boxes):
        box.open(key(0), 1, (), [1 - i], 10.0).start_waiting()
    now.time += 9
    for i, box in enumerate(boxes):
        box.note_waiting(1 - i, key(0))
    assert [accused(box, now.time + 2) for box in boxes] == [{1}, {0}]


def test_waiting_wakes_a_thread_and_has_a_limit(hand):
    handle = hand.open(key(0), sources=[1])
    assert not handle.finish_within(0.01)
    sender = threading.Timer(0.02, hand.box.deliver, (1, key(0), Letter(1)))
    sender.start()
    assert handle.finish_within(5.0)
    assert handle.finish_within(0.0)
    sender.join()


@pytest.mark.parametrize("alone", [False, True])
def test_awaiting_is_woken_from_another_thread(alone):
    box = Mailbox(0, Transport(), alone)

    async def receive():
        return await box.open(key(0), 1, (), [1], 10.0)

    sender = threading.Timer(0.02, box.deliver, (1, key(0), Letter(1)))
    sender.start()
    assert asyncio.run(asyncio.wait_for(receive(), 5.0)).messages == {1: Letter(1)}
    sender.join()


def test_a_broken_transport_ends_every_exchange_now_and_later(hand):
    now_open = hand.open(key(0), sources=[1])
    broken = OSError("no more")
    hand.box.fail(broken)
    later = hand.open(key(1), sources=[1])

    async def wait_for(handle):
        await handle

    for handle in (now_open, later):
        with pytest.raises(RunFailed, match=r"^the transport broke: no more$") as caught:
            asyncio.run(wait_for(handle))
        assert caught.value.__cause__ is broken


def test_many_threads_deliver_at_once_without_losing_a_message(hand):
    senders, rounds = 8, 50
    turn = threading.Barrier(senders + 1)

    def send(source):
        for round in range(rounds):
            turn.wait(5.0)
            hand.box.deliver(source, key(round), Letter(round))

    threads = [threading.Thread(target=send, args=(i,)) for i in range(1, senders + 1)]
    for thread in threads:
        thread.start()
    for round in range(rounds):
        turn.wait(5.0)
        handle = hand.open(key(round), sources=range(1, senders + 1), targets=[1])
        assert handle.finish_within(5.0)
        hand.box.acknowledged(1, hand.seq)
        assert sorted(handle.messages) == list(range(1, senders + 1))
    for thread in threads:
        thread.join()
    assert not hand.box.refused


def test_what_a_peer_that_was_given_up_had_sent_for_later_rounds_is_not_mixed(hand):
    hand.open(key(0), sources=[1])
    hand.box.deliver(1, key(1), Letter(2))
    hand.box.drop_edge(1, PeerTimeout(1, "silent"))
    assert hand.acknowledged == [(1, 2)]  # its memory is free again
    later = hand.open(key(1), sources=[1])
    assert later.messages == {}
    assert set(later.missing) == {1}


def test_what_a_dead_peer_had_sent_for_later_rounds_still_counts(hand):
    hand.open(key(0), sources=[1])
    hand.box.deliver(1, key(1), Letter(2))
    hand.box.lose(1, PeerLost(1, "died"))
    assert set(hand.open(key(1), sources=[1]).messages) == {1}


def test_a_later_payload_shows_that_an_earlier_one_was_lost(hand):
    hand.open(key(3), sources=[1, 2])
    hand.box.deliver(2, key(4), Letter(5))
    assert hand.asked == [(2, key(3))]
    hand.box.note_waiting(1, key(2))
    assert hand.asked == [(2, key(3))]  # it is only behind
    hand.box.note_waiting(1, key(3))
    assert hand.asked == [(2, key(3)), (1, key(3))]


def test_what_a_peer_sent_before_it_left_is_waited_for_and_nothing_later(hand):
    handle = hand.open(key(3), sources=[1])
    hand.box.depart(1, key(3))
    assert not handle.done
    hand.box.deliver(1, key(3), Letter(4))
    assert handle.done and set(handle.messages) == {1}
    assert set(hand.open(key(4), sources=[1]).missing) == {1}


def test_what_a_peer_sent_for_an_exchange_still_to_begin_is_waited_for_after_it_has_left(hand):
    """A payload that travels another way than the goodbye, to a node that sends nothing back."""
    hand.open(key(3), targets=[1])
    hand.box.depart(1, key(4))
    assert hand.box.is_read()
    handle = hand.open(key(4), sources=[1], targets=[1])
    assert not handle.done and hand.box.is_read()
    hand.box.deliver(1, key(4), Letter(4))
    assert handle.done and set(handle.messages) == {1}
    assert set(hand.open(key(5), sources=[1]).missing) == {1}


def test_a_peer_that_left_before_it_sent_is_not_waited_for(hand):
    handle = hand.open(key(3), sources=[1])
    hand.box.depart(1, key(2))
    assert handle.done and set(handle.missing) == {1}
    never = hand.open(key(4), sources=[2])
    hand.box.depart(2, None)
    assert never.done


def test_a_restarted_node_may_hear_of_a_peer_first_when_that_one_leaves(hand):
    """It is LOST until both have agreed on a round, and LEAVING follows only on peers that exchange."""
    hand.introduce = lambda peer: peer.step(PeerEvent.LOSE, PeerLost(peer.rank, "was not met again yet"))
    hand.box.depart(1, key(3))
    assert hand.box.peers[1].state is PeerState.LEFT
    assert set(hand.open(key(3), sources=[1]).missing) == {1}


def test_who_agreed_on_a_round_that_is_skipped_then_counts_on_this_node(hand):
    """It waited for the deadline for what never came, because it was not told of the skip."""
    for peer in (1, 2, 3):
        hand.box.lose(peer, PeerLost(peer, "was silent"))
    assert hand.box.readmit(1, 50)
    assert hand.box.readmit(2, 60)
    assert hand.box.skip_to(60, range(5)) == {1, 4}
    assert hand.box.skip_to(61, range(5)) == {1, 2, 4}
    assert set(hand.box.admit(61)) == {1, 2, 4}, "which do not know this node any more either"


def test_what_was_asked_for_and_comes_twice_is_not_counted_as_refused(hand):
    hand.open(key(3), sources=[1, 2])
    hand.box.peers[1].requested = key(3)
    for _ in range(2):
        hand.box.deliver(1, key(3), Letter(4))
    assert not hand.box.refused
    for _ in range(2):
        hand.box.deliver(2, key(3), Letter(4))
    hand.box.deliver(1, key(3), Letter(4))
    assert hand.box.refused == {"stale": 1}


def test_each_part_waits_for_its_own_readers_alone(hand):
    first = [hand.open((0, 0, part), targets=[1]) for part in range(2)]
    assert all(handle.done for handle in first)
    again = [hand.open((1, 0, part), targets=[1]) for part in range(2)]
    hand.box.acknowledged(1, 1)
    assert [handle.done for handle in again] == [True, False]
    assert hand.box.is_unread(1, 2, part=1) and not hand.box.is_unread(1, 1, part=0)
    hand.box.acknowledged(1, 2)
    assert again[1].done
    assert not hand.box.is_read()
    hand.box.acknowledged(1, 4)
    assert hand.box.is_read()


def test_what_is_parked_is_bounded_by_the_number_of_parts(hand):
    hand.box.parts = 3
    for part in range(3 * MOST_PARKED + 2):
        hand.box.deliver(1, (1, 0, part), Letter(part))
    assert hand.box.refused == {"too many ahead": 2}


def test_of_who_is_lost_only_what_came_before_counts(hand):
    """What comes later may be of an agreement that the other end alone knows: it does not get ours either."""
    hand.box.deliver(1, key(1), Letter(4))
    for peer in (1, 2):
        hand.box.lose(peer, PeerLost(peer, "gone"))
    hand.box.deliver(2, key(1), Letter(4))
    handle = hand.open(key(1), sources=[1, 2])
    assert handle.done
    assert (set(handle.messages), set(handle.missing)) == ({1}, {2})
    assert hand.box.refused == {"unexpected source": 1}


def test_what_comes_before_word_that_its_sender_is_back_counts(hand):
    hand.box.lose(1, PeerLost(1, "gone"))
    hand.box.deliver(1, key(3), Letter(4))
    assert hand.box.readmit(1, 3)
    assert hand.box.admit(3) == [1]
    assert set(hand.open(key(3), sources=[1]).messages) == {1}


def test_what_a_process_had_sent_ahead_that_another_one_replaces_is_dropped(hand):
    for round in (1, 2):
        hand.box.deliver(1, key(round), Letter(round))
    hand.box.replace(1, PeerLost(1, "connection lost"))
    assert hand.acknowledged == [(1, 1), (1, 2)]
    assert hand.box.readmit(1, 1) and hand.box.admit(1) == [1]
    handle = hand.open(key(1), sources=[1])
    hand.box.deliver(1, key(1), Letter(9))
    assert [message.seq for message in handle.messages.values()] == [9]


def test_two_that_wait_for_each_other_do_not_ask_without_a_pause(hand):
    hand.open(key(2), sources=[1])
    hand.box.note_waiting(1, key(2), for_us=True)
    assert hand.asked == []
    hand.box.note_waiting(1, key(2))
    hand.box.note_waiting(1, key(3), for_us=True)
    assert hand.asked == [(1, key(2))] * 2


def test_a_model_is_given_at_once_in_an_exchange_and_else_when_the_next_one_begins(hand):
    hand.box.want_model(1)
    assert hand.given == []
    hand.open(key(0), sources=[1])
    hand.box.want_model(2)
    assert hand.given == [1, 2]


def test_the_launcher_sees_for_whom_a_node_waits_if_that_lasts(hand):
    def awaited_from_now_on(handle):
        hand.slot.mark(3, Activity.RECEIVE)
        waiting = threading.Thread(target=handle.finish_within, args=(10.0,))
        waiting.start()
        limit = time.monotonic() + 5.0
        while not hand.slot.read().awaited and time.monotonic() < limit:
            time.sleep(0.01)
        return waiting, hand.slot.read().awaited

    waiting, awaited = awaited_from_now_on(hand.open(key(3), sources=[1, 2, *range(10, 20)], targets=[4]))
    assert awaited == (1, 2, *range(10, 16))
    hand.box.deliver(2, key(3), Letter(1))
    assert hand.slot.read().awaited == (1, *range(10, 17))
    for peer in [1, *range(10, 20)]:
        hand.box.lose(peer, PeerLost(peer, "died"))
    waiting.join()
    # It may not write again what rank 4 has not read.
    waiting, awaited = awaited_from_now_on(hand.open(key(4)))
    assert awaited == (4,)
    hand.box.acknowledged(4, 1)
    waiting.join()
    hand.slot.mark(4, Activity.MIX)
    assert hand.slot.read().awaited == ()
