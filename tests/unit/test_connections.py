"""Connections that bring a message without an end are cut; all others are left alone."""

import contextlib
import socket
import time
from functools import partial

import pytest
import zmq

from decentnode.communication.zeromq.flood_guard import (
    LOOK_INTERVAL,
    MOST_OFFENSES,
    NOWHERE,
    REST,
    SLACK_BYTES,
    FloodGuard,
    connection_of,
)
from decentnode.core.polling import ready

MOST_BYTES = 1 << 16
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
PIECE = b"\x03" + MOST_BYTES.to_bytes(8, "big") + bytes(MOST_BYTES)
"""A frame after which more will follow, as ZMTP writes it."""


@pytest.fixture
def router():
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.set(zmq.LINGER, 0)
        router.set(zmq.MAXMSGSIZE, MOST_BYTES)
        router.set(zmq.IPV6, 1)
        yield router


@pytest.fixture
def watch(router):
    router.bind("tcp://127.0.0.1:*")
    connections = FloodGuard(MOST_BYTES, peers=1)
    connections.listen(router.get_string(zmq.LAST_ENDPOINT))
    return connections


def stranger(router, source="127.0.0.1"):
    """A connection past ZeroMQ's handshake."""
    port = int(router.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), 5.0, (source, 0))
    connection.sendall(GREETING + READY)
    answered = b""
    while not answered.endswith(b"Identity\0\0\0\0"):
        answered += connection.recv(1)
    return connection


def lives(router, connection):
    """Whether what it brings is taken in."""
    connection.sendall(b"\x00\x01x")
    return router.poll(5000) and len(router.recv_multipart()) == 2


def looked_until(watch, connection, piece, limit=20.0):
    """Connections that were cut while one sends without end."""
    end, cut = time.monotonic() + limit, 0
    while not cut and time.monotonic() < end:
        connection.sendall(piece)
        cut = len(watch.look())
    return cut


def test_a_message_without_end_is_cut_and_counted_once(router, watch):
    with stranger(router) as attacker:
        assert looked_until(watch, attacker, PIECE) == 1
        with pytest.raises(OSError, match=r"Broken pipe|Connection reset"):
            for _ in range(1000):
                attacker.sendall(PIECE)
        assert not watch.look()
    assert not router.poll(100)


def test_many_connections_together_hold_no_more_than_one_message_of_each_peer(router, watch):
    with contextlib.ExitStack() as stack:
        attackers = [stack.enter_context(stranger(router)) for _ in range(6)]
        assert not watch.look()
        limit, cut = MOST_BYTES + SLACK_BYTES, 0
        for sent, attacker in enumerate(attackers):
            for _ in range(int(0.9 * limit) // len(PIECE)):
                attacker.sendall(PIECE)
            deadline = time.monotonic() + 10.0
            while sum(total for _, _, total in watch._connected()) < (sent + 1 - cut) * 0.8 * limit:
                assert time.monotonic() < deadline
            cut += len(watch.look())
            assert cut == max(0, sent + 1 - 3), "three are within what one peer and two spare ones may hold"


def test_too_many_connections_are_cut_the_newest_first(router, watch, monkeypatch):
    monkeypatch.setattr(watch, "_most", 3)
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(stranger(router)) for _ in range(3)]
        assert not watch.look()
        for _ in range(2):
            stack.enter_context(stranger(router))
        assert len(watch.look()) == 2
        assert all(map(partial(lives, router), first))


def test_the_address_that_has_too_many_connections_loses_them_and_no_other(router, watch, monkeypatch):
    monkeypatch.setattr(watch, "_most", 4)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(stranger(router))
        honest = stack.enter_context(stranger(router, source="127.0.0.2"))
        assert len(watch.look()) == 1
        honest.sendall(b"\x00\x01x")
        assert router.poll(5000), "who came last and has one only is left alone"


def test_strangers_of_many_addresses_displace_nobody_who_has_brought_a_message(router, watch, monkeypatch):
    monkeypatch.setattr(watch, "_most", 3)
    with contextlib.ExitStack() as stack:
        honest = [stack.enter_context(stranger(router, source="127.0.0.2")) for _ in range(3)]
        for one in honest:
            one.sendall(b"\x00\x01x")
            assert router.poll(5000)
            watch.note(router.recv_multipart(copy=False)[-1])
        for host in range(11, 15):
            stack.enter_context(stranger(router, source=f"127.0.0.{host}"))
        assert watch.look() == ["too many connections"] * 4
        assert all(map(partial(lives, router), honest))


def test_of_single_connections_of_many_addresses_the_newest_are_cut(router, watch, monkeypatch):
    monkeypatch.setattr(watch, "_most", 2)
    with contextlib.ExitStack() as stack:
        there = [stack.enter_context(stranger(router, source=f"127.0.0.{host}")) for host in range(11, 16)]
        assert len(watch.look()) == 3
        assert all(map(partial(lives, router), there[:2]))


def test_a_connection_is_ended_unless_its_descriptor_is_another_ones(router, watch):
    with stranger(router) as one:
        one.sendall(b"\x00\x01x")
        assert router.poll(5000)
        fd = watch.note(router.recv_multipart(copy=False)[-1])
        connection = connection_of(fd)
        watch.end((fd, b"somebody else"))
        watch.end(NOWHERE)
        one.sendall(b"\x00\x01x")
        assert router.poll(5000), "it lives"
        watch.end(connection)
        assert one.recv(1) == b""


def test_many_whole_messages_are_no_reason(router, watch):
    whole = b"\x01\x04head" + b"\x02" + PIECE[1:]
    count = 2 * (MOST_BYTES + SLACK_BYTES) // len(whole)
    with stranger(router) as peer:
        for _ in range(count):
            peer.sendall(whole)
            assert router.poll(5000)
            frames = router.recv_multipart(copy=False)
            assert [len(frame) for frame in frames[1:]] == [4, MOST_BYTES]
            watch.note(frames[1])
            assert not watch.look()


def test_a_connection_is_known_by_its_peer(router, watch):
    with stranger(router) as peer:
        (found,) = watch._connected()
        _, address, brought = found
        assert int.from_bytes(address[2:4], "big") == peer.getsockname()[1]
        assert address[8:24] == bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1])
        assert brought == len(GREETING + READY)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "ipc://{}/socket"])
def test_who_does_not_keep_to_the_form_is_cut_at_the_third_time(router, tmp_path, endpoint):
    router.bind(endpoint.format(tmp_path))
    watch = FloodGuard(MOST_BYTES, peers=1)
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.set(zmq.LINGER, 0)
        monitor = peer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        peer.connect(router.get_string(zmq.LAST_ENDPOINT))
        for offense in range(MOST_OFFENSES):
            assert not monitor.poll(50), offense
            peer.send(b"alone")
            assert router.poll(5000)
            watch.blame(router.recv_multipart(copy=False)[-1])
        assert monitor.poll(5000)
        peer.disable_monitor()
        monitor.close(0)


def test_a_link_of_the_oldest_protocol_does_no_harm(router, watch):
    port = int(router.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 5.0) as peer:
        peer.sendall(b"\x01\x00" + b"\x06\x00hello")  # ZMTP 1: an empty identity, then a frame
        assert router.poll(5000)
        frame = router.recv_multipart(copy=False)[-1]
        assert frame.bytes == b"hello"
        watch.note(frame)
        for _ in range(MOST_OFFENSES):
            watch.blame(frame)
        assert not watch.look()


def test_connections_that_bring_next_to_nothing_are_hardly_looked_at(router):
    router.bind("tcp://127.0.0.1:*")
    connections = FloodGuard(MOST_BYTES, peers=1)
    connections.listen(router.get_string(zmq.LAST_ENDPOINT))
    accepted = connections.follow(router)
    asleep = []
    for says in (False, True):
        connections.look()
        connections.rest()
        asleep.append(connections.are_asleep and connections.next_look > time.monotonic() + REST / 2)
        if not says:
            connection = stranger(router)
            assert accepted.poll(5000)
        else:
            connection.sendall(PIECE)
            # What has woken it may have been read before it looks.
            assert any(
                connection.sendall(PIECE) or ready([connections.fileno()], seconds=0.02) for _ in range(500)
            )
        (connections.wake if says else connections.greet)()
        asleep.append(connections.are_asleep or connections.next_look > time.monotonic() + LOOK_INTERVAL)
    limit = time.monotonic() + 10
    while sum(total for *_, total in connections._connected()) <= 2 * MOST_BYTES and time.monotonic() < limit:
        ready([], seconds=0.01)  # until libzmq has read, the window of the connection may be full
    connections.look()
    connections.rest()
    assert asleep == [True, False, True, False]
    assert not connections.are_asleep, "it has brought more than control messages since"
    connections.look()
    connections.rest()
    assert connections.are_asleep
    connection.close()
    connections.close()
