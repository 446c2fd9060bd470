"""Waits that count no time in which this process itself was suspended."""

import time
from types import SimpleNamespace

import pytest

from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.zeromq.hello_barrier import HelloBarrier
from decentnode.core.clock import AwakeClock
from decentnode.errors import STOPPED_BY, StartError
from decentnode.launcher.cluster.graceful_stop import GracefulStop


@pytest.fixture
def suspend(monkeypatch):
    """Lets so many seconds pass at once."""
    real, jumped = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + jumped[0])

    def jump(seconds):
        jumped[0] += seconds

    return jump


def test_a_gap_counts_as_one_interval(suspend):
    clock = AwakeClock(0.5)
    began = clock.now()
    for seconds, counted in (0.4, 0.4), (1.2, 1.6), (100.0, 2.1), (0.5, 2.6):
        suspend(seconds)
        assert clock.now() - began == pytest.approx(counted, abs=0.2)


def test_nodes_are_not_killed_after_a_suspension_of_their_launcher(suspend):
    stop = GracefulStop(HeartbeatBoard([0]), 1, lambda: {0}, lambda: False, lambda note, to: None, 20.0)
    suspend(100.0)
    stop.request(min(STOPPED_BY))
    stop.advance()
    for seconds in 100.0, *[0.5] * 30, 100.0:
        assert not stop.is_overdue
        suspend(seconds)
    assert not stop.is_overdue
    for _ in range(20):
        suspend(0.5)
        overdue = stop.is_overdue
    assert overdue


def test_a_suspended_process_still_waits_for_hello(suspend):
    place = SimpleNamespace(
        incarnation=0,
        grace=1.0,
        processes=[SimpleNamespace(ranks=[0])] * 2,
        process=SimpleNamespace(ranks=[0]),
        neighbors={1},
    )
    barrier, hellos = HelloBarrier(place, SimpleNamespace(lost=set())), []

    def note_and_suspend(process):
        hellos.append(process)
        suspend(100.0)
        if len(hellos) == 2:
            barrier.note(process)

    barrier.wait({1}, 30.0, note_and_suspend)
    assert hellos == [1, 1]
    with pytest.raises(StartError, match="no hello"):
        HelloBarrier(place, SimpleNamespace(lost=set())).wait({1}, 0.2, note_and_suspend)
