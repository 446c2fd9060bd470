"""The mailbox: when an exchange is done, what is kept, what is dropped, and who is accused."""

import asyncio
import threading
import time
from dataclasses import dataclass

import pytest

from decentnode.communication.exchange.mailbox import MOST_EARLY
from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatBoard
from decentnode.communication.peers.failure_detector import overdue
from decentnode.communication.peers.peer import PeerEvent, PeerState
from decentnode.communication.peers.peers import Peers, PeerTransport
from decentnode.core.clock import Clock
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLeft, PeerLost, PeerTimeout, RunFailed


@dataclass
class FakeMessage:
    seq: int
    is_invalidated: bool = False

    def read(self, layout):
        raise NotImplementedError


def key(round, phase=0):
    return round, phase, 0


class FakeTransport(PeerTransport):
    """A mailbox of rank 0 that writes down what it asked of its transport, and opens exchanges in turn."""

    def __init__(self):
        self.acknowledged, self.asked, self.given = [], [], []
        self.slot = HeartbeatBoard([0]).of(0)
        self.box = Peers(0, self).mailbox
        self.seq = 0

    def waits_for(self, peers):
        self.slot.wait_for(peers)

    def acknowledge(self, source, message):
        self.acknowledged.append((source, message.seq))

    def request_resend(self, peer, key):
        self.asked.append((peer, key))

    def give_model(self):
        self.given += self.box.peers.take_wanting()

    def open(self, exchange, sources=(), targets=(), timeout=10.0, waits=True):
        self.seq += 1
        handle = self.box.open(exchange, self.seq, targets, sources, timeout)
        if waits and not handle.done:
            handle.start_waiting()
        return handle


@pytest.fixture
def transport():
    return FakeTransport()


@pytest.fixture
def now(monkeypatch):
    """Time stands still at `now.time`."""

    class Time:
        time = 1000.0

    fake = Time()
    monkeypatch.setattr(Clock, "now", lambda clock: fake.time)
    return fake


def test_done_when_every_source_was_received(transport):
    handle = transport.open(key(0), sources=[1, 2])
    transport.box.deliver(1, key(0), FakeMessage(1))
    assert not handle.done
    transport.box.deliver(2, key(0), FakeMessage(1))
    assert handle.done
    assert handle.messages == {1: FakeMessage(1), 2: FakeMessage(1)}
    assert handle.missing == {}


def test_an_exchange_with_nobody_is_done_at_once(transport):
    assert transport.open(key(0)).done


def test_done_only_when_all_readers_released_the_exchange_before(transport):
    first = transport.open(key(0), targets=[1, 2])
    assert first.done
    second = transport.open(key(1), targets=[1])
    transport.box.acknowledged(1, 1)
    assert not second.done
    transport.box.acknowledged(2, 1)
    assert second.done


def test_an_acknowledgement_frees_everything_up_to_its_number(transport):
    transport.open(key(0), targets=[1])
    transport.open(key(1), targets=[1])
    third = transport.open(key(2), targets=[1])
    assert not transport.box.is_read()
    transport.box.acknowledged(1, 2)
    assert third.done
    assert not transport.box.is_read()
    transport.box.acknowledged(1, 3)
    assert transport.box.is_read()


def test_an_acknowledgement_of_one_part_frees_no_other(transport):
    for round in range(2):
        handles = [transport.open((round, 0, part), targets=[1]) for part in range(2)]
    transport.box.acknowledged(1, 2, part=1)
    assert [handle.done for handle in handles] == [False, True]


def test_an_acknowledgement_of_the_present_does_not_free_what_others_still_read(transport):
    transport.open(key(0), targets=[1, 2])
    second = transport.open(key(1), targets=[1])
    transport.box.acknowledged(1, 2)
    assert not second.done


def test_later_messages_are_parked_and_given_out_in_their_exchange(transport):
    transport.box.deliver(1, key(1), FakeMessage(2))
    transport.box.deliver(1, key(0), FakeMessage(1))
    assert transport.open(key(0), sources=[1]).messages == {1: FakeMessage(1)}
    assert transport.open(key(1), sources=[1]).messages == {1: FakeMessage(2)}


def test_phases_are_distinguished(transport):
    transport.box.deliver(1, key(0, 1), FakeMessage(2))
    handle = transport.open(key(0, 0), sources=[1])
    assert not handle.done
    transport.box.deliver(1, key(0, 0), FakeMessage(1))
    assert handle.messages == {1: FakeMessage(1)}
    assert transport.open(key(0, 1), sources=[1]).messages == {1: FakeMessage(2)}


def test_a_duplicate_is_dropped(transport):
    handle = transport.open(key(0), sources=[1, 2])
    transport.box.deliver(1, key(0), FakeMessage(1))
    transport.box.deliver(1, key(0), FakeMessage(9))
    assert handle.messages == {1: FakeMessage(1)}
    assert not handle.done
    assert transport.box.refused == {"repeated": 1}


def test_a_stale_message_is_dropped(transport):
    transport.open(key(3))
    transport.box.deliver(1, key(3), FakeMessage(1))
    transport.box.deliver(1, key(2), FakeMessage(1))
    assert transport.box.refused == {"stale": 2}


def test_a_message_of_a_stranger_does_not_enter_an_exchange(transport):
    handle = transport.open(key(0), sources=[1])
    transport.box.deliver(7, key(0), FakeMessage(1))
    transport.box.deliver(1, key(0), FakeMessage(1))
    assert handle.messages == {1: FakeMessage(1)}
    assert transport.box.refused == {"unexpected source": 1}


def test_one_sender_parks_a_few_messages_at_most_and_holds_up_no_other(transport):
    for round in range(1, MOST_EARLY + 4):
        transport.box.deliver(1, key(round), FakeMessage(round))
    transport.box.deliver(2, key(9), FakeMessage(1))
    assert transport.box.refused == {"too many ahead": 3}
    assert transport.open(key(9), sources=[2]).done


def test_parked_messages_that_are_passed_over_are_acknowledged(transport):
    transport.box.deliver(1, key(1), FakeMessage(5))
    transport.open(key(2))
    assert transport.acknowledged == [(1, 5)]
    assert transport.box.refused == {"stale": 1}


def test_releasing_acknowledges_every_message_once(transport):
    handle = transport.open(key(0), sources=[1, 2])
    transport.box.deliver(2, key(0), FakeMessage(4))
    transport.box.deliver(1, key(0), FakeMessage(3))
    handle.release()
    handle.release()
    assert sorted(transport.acknowledged) == [(1, 3), (2, 4)]


def test_a_lost_peer_ends_waiting_for_it_as_source_and_as_reader(transport):
    transport.open(key(0), targets=[1])
    handle = transport.open(key(1), sources=[1, 2])
    transport.box.deliver(2, key(1), FakeMessage(1))
    lost = PeerLost(1, "gone")
    transport.box.peers.lose(1, lost)
    assert handle.done
    assert handle.missing == {1: lost}
    assert handle.messages == {2: FakeMessage(1)}


def test_a_lost_peer_is_missing_in_every_later_exchange_and_its_first_reason_stays(transport):
    first = PeerLeft(1, 3)
    transport.box.peers.lose(1, first)
    transport.box.peers.lose(1, PeerLost(1, "again"))
    handle = transport.open(key(0), sources=[1], targets=[1])
    assert handle.done
    assert handle.missing == {1: first}
    assert str(first) == "rank 1: left after round 4"
    assert transport.box.is_read()


def test_what_a_lost_peer_had_sent_still_counts(transport):
    transport.box.deliver(1, key(0), FakeMessage(1))
    transport.box.peers.lose(1, PeerLeft(1, 0))
    handle = transport.open(key(0), sources=[1])
    assert handle.messages == {1: FakeMessage(1)}
    assert handle.missing == {}


def accused(box, time):
    return {error.peer for _, error in overdue(box.peers, time)}


def test_a_silent_source_and_a_silent_reader_are_overdue_after_the_deadline(transport, now):
    transport.open(key(0), targets=[2])
    transport.open(key(1), sources=[1], timeout=10.0)
    assert accused(transport.box, now.time + 10.0) == set()
    assert accused(transport.box, now.time + 10.1) == {1, 2}


def test_the_accusation_names_seconds_and_exchange(transport, now):
    transport.open((4, 1, 0), sources=[1], timeout=10.0)
    [(exchange, error)] = overdue(transport.box.peers, now.time + 11)
    assert exchange == (4, 1, 0)
    assert isinstance(error, PeerTimeout)
    assert str(error) == "rank 1: silent for 10 s in exchange 4/1/0"


@pytest.mark.parametrize(("exchange", "timed_out"), [(key(4), set()), (key(5), {1}), (key(6), {1})])
def test_only_waiting_in_an_earlier_exchange_is_an_excuse(transport, now, exchange, timed_out):
    transport.open(key(5), sources=[1], timeout=10.0)
    now.time += 8
    transport.box.peers.note_waiting(1, exchange)
    assert accused(transport.box, now.time + 3) == timed_out
    assert accused(transport.box, now.time + 11) == {1}


def test_who_has_begun_a_round_and_sent_nothing_in_it_is_excused_as_before(transport, now):
    """A neighbor of it waits in round 5, while it waited in round 4 and now encodes what it will send."""
    transport.open(key(5), sources=[1], timeout=10.0)
    now.time += 8
    transport.box.peers.note_waiting(1, key(4))
    peer = Peers(1, PeerTransport()).mailbox
    peer.open(key(4), 1, (), (2,), 10.0)
    peer.peers.admit(5)
    now.time += 4
    transport.box.peers.note_progress(1, peer.position)
    assert accused(transport.box, now.time) == set()
    peer.open(key(5), 2, (), (2,), 10.0)
    transport.box.peers.note_progress(1, peer.position)
    assert accused(transport.box, now.time) == {1}, "it has sent, and that was lost"


def hold_out(transport, now, exchanges, note, timeout=10.0):
    """Seconds until a peer is accused that makes these statements, one a second, the last one for ever."""
    handle = transport.open(key(5), sources=[1], timeout=timeout)
    for seconds in range(1, 1000):
        now.time += 1
        note(1, exchanges[min(seconds, len(exchanges)) - 1])
        if accused(transport.box, now.time):
            return now.time - handle.opened
    return float("inf")


def test_a_peer_that_always_says_it_waits_in_an_earlier_exchange_is_dropped_in_the_end(transport, now):
    assert (
        hold_out(transport, now, [key(0)], transport.box.peers.note_waiting)
        == Timeouts.peer_behind(10) + 10 + 2
    )  # heard after 1 s


@pytest.mark.parametrize("statement", ["note_waiting", "note_progress"])
def test_a_peer_that_steps_through_the_phases_of_an_earlier_round_is_dropped_in_the_end(
    transport, now, statement
):
    phases = [key(4, phase) for phase in range(1000)]
    assert (
        hold_out(transport, now, phases, getattr(transport.box.peers, statement))
        == Timeouts.peer_behind(10) + 10 + 2
    )


def test_a_peer_that_gets_on_from_round_to_round_is_given_time_for_each(transport, now):
    rounds = [key(round) for round in range(4) for _ in range(90)]
    assert hold_out(transport, now, rounds, transport.box.peers.note_waiting) > 4 * 90


def test_to_wait_in_an_earlier_round_than_before_is_no_sign_of_life(transport, now):
    transport.box.peers.note_waiting(1, key(4))
    assert hold_out(transport, now, [key(3)], transport.box.peers.note_waiting) == 11


def test_to_wait_in_an_earlier_round_than_that_of_a_payload_is_no_sign_of_life(transport, now):
    transport.box.deliver(1, key(4), FakeMessage(1))
    assert hold_out(transport, now, [key(3)], transport.box.peers.note_waiting) == 11


def test_who_rejoins_may_be_in_an_earlier_round_than_it_was(transport, now):
    transport.open(key(3), sources=[1])
    transport.box.peers.note_waiting(1, key(4))
    assert transport.box.peers.readmit(1, 5)
    transport.box.peers.admit(5)
    assert hold_out(transport, now, [key(3)], transport.box.peers.note_waiting) > 100


def test_time_in_which_this_process_stood_still_adds_to_that_of_a_peer_that_is_behind(transport, now):
    transport.open(key(5), sources=[1], timeout=10.0)
    transport.box.peers.note_waiting(1, key(4))
    now.time += 1000
    transport.box.peers.extend_deadlines(1000)
    now.time += Timeouts.peer_behind(10) + 5
    transport.box.peers.note_waiting(1, key(4))
    assert accused(transport.box, now.time) == set()
    assert accused(transport.box, now.time + 6) == {1}


@pytest.mark.parametrize("heard", [False, True])
def test_time_in_which_this_process_stood_still_is_forgiven(transport, now, heard):
    transport.open(key(1), sources=[1], timeout=10.0)
    if heard:
        now.time += 5
        transport.box.peers.note_waiting(1, key(0))
    transport.box.peers.extend_deadlines(60.0)
    assert accused(transport.box, now.time + 69) == set()
    assert accused(transport.box, now.time + 71) == {1}


@pytest.mark.parametrize("arrives", [False, True])
def test_while_the_node_does_something_else_nobody_is_accused_or_asked(transport, now, arrives):
    handle = transport.open(key(0), sources=[1, 2] if arrives else [1], timeout=10.0, waits=False)
    assert accused(transport.box, now.time + 1000) == set()
    if arrives:
        transport.box.deliver(2, key(0), FakeMessage(1))
    now.time += 1000
    assert not handle.finish_within(0.0)
    assert accused(transport.box, now.time + 10) == set()
    assert accused(transport.box, now.time + 10.1) == {1}


def test_what_came_while_nobody_waited_is_there_at_once(transport, now):
    handle = transport.open(key(0), sources=[1], timeout=10.0, waits=False)
    transport.box.deliver(1, key(0), FakeMessage(1))
    assert handle.done
    assert handle.finish_within(0.0)


def neighbors_of(nodes, ring):
    return [{(i + step) % nodes for step in (-1, 1) if ring or 0 <= i + step < nodes} for i in range(nodes)]


def simulate(neighbors, stopped, timeout, seconds, clock):
    """Undirected rounds without end in which one node never sends; returns {accuser: accused} by second."""
    boxes = [Peers(i, PeerTransport()).mailbox for i in range(len(neighbors))]
    rounds, handles, timeouts = [0] * len(boxes), {}, {}

    def open_next(i):
        handles[i] = boxes[i].open(key(rounds[i]), rounds[i] + 1, (), sorted(neighbors[i]), timeout)
        handles[i].start_waiting()
        for j in [j for j in neighbors[i] if boxes[i].peers.error(j) is None]:
            boxes[j].deliver(i, key(rounds[i]), FakeMessage(rounds[i] + 1))

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
                    boxes[j].peers.note_waiting(i, handle.key)
        for i in running:
            for _, error in overdue(boxes[i].peers, clock.time):
                timeouts.setdefault(i, set()).add(error.peer)
                boxes[i].peers.lose(error.peer, error)
    return timeouts, rounds


@pytest.mark.parametrize("ring", [False, True], ids=["chain", "ring"])
@pytest.mark.parametrize("nodes", [8, 40])
def test_only_the_neighbors_of_a_stopped_node_accuse_it_and_the_rest_continue(now, ring, nodes):
    neighbors = neighbors_of(nodes, ring)
    timeouts, rounds = simulate(neighbors, stopped=0, timeout=10.0, seconds=40, clock=now)
    assert timeouts == {i: {0} for i in neighbors[0]}
    assert set(rounds[1:]) == {nodes}


def test_a_message_lost_between_two_waiting_nodes_is_not_waited_for_forever(now):
    """Both wait in the same exchange: each has sent, so each is right to give the other up."""
    boxes = [Peers(i, PeerTransport()).mailbox for i in range(2)]
    for i, box in enumerate(boxes):
        box.open(key(0), 1, (), [1 - i], 10.0).start_waiting()
    now.time += 9
    for i, box in enumerate(boxes):
        box.peers.note_waiting(1 - i, key(0))
    assert [accused(box, now.time + 2) for box in boxes] == [{1}, {0}]


def test_waiting_wakes_a_thread_and_has_a_limit(transport):
    handle = transport.open(key(0), sources=[1])
    assert not handle.finish_within(0.01)
    sender = threading.Timer(0.02, transport.box.deliver, (1, key(0), FakeMessage(1)))
    sender.start()
    assert handle.finish_within(5.0)
    assert handle.finish_within(0.0)
    sender.join()


@pytest.mark.parametrize("alone", [False, True])
def test_awaiting_is_woken_from_another_thread(alone):
    box = Peers(0, PeerTransport(), alone=alone).mailbox

    async def receive():
        return await box.open(key(0), 1, (), [1], 10.0)

    sender = threading.Timer(0.02, box.deliver, (1, key(0), FakeMessage(1)))
    sender.start()
    assert asyncio.run(asyncio.wait_for(receive(), 5.0)).messages == {1: FakeMessage(1)}
    sender.join()


def test_a_broken_transport_ends_every_exchange_now_and_later(transport):
    now_open = transport.open(key(0), sources=[1])
    broken = OSError("no more")
    transport.box.fail(broken)
    later = transport.open(key(1), sources=[1])

    async def wait_for(handle):
        await handle

    for handle in (now_open, later):
        with pytest.raises(RunFailed, match=r"^the transport broke: no more$") as caught:
            asyncio.run(wait_for(handle))
        assert caught.value.__cause__ is broken


def test_many_threads_deliver_at_once_without_losing_a_message(transport):
    senders, rounds = 8, 50
    turn = threading.Barrier(senders + 1)

    def send(source):
        for round in range(rounds):
            turn.wait(5.0)
            transport.box.deliver(source, key(round), FakeMessage(round))

    threads = [threading.Thread(target=send, args=(i,)) for i in range(1, senders + 1)]
    for thread in threads:
        thread.start()
    for round in range(rounds):
        turn.wait(5.0)
        handle = transport.open(key(round), sources=range(1, senders + 1), targets=[1])
        assert handle.finish_within(5.0)
        transport.box.acknowledged(1, transport.seq)
        assert sorted(handle.messages) == list(range(1, senders + 1))
    for thread in threads:
        thread.join()
    assert not transport.box.refused


def test_what_a_peer_that_was_dropped_had_sent_for_later_rounds_is_not_mixed(transport):
    transport.open(key(0), sources=[1])
    transport.box.deliver(1, key(1), FakeMessage(2))
    transport.box.peers.drop_edge(1, PeerTimeout(1, "silent"))
    assert transport.acknowledged == [(1, 2)]  # its memory is free again
    later = transport.open(key(1), sources=[1])
    assert later.messages == {}
    assert set(later.missing) == {1}


def test_what_a_dead_peer_had_sent_for_later_rounds_still_counts(transport):
    transport.open(key(0), sources=[1])
    transport.box.deliver(1, key(1), FakeMessage(2))
    transport.box.peers.lose(1, PeerLost(1, "died"))
    assert set(transport.open(key(1), sources=[1]).messages) == {1}


def test_a_later_payload_shows_that_an_earlier_one_was_lost(transport):
    transport.open(key(3), sources=[1, 2])
    transport.box.deliver(2, key(4), FakeMessage(5))
    assert transport.asked == [(2, key(3))]
    transport.box.peers.note_waiting(1, key(2))
    assert transport.asked == [(2, key(3))]  # it is only behind
    transport.box.peers.note_waiting(1, key(3))
    assert transport.asked == [(2, key(3)), (1, key(3))]


def test_what_a_peer_sent_before_it_left_is_waited_for_and_nothing_later(transport):
    handle = transport.open(key(3), sources=[1])
    transport.box.peers.depart(1, key(3))
    assert not handle.done
    transport.box.deliver(1, key(3), FakeMessage(4))
    assert handle.done and set(handle.messages) == {1}
    assert set(transport.open(key(4), sources=[1]).missing) == {1}


def test_what_a_peer_sent_for_an_exchange_still_to_begin_is_waited_for_after_it_has_left(transport):
    """A payload that travels another way than the goodbye, to a node that sends nothing back."""
    transport.open(key(3), targets=[1])
    transport.box.peers.depart(1, key(4))
    assert transport.box.is_read()
    handle = transport.open(key(4), sources=[1], targets=[1])
    assert not handle.done and transport.box.is_read()
    transport.box.deliver(1, key(4), FakeMessage(4))
    assert handle.done and set(handle.messages) == {1}
    assert set(transport.open(key(5), sources=[1]).missing) == {1}


def test_a_peer_that_left_before_it_sent_is_not_waited_for(transport):
    handle = transport.open(key(3), sources=[1])
    transport.box.peers.depart(1, key(2))
    assert handle.done and set(handle.missing) == {1}
    never = transport.open(key(4), sources=[2])
    transport.box.peers.depart(2, None)
    assert never.done


def test_a_restarted_node_may_hear_of_a_peer_first_when_that_one_leaves(transport):
    """It is LOST until both have agreed on a round, and LEAVING follows only on peers that exchange."""
    transport.introduce = lambda peer: peer.step(PeerEvent.LOSE, PeerLost(peer.rank, "was not met again yet"))
    transport.box.peers.depart(1, key(3))
    assert transport.box.peers[1].state is PeerState.LEFT
    assert set(transport.open(key(3), sources=[1]).missing) == {1}


def test_who_agreed_on_a_round_that_is_skipped_then_counts_on_this_node(transport):
    """It waited for the deadline for what never came, because it was not told of the skip."""
    for peer in (1, 2, 3):
        transport.box.peers.lose(peer, PeerLost(peer, "was silent"))
    assert transport.box.peers.readmit(1, 50)
    assert transport.box.peers.readmit(2, 60)
    assert transport.box.peers.skip_to(60, range(5)) == {1, 4}
    assert transport.box.peers.skip_to(61, range(5)) == {1, 2, 4}
    assert set(transport.box.peers.admit(61)) == {1, 2, 4}, "which do not know this node any more either"


def test_what_was_requested_and_comes_twice_is_not_counted_as_refused(transport):
    transport.open(key(3), sources=[1, 2])
    transport.box.peers[1].requested = key(3)
    for _ in range(2):
        transport.box.deliver(1, key(3), FakeMessage(4))
    assert not transport.box.refused
    for _ in range(2):
        transport.box.deliver(2, key(3), FakeMessage(4))
    transport.box.deliver(1, key(3), FakeMessage(4))
    assert transport.box.refused == {"stale": 1}


def test_each_part_waits_for_its_own_readers_alone(transport):
    first = [transport.open((0, 0, part), targets=[1]) for part in range(2)]
    assert all(handle.done for handle in first)
    again = [transport.open((1, 0, part), targets=[1]) for part in range(2)]
    transport.box.acknowledged(1, 1)
    assert [handle.done for handle in again] == [True, False]
    assert transport.box.is_unacknowledged(1, 2, part=1) and not transport.box.is_unacknowledged(1, 1, part=0)
    transport.box.acknowledged(1, 2)
    assert again[1].done
    assert not transport.box.is_read()
    transport.box.acknowledged(1, 4)
    assert transport.box.is_read()


def test_what_is_parked_is_bounded_by_the_number_of_parts(transport):
    transport.box.parts = 3
    for part in range(3 * MOST_EARLY + 2):
        transport.box.deliver(1, (1, 0, part), FakeMessage(part))
    assert transport.box.refused == {"too many ahead": 2}


def test_of_who_is_lost_only_what_came_before_counts(transport):
    """What comes later may be of an agreement that the other end alone knows: it does not get ours either."""
    transport.box.deliver(1, key(1), FakeMessage(4))
    for peer in (1, 2):
        transport.box.peers.lose(peer, PeerLost(peer, "gone"))
    transport.box.deliver(2, key(1), FakeMessage(4))
    handle = transport.open(key(1), sources=[1, 2])
    assert handle.done
    assert (set(handle.messages), set(handle.missing)) == ({1}, {2})
    assert transport.box.refused == {"unexpected source": 1}


def test_what_comes_before_word_that_its_sender_is_back_counts(transport):
    transport.box.peers.lose(1, PeerLost(1, "gone"))
    transport.box.deliver(1, key(3), FakeMessage(4))
    assert transport.box.peers.readmit(1, 3)
    assert transport.box.peers.admit(3) == [1]
    assert set(transport.open(key(3), sources=[1]).messages) == {1}


def test_what_a_process_had_sent_ahead_that_another_one_replaces_is_dropped(transport):
    for round in (1, 2):
        transport.box.deliver(1, key(round), FakeMessage(round))
    transport.box.peers.replace(1, PeerLost(1, "connection lost"))
    assert transport.acknowledged == [(1, 1), (1, 2)]
    assert transport.box.peers.readmit(1, 1) and transport.box.peers.admit(1) == [1]
    handle = transport.open(key(1), sources=[1])
    transport.box.deliver(1, key(1), FakeMessage(9))
    assert [message.seq for message in handle.messages.values()] == [9]


def test_two_that_wait_for_each_other_do_not_ask_without_a_pause(transport):
    transport.open(key(2), sources=[1])
    transport.box.peers.note_waiting(1, key(2), for_us=True)
    assert transport.asked == []
    transport.box.peers.note_waiting(1, key(2))
    transport.box.peers.note_waiting(1, key(3), for_us=True)
    assert transport.asked == [(1, key(2))] * 2


def test_a_model_is_given_at_once_in_an_exchange_and_else_when_the_next_one_begins(transport):
    transport.box.peers.want_model(1)
    assert transport.given == []
    transport.open(key(0), sources=[1])
    transport.box.peers.want_model(2)
    assert transport.given == [1, 2]


def test_the_launcher_sees_for_whom_a_node_waits_if_that_lasts(transport):
    def awaited_from_now_on(handle):
        transport.slot.mark(3, Activity.RECEIVE)
        waiting = threading.Thread(target=handle.finish_within, args=(10.0,))
        waiting.start()
        limit = time.monotonic() + 5.0
        while not transport.slot.read().awaited and time.monotonic() < limit:
            time.sleep(0.01)
        return waiting, transport.slot.read().awaited

    waiting, awaited = awaited_from_now_on(
        transport.open(key(3), sources=[1, 2, *range(10, 20)], targets=[4])
    )
    assert awaited == (1, 2, *range(10, 16))
    transport.box.deliver(2, key(3), FakeMessage(1))
    assert transport.slot.read().awaited == (1, *range(10, 17))
    for peer in [1, *range(10, 20)]:
        transport.box.peers.lose(peer, PeerLost(peer, "died"))
    waiting.join()
    # It may not write again what rank 4 has not read.
    waiting, awaited = awaited_from_now_on(transport.open(key(4)))
    assert awaited == (4,)
    transport.box.acknowledged(4, 1)
    waiting.join()
    transport.slot.mark(4, Activity.MIX)
    assert transport.slot.read().awaited == ()


def test_what_is_printed_shows_state_and_counts(transport):
    box, peers = transport.box, transport.box.peers
    assert repr(box) == "<Mailbox of rank 0: live, next round 0, 0 early, 0 refused; []>"
    handle = transport.open(key(0), sources=[1, 2, 3], targets=[1])
    box.deliver(1, key(0), FakeMessage(1))
    box.deliver(1, key(1), FakeMessage(2))
    box.deliver(1, key(0), FakeMessage(1))
    peers.lose(3, PeerLost(3, "connection lost"))
    waiting = (
        "<ExchangeHandle (0, 0, 0): awaits payloads of [2], acknowledgements of []; 1 arrived, 1 missing>"
    )
    assert repr(handle) == waiting
    assert repr(box) == f"<Mailbox of rank 0: live, next round 1, 1 early, 1 refused; [{waiting}]>"
    assert repr(peers[2]) == "<Peer 2: LIVE, 0 timeouts, 0 proposals>"
    assert repr(peers[3]) == "<Peer 3: LOST, 0 timeouts, 0 proposals, rank 3: connection lost>"
    peers[3].note_timeout(0, 10.0, 1.0)
    box.deliver(2, key(0), FakeMessage(1))
    assert repr(handle) == "<ExchangeHandle (0, 0, 0): done; 2 arrived, 1 missing>"
    assert "LOST, 1 timeouts, 0 proposals" in repr(peers) and repr(peers).startswith("{1: <Peer 1: LIVE")
    box.fail(RunFailed("broken"))
    assert repr(box) == "<Mailbox of rank 0: failed, next round 1, 1 early, 1 refused; []>"
