"""Of vectors that are sent to other machines: one at a time to each, and none for who is not there."""

import time

import pytest

from decentnode.communication.wire import digest
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.cluster.messages import Join, MeanVector, PartialDistance, PartialSum, VectorAck
from decentnode.launcher.observer.vector_sender import VectorSender

ALL = [1, 2]
CONTENT = b"models"


def mean(round):
    return MeanVector(round, CONTENT)


def arrived(machine, round, content=CONTENT):
    return VectorAck(machine, round, digest(content))


class Desk:
    """A vector sender, and what it has sent."""

    def __init__(self, machine=0):
        self.sent, self.unreachable, self.cut = [], set(), []
        self.vector_sender = VectorSender(machine, self._send, self.cut.append)

    def _send(self, note, to):
        self.sent.append((note, to))
        return 0 if to in self.unreachable else 1

    def exchange(self, *notes, put=(), listening=ALL):
        """What is sent when these notes have come, and those are to be sent."""
        for contribution in put:
            self.vector_sender.contributions.put(contribution)
        self.sent.clear()
        self.vector_sender.exchange(notes, listening)
        return list(self.sent)


@pytest.fixture
def desk():
    return Desk()


def test_a_second_vector_is_sent_only_to_who_has_got_the_first(desk):
    assert desk.exchange(put=[mean(0), mean(1)]) == [(mean(0), 1), (mean(0), 2)]
    assert desk.exchange(arrived(2, 0), put=[mean(2)]) == [(mean(2), 2)]
    assert desk.exchange(arrived(2, 0), arrived(1, 1), put=[mean(3)]) == [], "these are of other rounds"
    assert desk.exchange(arrived(1, 0), arrived(2, 2), put=[mean(4)]) == [(mean(4), 1), (mean(4), 2)]


def test_who_cannot_send_its_sum_says_at_once_that_it_has_no_part_in_it():
    desk = Desk(machine=1)
    sums = [PartialSum(1, round, 2, CONTENT) for round in range(3)]
    assert desk.exchange(put=sums[:2], listening=[0]) == [(sums[0], 0), (PartialSum(1, 1, 0, b""), 0)]
    assert desk.exchange(arrived(0, 0), put=sums[2:], listening=[0]) == [(sums[2], 0)]


def test_a_mean_that_a_sum_is_part_of_says_too_that_the_sum_has_come():
    desk = Desk(machine=1)
    sums = [PartialSum(1, round, 2, CONTENT) for round in range(2)]
    desk.exchange(put=sums[:1], listening=[0])
    assert desk.exchange(mean(0), put=sums[1:], listening=[0]) == [(arrived(1, 0), 0), (sums[1], 0)]


def test_who_has_not_read_a_vector_cannot_say_that_it_has_come(desk):
    desk.exchange(put=[mean(0)])
    claims = VectorAck(1, 0, 0), arrived(1, 0, b"another"), PartialDistance(1, 0, 2, 0.5)
    assert desk.exchange(*claims, put=[mean(1)], listening=[1]) == []


def test_what_is_small_waits_for_nothing(desk):
    small = [PartialDistance(0, 0, 2, 0.5), PartialSum(0, 1, 0, b"")]
    desk.exchange(put=[mean(0)])
    assert desk.exchange(put=small) == [(note, to) for note in small for to in ALL]


def test_who_gets_a_vector_says_so(desk):
    notes = [PartialSum(2, 5, 1, CONTENT), PartialSum(1, 5, 0, b""), PartialDistance(1, 5, 0, 0.0)]
    assert desk.exchange(*notes) == [(arrived(0, 5), 2)]
    assert Desk(machine=1).exchange(mean(5)) == [(arrived(1, 5), 0)]


def test_a_vector_that_is_not_confirmed_in_time_counts_as_lost(desk, monkeypatch):
    monkeypatch.setattr(Timeouts, "launcher_vector", lambda nbytes: 0.2)
    desk.exchange(put=[mean(0)])
    assert desk.exchange(put=[mean(1)]) == []
    time.sleep(0.25)
    assert desk.exchange(put=[mean(2)], listening=[1]) == [(mean(2), 1)]
    assert desk.cut == [1, 2], "so nothing piles up there"
    monkeypatch.setattr(Timeouts, "launcher_vector", lambda nbytes: max(0.2, nbytes))
    desk.exchange(arrived(1, 2), put=[mean(3)], listening=[1])
    time.sleep(0.25)
    assert desk.exchange(put=[mean(4)], listening=[1]) == [], "a larger one may take longer"


def test_nothing_is_awaited_from_who_was_started_anew_or_was_not_heard(desk):
    desk.exchange(put=[mean(0)])
    assert desk.exchange(Join(1, "", "", ""), put=[mean(1)]) == [(mean(1), 1)]
    desk.exchange(listening=[1])
    assert desk.cut == [1, 2]
    assert desk.exchange(put=[mean(2)]) == [(mean(2), 2)]


def test_what_could_not_be_sent_is_not_awaited(desk):
    desk.unreachable = {1}
    desk.exchange(put=[mean(0)])
    desk.unreachable.clear()
    assert desk.exchange(put=[mean(1)]) == [(mean(1), 1)]


def test_a_sum_that_could_not_be_sent_is_told_as_none():
    desk = Desk(machine=1)
    desk.unreachable = {0}
    whole = PartialSum(1, 0, 2, CONTENT)
    assert desk.exchange(put=[whole], listening=[0]) == [(whole, 0), (PartialSum(1, 0, 0, b""), 0)]
