"""Links on demand: which are opened, which are closed, and what forbids it."""

import contextlib
import gc
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from decentnode.communication import base, wire
from decentnode.communication.base import BufferSpec, HostProcess, ProcessDirectory
from decentnode.communication.peers.peer import PeerState
from decentnode.communication.peers.peers import Peers, PeerTransport
from decentnode.communication.shared_memory.attached import AttachedSegments
from decentnode.communication.shared_memory.doorbell import DoorbellReader, pipe_path
from decentnode.communication.shared_memory.segment import Segment
from decentnode.communication.wire import Kind, WireError
from decentnode.communication.zeromq.io_thread import IoThread
from decentnode.communication.zeromq.link_budget import LinkBudget
from decentnode.communication.zeromq.links import PeerLinks
from decentnode.errors import PeerLost

NODES = 12
KEPT = 3
LAST = b"last".ljust(wire.HEADER_BYTES, b"-")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr("decentnode.communication.zeromq.link_budget.kept_links", lambda: KEPT)


class FakeTransport(PeerTransport):
    """Stands for the endpoint of rank 0."""

    def __init__(self):
        self.threads = []

    def is_linked(self, peer):
        return not self.threads or self.threads[0].is_linked(peer)


@pytest.fixture
def made(tmp_path):
    """Rank 0's socket thread, which does not run, and its mailbox; every other process listens."""
    processes = tuple(HostProcess(0, i, (i,), "127.0.0.1") for i in range(NODES))
    place = ProcessDirectory(processes, 0, str(tmp_path))
    context, tie = zmq.Context(), FakeTransport()
    routers = [context.socket(zmq.ROUTER) for _ in range(NODES)]
    for process, router in enumerate(routers):
        router.bind(f"ipc://{tmp_path}/{process}-")
    thread = IoThread(place, lambda process: f"ipc://{tmp_path}/{process}-", 1000)
    sockets = thread.sockets
    tie.threads.append(sockets)
    box = Peers(0, tie).mailbox
    thread.add_node(box.peers, None, None)
    yield sockets, box, routers
    thread.stop(0.0)
    for router in routers:
        router.close(0)
    context.term()


def need(sockets, *ranks):
    sockets.need(0, ranks)
    sockets.commands.post(lambda: None)
    sockets.commands.run_commands()


def test_the_bound_follows_from_what_the_coming_rounds_need_and_never_shrinks():
    budget = LinkBudget()
    assert budget.surplus(range(1000)) == [], "nothing is closed where nothing is foreseen"
    budget.need(0, range(1))
    assert budget.most == KEPT
    budget.need(1, range(5))
    assert budget.most == base.LINK_MULTIPLE * 5
    budget.need(1, ())
    assert budget.most == base.LINK_MULTIPLE * 5
    assert budget.needs(0) and not budget.needs(1)


def test_small_limits_of_open_files_keep_fewer_links(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 1024))
    assert base.kept_links() * base.FILES_PER_PEER < 1024
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY,) * 2)
    assert base.kept_links() == base.MOST_KEPT_LINKS


def test_the_least_recently_used_link_is_closed_and_none_that_is_needed(made):
    sockets, _, _ = made
    need(sockets, 1)
    for rank in range(2, NODES):
        need(sockets, 1, rank)
        assert sockets.is_linked(1) and sockets.is_linked(rank)
        assert len(sockets.linked()) <= 5 * base.LINK_MULTIPLE // 2
    assert sorted(sockets.linked()) == [1, *range(NODES - 4, NODES)]


def test_a_closed_link_is_a_part_of_live_and_no_loss(made):
    sockets, box, _ = made
    need(sockets, 1)
    assert box.peers[1].state is PeerState.LIVE
    assert box.peers[5].state is PeerState.UNLINKED, "never linked"
    for rank in range(2, NODES):
        need(sockets, rank)
    assert not sockets.is_linked(1) and 1 not in box.peers, "nothing is known of it that must be kept"
    box.peers[1].note_timeout(0, 1.0, 0.0)
    assert box.peers[1].state is PeerState.UNLINKED
    assert box.peers.error(1) is None and box.peers.lost() == []
    need(sockets, 1)
    assert sockets.is_linked(1) and box.peers[1].state is PeerState.LIVE
    assert sockets.links.lose_broken(float("inf")) == []


def test_neither_what_is_unacknowledged_nor_what_is_awaited_is_closed(made):
    sockets, box, _ = made
    need(sockets, 1, 2)
    box.open((0, 0, 0), 1, targets=[1], sources=[2], deadline=10.0)
    for rank in range(3, NODES):
        need(sockets, rank)
    assert sockets.is_linked(1) and sockets.is_linked(2)
    box.acknowledged(1, 1)
    box.peers.lose(2, PeerLost(2, "connection lost"))
    for rank in range(3, NODES):
        need(sockets, rank)
    assert not sockets.is_linked(1) and not sockets.is_linked(2)
    assert box.peers[2].state is PeerState.LOST, "closing the link of a lost peer does not make it live"


def test_what_was_sent_before_a_link_closed_arrives_behind_a_hello(made):
    sockets, _, routers = made
    need(sockets, 1)
    sockets.dispatch([(1, LAST, b"")])
    for rank in range(2, NODES):
        need(sockets, rank)
    assert not sockets.is_linked(1)
    need(sockets, 1)
    seen = []
    while len(seen) < 3 and routers[1].poll(5000):
        seen.append(routers[1].recv_multipart()[1:])
    hello = [frames for frames in seen if frames[1]]
    assert len(hello) == 2 and [LAST, b""] in seen
    assert seen[0] == hello[0], "HELLO is the first message of each link"


def open_files(word):
    """Those whose names begin with a word: others are of tests before this one, and close at any time."""
    gc.collect()
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(str(path.readlink()))
    return sum(link.startswith(word) for link in links)


def test_attached_segments_are_bounded_and_attached_again():
    segments = [Segment(rank, BufferSpec(4), NODES) for rank in range(NODES)]
    known = AttachedSegments()
    known.most = KEPT
    before = open_files("/memfd:")
    for rank, segment in enumerate(segments):
        known.learn([segment.shared], [rank])
    assert open_files("/memfd:") - before == KEPT
    first = known.of(0)
    for rank in range(1, NODES):
        known.of(rank)
    assert known.of(0) is not first and open_files("/memfd:") - before <= KEPT + 1, (
        "a message may still be in the first"
    )
    segments[0].invalidate(3, 7)
    assert first.words[-1 - 3] == known.of(0).words[-1 - 3] == 7
    with pytest.raises(WireError):
        known.learn([segments[1].shared], [0])
    known.forget(0)
    with pytest.raises(WireError):
        known.of(0)
    for segment in segments:
        segment.close()


def test_pipes_are_opened_by_the_first_message_and_closed_with_the_link(tmp_path):
    processes = tuple(HostProcess(0, i, (i,), "127.0.0.1") for i in range(NODES))
    places = [ProcessDirectory(processes, number, str(tmp_path)) for number in range(NODES)]
    heard = {number: [] for number in range(NODES)}

    def recorder(own):
        return lambda head, body: heard[own].append(wire.Header.unpack(head).kind)

    readers = [DoorbellReader(place, recorder(place.own), pytest.fail) for place in places]
    notice, hello = (wire.Header(kind, 1, 0, 1).pack() for kind in (Kind.NOTICE, Kind.HELLO))
    owner = SimpleNamespace(
        has_met=lambda process: True, note_link=lambda process: None, book_unsent=pytest.fail
    )
    links = PeerLinks(
        zmq.Context.instance(), places[0], str, lambda process, is_doorbell: [(process, hello, b"")], owner,
        lambda process, is_doorbell: pipe_path(places[0], process, is_doorbell),
    )  # fmt: skip
    before = open_files(str(tmp_path))
    for turn in range(2):
        for process in range(1, NODES):
            assert links.send([(process, notice, bytes(8))], opens=False) == []
            readers[process].receive()
            assert heard[process] == [Kind.HELLO, Kind.NOTICE] * (turn + 1)
        assert open_files(str(tmp_path)) - before == NODES - 1
        links.close(lambda process: 0) if turn else [links.end(p, 0) for p in range(1, NODES)]
    for reader in readers:
        reader.close()
