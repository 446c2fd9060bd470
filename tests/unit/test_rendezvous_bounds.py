"""What a launcher takes in from a stranger on plain links: no message without an end, and none too large."""

import socket
import time
from contextlib import suppress

import pytest

from decentnode.launcher.cluster.channel import LauncherChannel
from decentnode.mapping.base import tcp_endpoint
from tests.contract.troupe import free_ports
from tests.unit.test_connections import GREETING, MOST_BYTES, PIECE, READY, stranger


@pytest.fixture
def host():
    found = LauncherChannel(tcp_endpoint("127.0.0.1", free_ports(1)), 0, None, MOST_BYTES)
    yield found
    found.close()


def test_a_message_without_an_end_is_cut(host):
    with stranger(host._socket) as connection:
        limit = time.monotonic() + 20.0
        while not host.refused["unfinished message"] and time.monotonic() < limit:
            connection.sendall(PIECE)
            host.wait(0.0)
            assert host.receive() is None
            host.look()
        assert host.refused["unfinished message"] == 1
        connection.settimeout(1.0)
        # No more is taken in, whether or not libzmq has closed the connection by now.
        with pytest.raises(OSError, match=r"Broken pipe|Connection reset|timed out"):
            for _ in range(1000):
                connection.sendall(PIECE)


def test_machine_0_is_cut_when_its_message_has_no_end():
    """As the others see it, who are connected to it."""
    port = free_ports(1)
    with socket.create_server(("127.0.0.1", port)) as server:
        guest = LauncherChannel(tcp_endpoint("127.0.0.1", port), 1, None, MOST_BYTES)
        connection, _ = server.accept()
        connection.sendall(GREETING + READY.replace(b"DEALER", b"ROUTER"))
        answered = b""
        while b"Identity\0\0\0\x10" not in answered[:-16]:
            answered += connection.recv(1)
        limit = time.monotonic() + 20.0
        try:
            while not guest.refused["unfinished message"] and time.monotonic() < limit:
                with suppress(OSError):  # once it is cut
                    connection.sendall(PIECE)
                guest.wait(0.0)
                assert guest.receive() is None
                guest.look()
            assert guest.refused["unfinished message"] == 1
        finally:
            connection.close()
            guest.close()


def test_a_message_that_is_too_large_ends_its_connection(host):
    with stranger(host._socket) as connection:
        connection.sendall(b"\x02" + (MOST_BYTES + 1).to_bytes(8, "big") + bytes(100))
        assert connection.recv(1) == b""
    assert not host.wait(0.1)
