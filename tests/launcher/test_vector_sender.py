"""Of vectors that travel between machines in pieces: one at a time to each, and none to absent ones."""

import time

import pytest

from decentnode.communication.wire import digest
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.cluster import vector_sender
from decentnode.launcher.cluster.vector_sender import VectorSender
from decentnode.launcher.state.messages import (
    Join,
    MeanVector,
    PartialDistance,
    PartialSum,
    VectorAck,
    VectorPiece,
)

ALL = [1, 2]
CONTENT = b"models"
FIRST, SECOND = CONTENT[:4], CONTENT[4:]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(vector_sender, "PIECE_BYTES", len(FIRST))


def mean(round):
    return MeanVector(round, CONTENT)


def first(round, machine=0, count=0):
    return VectorPiece(machine, round, count, 0, FIRST)


def second(round, machine=0, count=0):
    return VectorPiece(machine, round, count, len(FIRST), SECOND)


def arrived(machine, round, content):
    return VectorAck(machine, round, digest(content))


def whole(machine, round):
    """The acknowledgements of both pieces."""
    return arrived(machine, round, FIRST), arrived(machine, round, SECOND)


class SenderUnderTest:
    """A vector sender, what it has sent, and what it has passed on."""

    def __init__(self, machine=0):
        self.sent, self.unreachable, self.passed = [], set(), []
        self.vector_sender = VectorSender(machine, len(CONTENT), self._send)

    def _send(self, note, to):
        self.sent.append((note, to))
        return 0 if to in self.unreachable else 1

    def exchange(self, *notes, put=(), listening=ALL):
        """What is sent when these notes have come, and those are to be sent."""
        for contribution in put:
            self.vector_sender.contributions.put(contribution)
        self.sent.clear()
        self.passed = self.vector_sender.exchange(notes, listening)
        return list(self.sent)


@pytest.fixture
def sender():
    return SenderUnderTest()


def test_a_piece_is_sent_when_the_last_one_has_arrived(sender):
    assert sender.exchange(put=[mean(0)], listening=[1]) == [(first(0), 1)]
    assert sender.exchange(listening=[1]) == []
    assert sender.exchange(arrived(1, 0, FIRST), listening=[1]) == [(second(0), 1)]
    assert sender.passed == []
    assert sender.exchange(arrived(1, 0, SECOND), listening=[1]) == []
    assert sender.passed == [arrived(1, 0, SECOND)], "now the vector is there"


def test_pieces_become_a_vector_again():
    host, guest = SenderUnderTest(), SenderUnderTest(machine=1)
    assert host.exchange(first(5, 2, 3)) == [(arrived(0, 5, FIRST), 2)]
    assert host.passed == []
    assert host.exchange(second(5, 2, 3)) == [(arrived(0, 5, SECOND), 2)]
    assert host.passed == [PartialSum(2, 5, 3, CONTENT)]
    guest.exchange(first(5), second(5))
    assert guest.passed == [mean(5)]


def test_the_rest_of_a_vector_that_was_abandoned_is_not_awaited(sender):
    sender.exchange(first(5, 2, 3), first(6, 2, 3), second(6, 2, 3))
    assert sender.passed == [PartialSum(2, 6, 3, CONTENT)]
    sender.exchange(second(7, 2, 3), first(8, 2, 3), first(8, 1, 2), second(8, 1, 2), second(8, 2, 3))
    assert sender.passed == [PartialSum(1, 8, 2, CONTENT), PartialSum(2, 8, 3, CONTENT)], "a part is none"


def test_a_second_vector_is_sent_only_to_who_has_got_the_first(sender):
    assert sender.exchange(put=[mean(0), mean(1)]) == [(first(0), 1), (first(0), 2)]
    assert sender.exchange(*whole(2, 0), put=[mean(2)]) == [(second(0), 2), (first(2), 2)]
    assert sender.exchange(*whole(2, 0), *whole(1, 1), put=[mean(3)]) == [], "these are of other rounds"
    sent = [(second(0), 1), (second(2), 2), (first(4), 1), (first(4), 2)]
    assert sender.exchange(*whole(1, 0), *whole(2, 2), put=[mean(4)]) == sent


def test_who_cannot_send_its_sum_says_at_once_that_it_has_no_part_in_it():
    sender = SenderUnderTest(machine=1)
    sums = [PartialSum(1, round, 2, CONTENT) for round in range(3)]
    assert sender.exchange(put=sums[:2], listening=[0]) == [
        (first(0, 1, 2), 0),
        (PartialSum(1, 1, 0, b""), 0),
    ]
    assert sender.exchange(*whole(0, 0), put=sums[2:], listening=[0]) == [
        (second(0, 1, 2), 0),
        (first(2, 1, 2), 0),
    ]


def test_who_has_not_read_a_vector_cannot_say_that_it_has_come(sender):
    sender.exchange(put=[mean(0)])
    claims = VectorAck(1, 0, 0), arrived(1, 0, SECOND), arrived(1, 0, b"another")
    assert sender.exchange(*claims, put=[mean(1)], listening=[1]) == []


def test_what_is_small_waits_for_nothing_and_is_passed_on(sender):
    small = [PartialDistance(0, 0, 2, 0.5), PartialSum(0, 1, 0, b"")]
    sender.exchange(put=[mean(0)])
    assert sender.exchange(*small, put=small) == [(note, to) for note in small for to in ALL]
    assert sender.passed == small


def test_a_vector_that_is_not_confirmed_in_time_counts_as_lost(sender, monkeypatch):
    monkeypatch.setattr(Timeouts, "launcher_vector", lambda nbytes: 0.2)
    sender.exchange(put=[mean(0)])
    assert sender.exchange(put=[mean(1)]) == []
    time.sleep(0.25)
    assert sender.exchange(put=[mean(2)], listening=[1]) == [(first(2), 1)]
    monkeypatch.setattr(Timeouts, "launcher_vector", lambda nbytes: max(0.2, nbytes))
    sender.exchange(*whole(1, 2), put=[mean(3)], listening=[1])
    time.sleep(0.25)
    assert sender.exchange(put=[mean(4)], listening=[1]) == [], "a larger one may take longer"


def test_nothing_is_awaited_from_who_was_restarted_or_was_silent(sender):
    sender.exchange(put=[mean(0)])
    assert sender.exchange(Join(1, "", "", ""), put=[mean(1)]) == [(first(1), 1)]
    sender.exchange(listening=[1])
    assert sender.exchange(put=[mean(2)]) == [(first(2), 2)]


def test_what_could_not_be_sent_is_not_awaited(sender):
    sender.unreachable = {1}
    sender.exchange(put=[mean(0)])
    sender.unreachable.clear()
    assert sender.exchange(put=[mean(1)]) == [(first(1), 1)]
    sender.unreachable = {1}
    assert sender.exchange(arrived(1, 1, FIRST), listening=[1]) == [(second(1), 1)]
    sender.unreachable.clear()
    assert sender.exchange(put=[mean(2)], listening=[1]) == [(first(2), 1)]


def test_a_sum_that_could_not_be_sent_is_reported_as_none():
    sender = SenderUnderTest(machine=1)
    sender.unreachable = {0}
    whole = PartialSum(1, 0, 2, CONTENT)
    assert sender.exchange(put=[whole], listening=[0]) == [(first(0, 1, 2), 0), (PartialSum(1, 0, 0, b""), 0)]
