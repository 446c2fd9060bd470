"""Launchers over a link that takes seconds for a vector: what they say beside it waits for nothing."""

import socket
import threading
import time

import pytest

from decentnode.launcher.cluster.messages import MeanVector, PartialSum, RelayedReports, has_vector
from decentnode.mapping.base import tcp_endpoint
from tests.launcher.test_rendezvous import Meeting, receive

BYTES_PER_SECOND = 2_000_000
PIECE = 1 << 14
VECTOR = bytes(1_500_000)


class SlowLink:
    """Carries TCP connections to a port, all of them together at so many bytes per second each way."""

    def __init__(self, port):
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._ends = []
        self._turns = threading.Lock(), threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                ends = self._server.accept()[0], socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._ends += ends
            for turn, (source, target) in zip(self._turns, (ends, ends[::-1]), strict=True):
                threading.Thread(target=self._carry, args=(source, target, turn), daemon=True).start()

    def _carry(self, source, target, turn):
        try:
            while piece := source.recv(PIECE):
                with turn:
                    time.sleep(len(piece) / BYTES_PER_SECOND)
                target.sendall(piece)
        except OSError:
            return

    def close(self):
        for one in (self._server, *self._ends):
            one.close()


@pytest.fixture
def pair():
    """Machines 0 and 1 after the start, that meet over the link."""
    with Meeting(2) as meeting:
        link = SlowLink(meeting.mapping.rendezvous_port)
        host, guest = meeting.come(0), meeting.come(1, endpoint=tcp_endpoint("127.0.0.1", link.port))
        host.result(20.0), guest.result(20.0)
        yield meeting.assemblies[0], meeting.assemblies[1]
        link.close()


def heard(assembly, until=has_vector):
    """The notes that come up to the first such one, in their order."""
    notes, limit = [], time.monotonic() + 30.0
    while not any(map(until, notes)) and time.monotonic() < limit:
        notes += receive(assembly, 0.1)
    return notes


def test_who_sends_a_vector_is_heard_meanwhile(pair):
    host, guest = pair
    vector, alive = PartialSum(1, 0, 1, VECTOR), RelayedReports(1, [])
    guest.send(vector)
    guest.send(alive)
    assert heard(host) == [alive, vector]
    mean, alive = MeanVector(0, VECTOR), RelayedReports(0, [])
    host.send(mean, 1)
    host.send(alive, 1)
    assert heard(guest) == [alive, mean]
