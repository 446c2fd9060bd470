"""What threads may do with the links of a process at the same time."""

import contextlib
import os
import threading
import time
from types import SimpleNamespace

import pytest
import zmq

from decentnode.communication import wire
from decentnode.communication.base import HostProcess, ProcessDirectory
from decentnode.communication.peers.peers import Peers, PeerTransport
from decentnode.communication.shared_memory.doorbell import DoorbellReader, pipe_path
from decentnode.communication.zeromq.io_thread import IoThread
from decentnode.communication.zeromq.links import MOST_QUEUED_BODIES, NEVER, PeerLinks
from decentnode.core.timeouts import Timeouts


def header(name):
    """Stands for the header of a message that no doorbell carries."""
    return name.encode().ljust(wire.HEADER_BYTES, b"-")


PROCESSES = tuple(HostProcess(0, i, (i,), "127.0.0.1") for i in range(3))


@pytest.fixture
def made(tmp_path):
    """Links to processes that nobody listens for, what could not be sent, and what else booking does."""
    context, booked, also = zmq.Context(), [], []

    def book(header):
        booked.append(header)
        for act in also:
            act()

    place = ProcessDirectory(PROCESSES, 0, str(tmp_path))
    owner = SimpleNamespace(has_met=lambda process: True, book_unsent=book, note_link=lambda process: None)
    hello = header("hello")
    links = PeerLinks(
        context, place, lambda p: f"ipc://{tmp_path}/{p}", lambda p, is_doorbell: [(p, hello, b"")], owner
    )
    yield links, booked, also
    links.close(lambda process: 0)
    context.term()


@pytest.mark.parametrize("exists", [False, True])
def test_what_is_not_read_in_time_is_booked_while_others_can_send(made, exists):
    """Booking takes the lock of a mailbox, and whoever holds that one may want to send."""
    links, booked, also = made
    if exists:
        links.make(1)

    def send_beside():
        other = threading.Thread(target=links.send, args=([], False), daemon=True)
        other.start()
        other.join(5.0)
        also.clear()
        assert not other.is_alive()

    also.append(send_beside)
    messages = [(1, header(f"{i}"), b"") for i in range(2000)]
    if exists:
        assert links.send(messages, opens=False) == []
    else:
        links.send(messages)
    assert len(booked) > 500
    assert booked == [header for _, header, _ in messages[-len(booked) :]]


def test_a_process_in_the_place_of_one_that_had_left_may_be_asked_to_rejoin(tmp_path):
    thread = IoThread(
        ProcessDirectory(PROCESSES, 0, str(tmp_path)), lambda process: f"ipc://{tmp_path}/{process}", 1000
    )
    box = Peers(0, PeerTransport()).mailbox
    thread.add_node(box.peers, None, None)
    try:
        box.peers.depart(1, None)
        assert box.peers.lost() == []
        thread._restarted(1)
        assert box.peers.lost() == [1]
    finally:
        thread.stop(0.0)


class NeverIterated(dict):
    """Stands for one that another thread changes: to iterate over it would raise, now and then."""

    def __iter__(self):
        raise RuntimeError("dictionary changed size during iteration")


def test_whether_a_link_holds_can_be_asked_while_links_are_made(made):
    links, _, _ = made
    links.make(1)
    links.lost.add(2)
    dealers = links._dealers
    dealers._sockets = NeverIterated(dealers._sockets)
    assert [links.holds(process) for process in range(3)] == [False, True, False]
    dealers._sockets = dict(dealers._sockets.items())


def test_a_peer_that_reads_nothing_does_not_fill_the_memory_of_who_sends(made):
    links, booked, _ = made
    body = memoryview(bytes(1 << 17))
    links.send([(1, header(f"{i}"), body) for i in range(100)])
    assert booked == [header(f"{i}") for i in range(MOST_QUEUED_BODIES, 100)]
    # None of these has left, so none is repeated on request.
    assert [links.flushed_at(1), links.flushed_at(2)] == [float("inf"), 0.0]
    links.reconnect(1)
    links.send([(1, header("anew"), body)])
    assert header("anew") not in booked


def test_a_process_that_begins_to_listen_a_little_later_is_linked(tmp_path):
    """Its pipes did not exist yet at the first attempt; after `unmade_link` it would count as lost."""
    context, linked = zmq.Context(), []
    hello = wire.Header(wire.Kind.HELLO, 1, 0, 1, 0, 0, 0, seq=0).pack()
    place = ProcessDirectory(PROCESSES, 0, str(tmp_path))
    owner = SimpleNamespace(has_met=lambda process: True, book_unsent=None, note_link=linked.append)
    links = PeerLinks(
        context, place, lambda p: f"ipc://{tmp_path}/{p}", lambda p, is_doorbell: [(p, hello, b"")], owner,
        lambda p, is_doorbell: pipe_path(place, p, is_doorbell),
    )  # fmt: skip
    links.make(1)
    assert linked == [] and links.next_verdict < time.monotonic() + Timeouts.unmade_link / 2
    heard = []
    reader = DoorbellReader(
        ProcessDirectory(PROCESSES, 1, str(tmp_path)), lambda *message: heard.append(message), None, False
    )
    assert links.lose_broken(time.monotonic()) == []
    reader.receive()
    assert linked == [1] and heard == [(hello, b"")]
    assert links.holds(1) and links.next_verdict == float("inf")
    links.close(lambda process: 0)
    reader.close()
    context.term()


def test_two_threads_report_each_link_that_was_opened_once(made):
    """The other one reports between the look of the first and what it does then."""
    links, _, _ = made
    counted = []
    links._owner.note_link = counted.append

    class Opened(list):
        def __bool__(self):
            has_messages = len(self) > 0
            if has_messages and not counted:
                other = threading.Thread(target=links._report)
                counted.append("began")
                other.start()
                other.join(10.0)
            return has_messages

    links._opened = Opened([1, 2])
    links._report()
    assert sorted(counted[1:]) == [1, 2]


def test_a_process_whose_pipe_is_full_lives_and_is_linked_when_it_reads(tmp_path):
    """The hellos of thousands of nodes do not fit into a pipe at once; a pipe without a reader is another
    thing.
    """
    linked, context = [], zmq.Context()
    owner = SimpleNamespace(has_met=lambda process: True, book_unsent=None, note_link=linked.append)
    own, other = (ProcessDirectory(PROCESSES, position, str(tmp_path)) for position in range(2))
    links = PeerLinks(
        context, own, lambda p: f"ipc://{tmp_path}/{p}", lambda p, is_doorbell: [(p, header("hello"), b"")],
        owner, pipe_of=lambda process, is_doorbell: pipe_path(own, process, is_doorbell),
    )  # fmt: skip
    reader = DoorbellReader(other, lambda head, body: None, lambda reason: None, is_doorbell=False)
    junk = os.open(pipe_path(own, 1, False), os.O_WRONLY | os.O_NONBLOCK)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(junk, header("junk"))
        links.make(1)
        later = time.monotonic() + 10 * Timeouts.unmade_link
        assert links.lose_broken(later) == [] and not links.lost and not linked
        reader.receive()
        assert links.lose_broken(later) == [] and linked == [1] and links.holds(1)
        # Nobody listens at the third one.
        links.make(2)
        assert links.lose_broken(time.monotonic() + Timeouts.unmade_link) == [2]
    finally:
        os.close(junk)
        reader.close()
        links.close(lambda process: 0)
        context.term()


def test_a_link_that_breaks_before_the_first_hello_is_judged_by_the_next_attempt(made):
    """Its process may be suspended or busy; if it died, the next attempt is refused."""
    links, _, _ = made
    links._owner.has_met = lambda process: False
    links._judge(1, [zmq.EVENT_DISCONNECTED])
    assert links.next_verdict == NEVER
    links._judge(1, [zmq.EVENT_CONNECT_RETRIED])
    assert links.next_verdict < NEVER
    links._owner.has_met = lambda process: True
    links._judge(2, [zmq.EVENT_DISCONNECTED])
    assert links.lose_broken(time.monotonic() + Timeouts.local_link) == [2]
