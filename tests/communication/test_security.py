"""Strangers, and machines that claim to be others, against a guarded link: nothing of theirs gets through."""

import asyncio
import os
import socket
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
import torch
import zmq

from decentnode.communication import wire
from decentnode.communication.base import BufferSpec
from decentnode.communication.security import curve as security
from decentnode.communication.security.curve import (
    KeyPair,
    ZapAuthenticator,
    prove_guard,
    sender_of,
)
from decentnode.core.payload import Payload, dense_layout
from decentnode.core.polling import ready
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError
from tests.support.processes import RUN_ID, RunningNode, TransportCase, credentials, run_nodes

LAYOUT = dense_layout(1000)
MEMORY = BufferSpec(1000, payload_bytes=4096)
KEYS = TransportCase("three machines with keys", "ipc", 1, 3, guarded=True)
PLAIN = TransportCase("three machines without", "ipc", 1, 3)
LAST = (9, 0, 0)
"""The exchange that forged payloads are for."""


def forged(sender, run_id=RUN_ID):
    """A payload as `sender` would send it to rank 0, true in every field but its values."""
    body = bytes(Payload.dense(torch.full((1000,), 666.0)).buffer.numpy().data)
    header = wire.Header(wire.Kind.PAYLOAD, run_id, sender, 0, *LAST, layout=LAYOUT.hash, seq=99)
    return [header._replace(length=len(body), body_digest=wire.digest(body)).pack(), body]


def knock(endpoint, guard, *messages, seconds=0.3):
    """Tries to deliver messages over a new connection."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    guard(dealer)
    dealer.connect(endpoint)
    for frames in messages:
        dealer.send_multipart(frames)
    time.sleep(seconds)
    dealer.close(0)
    context.term()


def raw(endpoint, content):
    """Writes bytes to the port as they are."""
    address, port = endpoint.removeprefix("tcp://").split(":")
    with socket.create_connection((address, int(port)), 5.0) as connection:
        connection.sendall(content)
        connection.settimeout(0.2)
        try:
            while connection.recv(4096):
                pass
        except OSError:
            pass


class Tap:
    """Passes one connection on, and keeps what the client sent."""

    def __init__(self, endpoint):
        address, port = endpoint.removeprefix("tcp://").split(":")
        self.heard = b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self._onward = socket.create_connection((address, int(port)), 5.0)
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self):
        client, _ = self._server.accept()
        ends = {client: self._onward, self._onward: client}
        with client, self._onward, self._server:
            while True:
                readable = ready(end.fileno() for end in ends)
                for end in [end for end in ends if end.fileno() in readable]:
                    content = end.recv(1 << 16)
                    if not content:
                        return
                    self.heard += content if end is client else b""
                    ends[end].sendall(content)

    def transcript(self):
        self._thread.join(5.0)
        return self.heard


def attack(endpoint, own):
    """All that somebody beside machine 1 can try; `own` are its credentials."""
    unknown = replace(own, own_keys=KeyPair.make())
    misled = replace(own, public=(KeyPair.make().public,))
    knock(endpoint, lambda dealer: None, forged(1))
    knock(endpoint, lambda dealer: unknown.guard_client(dealer, 0), forged(1))
    knock(endpoint, lambda dealer: misled.guard_client(dealer, 0), forged(1))
    knock(endpoint, lambda dealer: own.guard_client(dealer, 0), forged(2), forged(1, RUN_ID + 1))
    raw(endpoint, b"GET / HTTP/1.1\r\n\r\n")
    raw(endpoint, os.urandom(1000))
    tap = Tap(endpoint)
    knock(tap.endpoint, lambda dealer: own.guard_client(dealer, 0), forged(2))
    raw(endpoint, tap.transcript())


COUNTED = Counter({"unknown key": 1, "identity": 2, "run id": 1, "handshake": 3, "no handshake": 2})
"""A client that failed in the handshake comes again, so there may be more of those."""


async def attacked(node: RunningNode):
    """Machine 1 attacks rank 0 between two exchanges; what rank 0 gets in the last one, and has refused."""
    rank, sockets = node.rank, node.communication.sockets
    others = [other for other in range(3) if other != rank]

    async def swap(key):
        payload = Payload.dense(torch.full((1000,), float(rank)))
        inbox = await node.exchange(dict.fromkeys(others, payload), others, key, LAYOUT)
        return {j: inbox[j]["vector"].unique().tolist() for j in inbox}

    await swap((0, 0, 0))
    if rank == 1:
        endpoint = node.communication.tcp_endpoint(sockets.directory, 0)
        act = attack if sockets.directory.credentials else attack_plain
        await asyncio.to_thread(act, endpoint, sockets.directory.credentials)
    elif rank == 0 and sockets.directory.credentials:
        limit = time.monotonic() + 8.0
        while not node.refused >= COUNTED and time.monotonic() < limit:
            await asyncio.sleep(0.02)
    # Nobody comes to the last exchange before the attack is over.
    await swap((8, 0, 0))
    return await swap(LAST), node.refused


def attack_plain(endpoint, _):
    knock(endpoint, lambda dealer: None, forged(2))


def test_nothing_of_a_stranger_gets_through_and_each_is_counted_by_its_reason(monkeypatch):
    monkeypatch.setattr(Timeouts, "key_handshake", 0.5)
    monkeypatch.setattr(Timeouts, "silent_connection", 1.0)
    results = run_nodes(KEYS, 3, attacked, MEMORY, tick=0.05).results
    for rank in range(3):
        assert results[rank][0] == {other: [float(other)] for other in range(3) if other != rank}
    refused = results[0][1]
    assert refused >= COUNTED, refused
    assert refused.keys() == COUNTED.keys()
    assert [refused[reason] for reason in ("unknown key", "identity", "run id")] == [1, 2, 1]


def test_a_plain_link_believes_what_a_guarded_one_refuses():
    """So the test before it would see a forged payload."""
    results = run_nodes(PLAIN, 3, attacked, MEMORY, tick=0.05).results
    assert results[0][0] == {1: [1.0], 2: [666.0]}


class TestAuthenticator:
    def deliver(self, server, client, machine=0, most=1000, seconds=5.0):
        """What comes out of a guarded socket with keys `server` when `client` sends; and who was refused."""
        context, refused = zmq.Context(), []
        bound, connected = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        bound.set(zmq.MAXMSGSIZE, 1000)
        gate = ZapAuthenticator(bound, server, refused.append)
        bound.bind("tcp://127.0.0.1:*")
        client.guard_client(connected, machine)
        connected.connect(bound.get_string(zmq.LAST_ENDPOINT))
        connected.send_multipart([b"first", bytes(most)])
        limit, frames = time.monotonic() + seconds, []
        while not refused and not frames and time.monotonic() < limit:
            zmq.zmq_poll([(sock, zmq.POLLIN) for sock in (bound, gate.questions)], 100)
            gate.serve()
            if bound.get(zmq.EVENTS) & zmq.POLLIN:
                frames = bound.recv_multipart(copy=False)[1:]
        connected.close(0)
        gate.close()
        bound.close(0)
        context.term()
        return frames, refused

    def test_every_frame_tells_whose_key_it_came_with(self):
        keys = credentials(3)
        frames, refused = self.deliver(keys[0], keys[2])
        assert refused == []
        assert [(frame.bytes, sender_of(frame)) for frame in frames] == [(b"first", 2), (bytes(1000), 2)]

    def test_frames_are_limited_as_on_plain_links(self):
        """One of just the limit has come through in the test before."""
        keys = credentials(2)
        too_large = 1000 + security.ENVELOPE_BYTES
        assert self.deliver(keys[0], keys[1], most=too_large, seconds=0.5) == ([], [])

    def test_who_is_not_on_the_list_is_refused(self):
        keys = credentials(2)
        assert self.deliver(keys[0], replace(keys[1], own_keys=KeyPair.make())) == ([], ["unknown key"])

    def test_a_machine_that_was_taken_off_the_list_is_refused(self):
        keys = credentials(3)
        assert self.deliver(replace(keys[0], public=keys[0].public[:2]), keys[2]) == ([], ["unknown key"])

    def test_a_client_does_not_talk_to_a_server_with_another_key(self):
        keys = credentials(3)
        assert self.deliver(keys[0], keys[1], machine=2) == ([], ["handshake"])

    def test_without_a_authenticator_nobody_is_let_in(self):
        """libzmq would let everybody in."""
        keys, context = credentials(2), zmq.Context()
        bound, connected = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        keys[0].guard_server(bound)
        bound.bind("tcp://127.0.0.1:*")
        keys[1].guard_client(connected, 0)
        connected.connect(bound.get_string(zmq.LAST_ENDPOINT))
        connected.send(b"anybody here?")
        assert bound.poll(300) == 0
        context.destroy(0)

    def test_connections_of_which_nobody_takes_note_hold_nothing_up(self):
        """Events about them fill no queue that the thread of all links would have to wait for."""
        context, refused = zmq.Context(), []
        bound, plain, sender = (context.socket(kind) for kind in (zmq.ROUTER, zmq.PULL, zmq.PUSH))
        gate = ZapAuthenticator(bound, credentials(1)[0], refused.append)
        ports = [sock.bind_to_random_port("tcp://127.0.0.1") for sock in (bound, plain)]
        for _ in range(1500):
            with socket.create_connection(("127.0.0.1", ports[0]), 5.0) as stranger:
                stranger.sendall(b"\xff".ljust(9, b"\0") + b"\x7f\x03\0NULL".ljust(55, b"\0"))
                stranger.recv(64)
        sender.connect(f"tcp://127.0.0.1:{ports[1]}")
        sender.send(b"after them all")
        came = plain.poll(5000)
        gate.serve()
        gate.close()
        for opened in (bound, plain, sender):
            opened.close(0)
        context.term()
        assert came and len(refused) > 1000

    @pytest.mark.parametrize(
        "change",
        [(0, b"2.0"), (2, b"elsewhere"), (5, b"PLAIN"), (6, b"short")],
        ids=["version", "domain", "mechanism", "key"],
    )
    def test_questions_that_do_not_fit_are_answered_no(self, change):
        keys, context = credentials(1)[0], zmq.Context()
        bound, asked = context.socket(zmq.ROUTER), context.socket(zmq.REQ)
        gate = ZapAuthenticator(bound, keys, lambda reason: None)
        asked.connect("inproc://zeromq.zap.01")
        question = [b"1.0", b"7", b"decentnode", b"", b"", b"CURVE", zmq.utils.z85.decode(keys.public[0])]
        answers = []
        for place, value in ((0, b"1.0"), change):
            question[place] = value
            asked.send_multipart(question)
            gate.serve()
            answers.append(asked.recv_multipart()[2])
        asked.close(0)
        gate.close()
        bound.close(0)
        context.term()
        assert answers == [b"200", b"400"]


class TestSelfTest:
    def test_a_working_guard_passes(self):
        """It would raise StartError, as below."""
        assert prove_guard(credentials(2)[1], 2.0) is None

    def test_a_guard_that_lets_everybody_in_is_noticed(self, monkeypatch):
        admit = lambda self, question: [b"1.0", question[1], b"200", b"", b"0", b""]
        monkeypatch.setattr(ZapAuthenticator, "_answer", admit)
        with pytest.raises(StartError, match="stranger was not refused"):
            prove_guard(credentials(2)[0], seconds=0.3)

    def test_a_guard_that_lets_nobody_in_is_noticed(self, monkeypatch):
        refuse = lambda self, question: [b"1.0", question[1], b"400", b"", b"", b""]
        monkeypatch.setattr(ZapAuthenticator, "_answer", refuse)
        with pytest.raises(StartError, match="own key was not admitted"):
            prove_guard(credentials(2)[0], seconds=0.3)

    def test_a_guard_that_was_forgotten_is_noticed(self, monkeypatch):
        monkeypatch.setattr(security.Credentials, "guard_server", lambda self, socket: None)
        monkeypatch.setattr(security.Credentials, "guard_client", lambda self, socket, machine: None)
        with pytest.raises(StartError, match="stranger was not refused"):
            prove_guard(credentials(2)[0], seconds=0.3)
