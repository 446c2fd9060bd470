"""What a launcher takes in from a stranger on plain links: no message without an end, and none too large."""

import socket
import time

import pytest
import zmq

from decentnode.mapping import tcp_endpoint
from decentnode.rendezvous import Rendezvous
from tests.contract.troupe import free_ports
from tests.unit.test_connections import GREETING, MOST_BYTES, PIECE, READY


@pytest.fixture
def host():
    found = Rendezvous(tcp_endpoint("127.0.0.1", free_ports(1)), 0, None, MOST_BYTES)
    yield found
    found.close()


def stranger(host):
    """A connection past ZeroMQ's handshake."""
    port = int(host._socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), 5.0)
    connection.sendall(GREETING + READY)
    answered = b""
    while not answered.endswith(b"Identity\0\0\0\0"):
        answered += connection.recv(1)
    return connection


def test_a_message_without_an_end_is_cut(host):
    with stranger(host) as connection:
        limit = time.monotonic() + 20.0
        while not host.refused["unfinished message"] and time.monotonic() < limit:
            connection.sendall(PIECE)
            host.wait(0.0)
            assert host.receive() is None
            host.look()
        assert host.refused["unfinished message"] == 1
        with pytest.raises(OSError, match=r"Broken pipe|Connection reset"):
            for _ in range(1000):
                connection.sendall(PIECE)


def test_a_message_that_is_too_large_ends_its_connection(host):
    with stranger(host) as connection:
        connection.sendall(b"\x02" + (MOST_BYTES + 1).to_bytes(8, "big") + bytes(100))
        assert connection.recv(1) == b""
    assert not host.wait(0.1)
