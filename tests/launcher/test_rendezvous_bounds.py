"""What a launcher takes in from a stranger on plain links."""

import socket

import pytest

from decentnode.launcher.cluster import channel
from decentnode.launcher.cluster.channel import LauncherChannel
from decentnode.mapping.base import tcp_endpoint
from tests.support.processes import free_ports

MOST_BYTES = 1 << 16
JOIN = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


@pytest.fixture
def port():
    return free_ports(1)


@pytest.fixture
def host(port, monkeypatch):
    monkeypatch.setattr(channel, "MOST_BYTES", MOST_BYTES)
    link = LauncherChannel(lambda machine: "", tcp_endpoint("127.0.0.1", port), 0, None)
    yield link
    link.close()


@pytest.fixture
def stranger(host, port):
    """A connection past ZeroMQ's handshake."""
    with socket.create_connection(("127.0.0.1", port), 5.0) as connection:
        connection.sendall(JOIN + READY)
        answered = b""
        while not answered.endswith(b"Identity\0\0\0\0"):
            answered += connection.recv(1)
        yield connection


def test_a_message_that_is_too_large_ends_its_connection(host, stranger):
    stranger.sendall(b"\x02" + (MOST_BYTES + 1).to_bytes(8, "big") + bytes(100))
    assert stranger.recv(1) == b""
    assert not host.wait(0.1)


def test_a_message_of_one_frame_is_counted_and_dropped(host, stranger):
    stranger.sendall(b"\x00\x01x")
    assert host.wait(5.0)
    assert host.receive() is None
    assert host.refused == {"frame count": 1}
