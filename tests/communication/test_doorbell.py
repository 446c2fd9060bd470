"""Bells: what is rung is heard once and whole, nobody waits in vain, and the rest goes another way."""

import os
import socket
import stat
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from decentnode.communication import wire
from decentnode.communication.base import HostProcess, ProcessDirectory
from decentnode.communication.peers.peers import Peers, PeerTransport
from decentnode.communication.shared_memory.doorbell import DoorbellReader, pipe_path
from decentnode.communication.wire import Header, Kind
from decentnode.communication.zeromq.links import PeerLinks
from decentnode.core.process_setup import close_connections_in_children
from decentnode.errors import StartError


class FakeProcess:
    """One of two processes: its doorbell, and what it has received."""

    def __init__(self, directory, own, machines=(0, 0)):
        processes = tuple(HostProcess(m, i, (i,), "127.0.0.1") for i, m in enumerate(machines))
        self.received, self.refused = [], Counter()
        self.place = ProcessDirectory(processes, own, str(directory))
        self.doorbell = DoorbellReader(self.place, self.take, lambda reason: self.refused.update([reason]))
        owner = SimpleNamespace(
            has_met=lambda process: True, note_link=lambda process: None, book_unsent=pytest.fail
        )
        self.links = PeerLinks(
            zmq.Context.instance(), self.place, str, self.hello_messages, owner, self.pipe_of
        )

    def hello_messages(self, process, is_doorbell):
        return [(process, Header(Kind.HELLO, 7, self.place.own, process, seq=is_doorbell).pack(), b"")]

    def pipe_of(self, process, is_doorbell):
        return pipe_path(self.place, process, is_doorbell) if self.place.co_located(process) else None

    def take(self, head, body):
        header = Header.unpack(head)
        if header.kind != Kind.HELLO:
            self.received.append((Kind(header.kind), header.seq, body))


def message(kind=Kind.NOTICE, seq=1, to=1):
    body = wire.REFERENCE.pack(8 * seq) if kind == Kind.NOTICE else b""
    return to, Header(kind, 7, 0, to, seq=seq).pack(), body


@pytest.fixture
def processes(tmp_path):
    both = [FakeProcess(tmp_path, number) for number in range(2)]
    yield both
    for process in both:
        process.doorbell.close()
        process.links.close(lambda process: 0)


def send(process, *messages):
    return process.links.send(messages, opens=False)


def test_hello_goes_first_to_a_process_whose_doorbell_is_used(processes):
    kinds = []
    processes[1].doorbell._take = lambda head, body: kinds.append(Header.unpack(head).kind)
    assert send(processes[0], message()) == []
    assert send(processes[0], message()) == []
    processes[1].doorbell.receive()
    assert kinds == [Kind.HELLO, Kind.NOTICE, Kind.NOTICE]
    assert not stat.S_IMODE(Path(pipe_path(processes[0].place, 1, True)).stat().st_mode) & 0o077


def test_everything_is_received_once_in_its_order_and_only_kinds_of_exchanges_use_the_doorbell(processes):
    sent = [message(Kind.NOTICE, 1), message(Kind.RESEND, 2), message(Kind.ACKNOWLEDGE, 3)]
    assert send(processes[0], *sent) == sent[1:2]
    processes[1].doorbell.receive()
    processes[1].doorbell.receive()
    assert [(kind, seq) for kind, seq, _ in processes[1].received] == [
        (Kind.NOTICE, 1),
        (Kind.ACKNOWLEDGE, 3),
    ]
    assert processes[1].received[1][2] == b"", (
        "the body is as over a link, where it is checked against its length"
    )
    assert not processes[1].refused


def test_what_a_full_pipe_does_not_take_goes_another_way(processes):
    refused, rung = [], 0
    while not refused:
        rung += 1
        refused = send(processes[0], message(seq=rung))
    processes[1].doorbell.receive()
    assert rung > 500 and [seq for _, seq, _ in processes[1].received] == list(range(1, rung))
    assert send(processes[0], message(seq=rung)) == []
    processes[1].doorbell.receive()
    assert [seq for _, seq, _ in processes[1].received] == list(range(1, rung + 1))


def test_who_has_ended_is_lost_and_its_successor_is_notified_when_it_is_known(processes, tmp_path):
    links = processes[0].links
    assert send(processes[0], message()) == []
    processes[1].doorbell.close()
    assert send(processes[0], message()) == [], "nobody reads it, and no other way would change that"
    processes[1].links.close(lambda process: 0)
    processes[1] = FakeProcess(tmp_path, 1)
    assert send(processes[0], message()) == [], "the pipe of the process before"
    links.watch()
    assert links.lose_broken(time.monotonic() + 1) == [1] and not links.holds(1)
    links.lost.discard(1)
    assert send(processes[0], message(seq=5)) == []
    processes[1].doorbell.receive()
    assert [seq for _, seq, _ in processes[1].received] == [5]


def test_a_forked_worker_does_not_hide_that_its_parent_has_ended(processes):
    """As a worker of a DataLoader did, which had the pipe open."""
    links = processes[0].links
    assert send(processes[0], message()) == []
    is_forked, hold = os.pipe(), os.pipe()
    worker = os.fork()
    if worker == 0:
        os.write(is_forked[1], b"x")
        os.read(hold[0], 1)
        os._exit(0)
    try:
        assert os.read(is_forked[0], 1) == b"x"
        processes[1].doorbell.close()
        links.watch()
        assert links.lose_broken(time.monotonic() + 1) == [1]
    finally:
        os.write(hold[1], b"x")
        os.waitpid(worker, 0)
        processes[1].doorbell = FakeProcess(Path(processes[0].place.directory), 1).doorbell
        for fd in (*is_forked, *hold):
            os.close(fd)


@pytest.mark.parametrize("address", ["tcp", "ipc"])
def test_a_forked_worker_does_not_keep_connections_of_its_parent(address, tmp_path):
    context, path = zmq.Context(), f"{tmp_path}/0"
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1") if address == "tcp" else 0
    endpoint = f"tcp://127.0.0.1:{port}" if port else f"ipc://{path}"
    if not port:
        router.bind(endpoint)
    client = socket.socket(socket.AF_INET if port else socket.AF_UNIX)
    client.settimeout(20)
    client.connect(("127.0.0.1", port) if port else path)
    assert client.recv(1), "the greeting of ZeroMQ: libzmq has accepted"
    close_connections_in_children(endpoint)
    hold, is_forked = os.pipe(), os.pipe()
    if (worker := os.fork()) == 0:
        os.write(is_forked[1], b"x")
        os.read(hold[0], 1)
        os._exit(0)
    try:
        os.read(is_forked[0], 1)
        router.close(0)
        context.term()
        while client.recv(1024):
            pass
    finally:
        os.write(hold[1], b"x")
        os.waitpid(worker, 0)
        client.close()
        for fd in (*hold, *is_forked):
            os.close(fd)


def test_processes_of_other_machines_get_no_doorbell(tmp_path):
    process = FakeProcess(tmp_path, 0, machines=(0, 1))
    assert send(process, message()) == [message()]
    process.doorbell.close()
    process.links.close(lambda process: 0)


@given(st.lists(st.binary(max_size=3 * wire.HEADER_BYTES), max_size=5))
def test_junk_is_counted_and_the_next_record_is_received(tmp_path_factory, junk):
    process = FakeProcess(tmp_path_factory.mktemp("junk"), 1)

    def take(head, body):
        try:
            FakeProcess.take(process, head, body)
        except wire.WireError as error:
            process.refused[error.reason] += 1

    process.doorbell._take = take
    pipe = os.open(pipe_path(process.place, 1, True), os.O_WRONLY | os.O_NONBLOCK)
    for content in junk:
        os.write(pipe, content)
        process.doorbell.receive()
        os.write(pipe, b"".join(message(seq=9)[1:]))
        process.doorbell.receive()
    os.close(pipe)
    process.doorbell.close()
    process.links.close(lambda process: 0)
    assert process.received == [(Kind.NOTICE, 9, wire.REFERENCE.pack(72))] * len(junk)
    assert bool(process.refused) == any(junk)


def mailbox_of(process):
    """A mailbox that waits at the bell, and is delivered to by what is rung."""
    transport = PeerTransport()
    transport.attend = process.doorbell.attend
    box = Peers(1, transport, alone=True).mailbox

    def take(head, body):
        if Header.unpack(head).kind == Kind.NOTICE:
            box.deliver(0, (0, 0, 0), SimpleNamespace())

    process.doorbell._take = take
    return box


def test_who_waits_reads_the_doorbell_itself(processes):
    handle = mailbox_of(processes[1]).open((0, 0, 0), 1, [], [0], 10.0)
    assert not handle.finish_within(0.05)
    threading.Timer(0.1, lambda: send(processes[0], message())).start()
    began = time.monotonic()
    assert handle.finish_within(10.0)
    assert time.monotonic() - began < 5


def test_who_waits_is_woken_by_what_comes_another_way(processes):
    box = mailbox_of(processes[1])
    handle = box.open((0, 0, 0), 1, [], [0], 10.0)
    threading.Timer(0.1, lambda: box.deliver(0, (0, 0, 0), SimpleNamespace())).start()
    began = time.monotonic()
    assert handle.finish_within(10.0)
    assert time.monotonic() - began < 5


def test_who_is_woken_wakes_although_another_thread_empties_the_pipe(processes):
    """The thread of the sockets does so before every message; a round then lasted until the node asked."""
    began = time.monotonic()

    def receive_twice(handle):
        time.sleep(0.001)
        send(processes[0], message())
        while not handle.done:
            processes[1].doorbell.receive()
        processes[1].doorbell.receive()

    for _ in range(100):
        handle = mailbox_of(processes[1]).open((0, 0, 0), 1, [], [0], 10.0)
        hearing = threading.Thread(target=receive_twice, args=(handle,))
        hearing.start()
        assert handle.finish_within(10.0)
        hearing.join()
    assert time.monotonic() - began < 30


def test_of_two_that_wait_both_are_woken(processes):
    box = mailbox_of(processes[1])
    handle = box.open((0, 0, 0), 1, [], [0], 10.0)
    ends = []
    waiting = [threading.Thread(target=lambda: ends.append(handle.finish_within(10.0))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    time.sleep(0.1)
    send(processes[0], message())
    for thread in waiting:
        thread.join(5.0)
    assert ends == [True, True, True]


def test_where_no_pipe_can_be_made_one_line_says_so(tmp_path):
    with pytest.raises(
        StartError, match=r"^no named pipe can be made: .* \(communication.local=ipc needs none\)$"
    ):
        FakeProcess(tmp_path / "nowhere", 0)
