"""Launchers over a link that takes seconds for a vector: what they say beside it waits for nothing."""

import socket
import threading
import time

import pytest

from decentnode.launcher.cluster.vector_sender import VectorSender
from decentnode.launcher.state.messages import MeanVector, PartialSum, RelayedReports
from decentnode.mapping.base import tcp_endpoint
from tests.launcher.test_rendezvous import guarded, receive

BYTES_PER_SECOND = 2_000_000
PIECE = 1 << 14
VECTOR = bytes(1_500_000)


class SlowLink:
    """Carries TCP connections to a port, all of them together at so many bytes per second each way."""

    def __init__(self, address, port):
        self._target = address, port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._ends = []
        self._turns = threading.Lock(), threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                source = self._server.accept()[0]
            except OSError:
                return
            try:
                ends = source, socket.create_connection(self._target)
            except OSError:
                # Nobody receives there yet, so it connects again.
                source.close()
                continue
            self._ends += ends
            for turn, (source, target) in zip(self._turns, (ends, ends[::-1]), strict=True):
                threading.Thread(target=self._forward, args=(source, target, turn), daemon=True).start()

    def _forward(self, source, target, turn):
        try:
            while piece := source.recv(PIECE):
                with turn:
                    time.sleep(len(piece) / BYTES_PER_SECOND)
                target.sendall(piece)
        except OSError:
            return

    def close(self):
        for sock in (self._server, *self._ends):
            sock.close()


@pytest.fixture
def pair():
    """Machines 0 and 1 after the start; they reach each other over the link."""
    with guarded(2) as launchers:
        port = launchers.mapping.rendezvous_port
        links = [SlowLink(address, port) for address in ("127.0.0.1", "127.0.0.2")]
        ends = [tcp_endpoint("127.0.0.1", link.port) for link in links]
        host, guest = launchers.start(0, endpoint=ends[1]), launchers.start(1, endpoint=ends[0])
        host.result(20.0), guest.result(20.0)
        yield launchers.hear_all()
        for link in links:
            link.close()


def test_a_machine_that_sends_a_vector_is_not_silent_meanwhile(pair):
    senders = [VectorSender(machine, len(VECTOR), pair[machine].send) for machine in range(2)]
    for giver, vector in ((1, PartialSum(1, 0, 1, VECTOR)), (0, MeanVector(0, VECTOR))):
        senders[giver].contributions.put(vector)
        heard, limit, taker, alive = [], time.monotonic() + 30.0, 1 - giver, RelayedReports(giver, [])
        while vector not in heard and time.monotonic() < limit:
            senders[giver].exchange(receive(pair[giver], 0.05), [taker])
            pair[giver].send(alive, taker)
            heard += senders[taker].exchange(receive(pair[taker], 0.05), [giver])
        notes = [note for note in heard if note in (alive, vector)]
        assert notes.count(vector) == 1 and notes[:3] == [alive] * 3
