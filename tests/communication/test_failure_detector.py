"""When a node that waits asks, says that it waits, and gives up; and that nothing else wakes anybody."""

from math import inf
from types import SimpleNamespace

import pytest

from decentnode.communication.exchange.handle import MARGIN, UsualWait
from decentnode.communication.peers.edges import EdgeProtocol
from decentnode.communication.peers.failure_detector import FailureDetector
from decentnode.communication.peers.peers import Peers, PeerTransport
from decentnode.communication.wire import Kind
from decentnode.core.clock import Clock
from decentnode.core.timeouts import Timeouts

DEADLINE = 80.0


class Waiter:
    """Node 0 of a process of its own, which waits for others in an exchange, in made-up time."""

    def __init__(self, monkeypatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(Clock, "now", lambda clock: self.now)
        self.sent = []
        self.box = Peers(0, PeerTransport()).mailbox
        peers = {0: self.box.peers}
        edges = EdgeProtocol(peers, self._send_control, lambda peer: True)
        self.detector = FailureDetector(peers, self._send_control, edges)

    def _send_control(self, kind, rank, peer, key, seq):
        self.sent.append((round(self.now - self.began, 3), kind, peer))

    def wait(self, round, sources=(1,), targets=(), timeout=DEADLINE):
        self.handle = self.box.open((round, 0, 0), round + 1, targets, sources, timeout)
        self.began = self.now
        self.due = self.now + self.handle.start_waiting()
        return self.due - self.now

    def pass_time(self, seconds, concerned=(1, 2)):
        """Looks whenever something is due, as the thread of the sockets does; returns how often."""
        end, checks = self.now + seconds, 0
        while self.due <= end:
            self.now = self.due
            self.due = self.detector.check(self.now, lambda rank: concerned)
            checks += 1
        self.now = end
        return checks

    def end(self):
        self.box.deliver(1, self.handle.key, SimpleNamespace())


@pytest.fixture
def waiter(monkeypatch):
    return Waiter(monkeypatch)


def test_pauses_double_up_to_an_eighth_of_the_deadline_and_others_hear_of_a_long_wait(waiter):
    waiter.wait(0)
    checks = waiter.pass_time(60.0)
    asked = [at for at, kind, peer in waiter.sent if (kind, peer) == (Kind.RESEND, 1)]
    assert asked == pytest.approx([0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 22.7, 32.7, 42.7, 52.7])
    assert [at for at, kind, peer in waiter.sent if kind == Kind.WAITING and peer == 2] == asked[3:]
    assert checks == len(asked)


def test_a_silent_peer_is_dropped_at_its_deadline_and_nothing_is_due_after_that(waiter):
    waiter.wait(0, targets=[2])
    waiter.wait(1, timeout=8.0)
    waiter.pass_time(7.9)
    assert waiter.box.peers.lost() == []
    waiter.pass_time(0.2)
    assert set(waiter.box.peers.lost()) == {1, 2}
    assert waiter.due == inf


def test_a_peer_that_is_only_behind_is_asked_later_in_the_next_exchange(waiter):
    waiter.wait(0)
    waiter.pass_time(1.0)
    waiter.box.peers.note_progress(1, (-1, 0, 0))
    waiter.pass_time(6.0)
    waiter.end()
    assert waiter.wait(1) == pytest.approx(7.0 * MARGIN)
    assert waiter.pass_time(6.9 * MARGIN) == 0
    waiter.end()
    pauses = [waiter.wait(2), *(waiter.end() or waiter.wait(round) for round in range(3, 30))]
    assert pauses[0] == pytest.approx(7.0 * MARGIN)
    assert pauses[-1] == pytest.approx(Timeouts.first_request)


def test_a_wait_for_what_was_lost_teaches_nothing(waiter):
    waiter.wait(0)
    waiter.pass_time(5.0)
    waiter.end()
    assert waiter.wait(1) == pytest.approx(Timeouts.first_request)


def test_what_is_requested_and_comes_twice_was_only_slow(waiter):
    waiter.wait(0)
    waiter.pass_time(5.0)
    waiter.end()
    waiter.end()
    assert waiter.box.refused == {}
    assert waiter.wait(1) == pytest.approx(5.0 * MARGIN)


def test_the_first_pause_leaves_room_for_signs_of_life(waiter):
    waiter.box.usual = UsualWait()
    waiter.box.usual.was_needless = True
    waiter.box.usual.learn(1000.0)
    assert waiter.wait(0) == DEADLINE / 4


def test_who_stood_still_accuses_nobody_of_that_time(waiter):
    waiter.wait(0)
    waiter.due += 2 * DEADLINE
    waiter.pass_time(2.1 * DEADLINE)
    assert waiter.box.peers.lost() == []
    waiter.pass_time(DEADLINE)
    assert waiter.box.peers.lost() == [1]


def test_an_exchange_that_nobody_waits_for_wakes_nobody(waiter):
    waiter.wait(0)
    assert not waiter.handle.finish_within(0.0)
    assert waiter.detector.check(waiter.now + 1000.0, (1, 2)) == inf
    assert waiter.sent == []
