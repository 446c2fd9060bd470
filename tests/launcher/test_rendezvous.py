"""Launchers that meet with keys: a machine is who its key says, and strangers are not heard."""

import contextlib
import time
from dataclasses import replace

import msgspec
import pytest
import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from decentnode.communication.launcher_link.reports import Stopped
from decentnode.communication.security.curve import KeyPair
from decentnode.core.polling import ready
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, StartError
from decentnode.launcher.cluster.agreement import StartConditions
from decentnode.launcher.cluster.channel import Arrival
from decentnode.launcher.cluster.rendezvous import Rendezvous
from decentnode.launcher.state.messages import RelayedReports
from tests.support.launchers import LauncherThreads, join_of
from tests.support.processes import credentials


def guarded(count):
    """Returns launchers of as many machines with keys, each of which has one node."""
    return LauncherThreads(count, nodes=1, keys=credentials(count))


def start_all(launchers, keys):
    """Starts machines with these keys, each of which has something to say of its node."""
    return [
        launchers.start(machine, keys=own_keys, handshakes={machine: bytes([machine])})
        for machine, own_keys in enumerate(keys)
    ]


def refused(rendezvous):
    return rendezvous._channel.refused


def receive(rendezvous, seconds=0.5):
    notes, limit = [], time.monotonic() + seconds
    while time.monotonic() < limit:
        notes += rendezvous.receive(timeout=0.05)
    return notes


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch):
    monkeypatch.setattr(Timeouts, "refusal", 0.2)


def test_machines_with_keys_meet():
    with guarded(3) as launchers:
        futures = start_all(launchers, launchers.keys)
        assert len({future.result(10.0).run_id for future in futures}) == 1
        handshakes = {rank: bytes([rank]) for rank in range(3)}
        assert [future.result().handshakes for future in futures] == [handshakes] * 3


def signed(launchers):
    """The keys of all machines with those for signatures, as they come from files."""
    secrets = [Ed25519PrivateKey.generate() for _ in launchers.keys]
    signers = tuple(secret.public_key().public_bytes_raw() for secret in secrets)
    return [
        replace(keys, signing=secret.private_bytes_raw(), signers=signers)
        for keys, secret in zip(launchers.keys, secrets, strict=True)
    ]


def test_what_nodes_say_of_themselves_is_signed_by_their_machines():
    with guarded(3) as launchers:
        futures = start_all(launchers, signed(launchers))
        assert len({future.result(10.0).run_id for future in futures}) == 1
        handshakes = {rank: bytes([rank]) for rank in range(3)}
        assert [future.result().handshakes for future in futures] == [handshakes] * 3


def join_an_impostor(launchers, monkeypatch, lie):
    """All machines come, with signatures; machine 0 changes what they agreed on, and looks away itself."""
    agree, honest = Rendezvous._agree, StartConditions.unsigned
    monkeypatch.setattr(Rendezvous, "_agree", lambda self, absent: lie(agree(self, absent)))
    monkeypatch.setattr(
        StartConditions, "unsigned", lambda self, start: honest(self, start) if self.join.machine else ""
    )
    return start_all(launchers, signed(launchers))


@pytest.mark.parametrize("lie", [{2: b"another key"}, {}], ids=["changed", "left out"])
def test_machine_0_cannot_change_what_it_passes_on(monkeypatch, lie):
    def change(start):
        handshakes = {rank: content for rank, content in start.handshakes.items() if rank != 2} | lie
        return msgspec.structs.replace(start, run_id=7, handshakes=handshakes)

    with guarded(3) as launchers:
        futures = join_an_impostor(launchers, monkeypatch, change)
        assert futures[0].result(10.0).run_id == 7
        for future in futures[1:]:
            with pytest.raises(StartError, match=r"^machine 2 .* has not signed the handshakes of its nodes"):
                future.result(10.0)


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"handshakes": {-1: b"another key"}}, "words of nodes that are not here"),
        ({"handshakes": {3: b"another key"}}, "words of nodes that are not here"),
        ({"handshakes": {0: b"another key"}, "late": 1}, "words of nodes that are not here"),
        ({"absent": [2]}, "words of nodes that are not here"),
        ({"handshakes": {}, "absent": [2]}, r"would start without machine 2 .* \(key failures.start\)"),
        ({"handshakes": {}, "absent": [9, 1]}, r"would start without machine 1 .* \(key failures.start\)"),
    ],
)
def test_machine_0_cannot_put_words_beside_those_that_are_signed(monkeypatch, lie, reason):
    """Regression: a rank of -1 overwrote the keys of the last node."""

    def change(start):
        false = dict(lie)
        if false.get("handshakes") and not false.get("late"):
            false["handshakes"] = start.handshakes | false["handshakes"]
        return msgspec.structs.replace(start, **false)

    with guarded(3) as launchers:
        futures = join_an_impostor(launchers, monkeypatch, change)
        futures[0].result(10.0)
        with pytest.raises(StartError, match=f"^machine 0 .*{reason}$"):
            futures[1].result(10.0)


@pytest.mark.slow
def test_nobody_reports_for_another_machine():
    with guarded(3) as launchers:
        host, first = launchers.start(0, deadline=1.5), launchers.start(1, deadline=9.0)
        liar = launchers.channel(1)
        for note in (join_of(2), RelayedReports(2, []), RelayedReports(0, [])):
            liar.send(msgspec.msgpack.encode(note), 0)
        for future in (host, first):
            with pytest.raises(StartError, match=r"timed out after 2 s waiting for machine 2"):
                future.result(15.0)
        assert refused(launchers.rendezvous_of[0])["identity"] == 3
        liar.close()


def test_a_stranger_is_ignored():
    with guarded(2) as launchers:
        launchers.meet()
        plain = zmq.Context()
        dealer = plain.socket(zmq.DEALER)
        dealer.connect(launchers.endpoint)
        unknown = launchers.channel(1, replace(launchers.keys[1], own_keys=KeyPair.make()))
        content = msgspec.msgpack.encode(RelayedReports(1, []))
        # Its connection may be refused already, and a send then waits for another one.
        with contextlib.suppress(zmq.Again):
            dealer.send(content, zmq.NOBLOCK)
        unknown.send(content, 0)
        assert receive(launchers.rendezvous_of[0]) == []
        counted = refused(launchers.rendezvous_of[0])
        assert counted["unknown key"] == 1 and counted["handshake"] >= 1
        assert not unknown.wait(0.1) and unknown.is_refused
        dealer.close(0)
        plain.term()
        unknown.close()


def test_who_sends_without_a_pause_does_not_hold_the_launcher_up(monkeypatch):
    with guarded(2) as launchers:
        host, _ = launchers.meet()
        content = msgspec.msgpack.encode(RelayedReports(1, []))
        endless = Arrival(content, 1, host._launchers[1], host._channel.start)
        monkeypatch.setattr(host._channel, "wait", lambda timeout: True)
        monkeypatch.setattr(host._channel, "receive", lambda: endless)
        assert 100 < len(host.receive()) <= 4 * 256 + 4


def test_a_message_wakes_who_waits_for_the_descriptors():
    with guarded(2) as launchers:
        host, guest = launchers.meet()
        for number in range(3):
            while host.has_messages:
                host.receive()
            guest.send(RelayedReports(1, [Stopped(2, number)]), 0)
            limit = time.monotonic() + 10.0
            while not host.has_messages:
                assert ready(host.descriptors, seconds=limit - time.monotonic())
            assert [note.reports for note in host.receive()] == [[Stopped(2, number)]]


@pytest.mark.parametrize(("reason", "is_asked"), [("handshake", True), ("frame count", False)])
def test_a_host_that_refused_keys_asks_for_them_at_its_deadline(monkeypatch, reason, is_asked):
    monkeypatch.setattr(Timeouts, "refusal", 0.1)
    with guarded(2) as launchers:
        host = launchers.start(0, deadline=1.0)
        limit = time.monotonic() + 5.0
        while launchers.rendezvous_of[0]._channel is None:
            assert time.monotonic() < limit
            time.sleep(0.01)
        launchers.rendezvous_of[0].refused[reason] += 20
        with pytest.raises(StartError, match=f"that were refused: {reason} 20") as caught:
            host.result(30.0)
        assert ("(other keys on one side?)" in str(caught.value)) == is_asked


@pytest.mark.slow
def test_who_is_not_on_the_list_learns_it_before_the_deadline():
    with guarded(2) as launchers:
        host = launchers.start(0, deadline=1.0)
        began = time.monotonic()
        stranger = launchers.start(1, 60.0, keys=replace(launchers.keys[1], own_keys=KeyPair.make()))
        with pytest.raises(BadInput, match="machine 0 has other keys than this machine"):
            stranger.result(30.0)
        assert time.monotonic() - began < 30.0
        line = r"connections that were refused: unknown key \d+ \(other keys on one side\?\)"
        with pytest.raises(StartError, match=line):
            host.result(30.0)
