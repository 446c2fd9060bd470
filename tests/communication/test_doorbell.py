"""Bells: what is rung is heard once and whole, nobody waits in vain, and the rest goes another way."""

import os
import stat
import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decentnode.communication import wire
from decentnode.communication.base import HostProcess, ProcessDirectory
from decentnode.communication.exchange.handle import Transport
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.shared_memory.doorbell import (
    READ_BYTES,
    RECORD_BYTES,
    DoorbellReader,
    bell_path,
)
from decentnode.communication.wire import Header, Kind
from decentnode.errors import StartError


class Tower:
    """The bell of one of two processes, and what it has heard."""

    def __init__(self, directory, own, machines=(0, 0)):
        processes = tuple(HostProcess(m, i, (i,), "127.0.0.1") for i, m in enumerate(machines))
        self.heard, self.refused = [], Counter()
        self.place = ProcessDirectory(processes, own, str(directory))
        self.bell = DoorbellReader(self.place, self.take, lambda reason: self.refused.update([reason]))

    def take(self, head, body):
        header = Header.unpack(head)
        self.heard.append((Kind(header.kind), header.seq, body))


def message(kind=Kind.NOTICE, seq=1, to=1):
    body = wire.pack_reference(8 * seq) if kind == Kind.NOTICE else b""
    return to, Header(kind, 7, 0, to, seq=seq).pack(), body


@pytest.fixture
def towers(tmp_path):
    both = [Tower(tmp_path, own) for own in range(2)]
    yield both
    for tower in both:
        tower.bell.close()


def ring(tower, *messages):
    return tower.bell.ringer.ring(list(messages))


def test_nobody_is_rung_before_it_has_read_something(towers):
    assert ring(towers[0], message()) == [message()]
    towers[0].bell.ringer.answered(1)
    assert ring(towers[0], message()) == []
    towers[1].bell.hear()
    assert towers[1].heard == [(Kind.NOTICE, 1, wire.pack_reference(8))]
    assert not stat.S_IMODE(bell_path(towers[0].place, 1).stat().st_mode) & 0o077


def test_everything_is_heard_once_in_its_order_and_only_two_kinds_are_rung(towers):
    towers[0].bell.ringer.answered(1)
    sent = [message(Kind.NOTICE, 1), message(Kind.LEAVE, 2), message(Kind.ACKNOWLEDGE, 3)]
    assert ring(towers[0], *sent) == sent[1:2]
    towers[1].bell.hear()
    towers[1].bell.hear()
    assert [(kind, seq) for kind, seq, _ in towers[1].heard] == [(Kind.NOTICE, 1), (Kind.ACKNOWLEDGE, 3)]
    assert towers[1].heard[1][2] == b"", "the body is as over a link, where it is checked against its length"
    assert not towers[1].refused


def test_what_a_full_pipe_does_not_take_goes_another_way(towers):
    towers[0].bell.ringer.answered(1)
    rest, rung = [], 0
    while not rest:
        rung += 1
        rest = ring(towers[0], message(seq=rung))
    towers[1].bell.hear()
    assert [seq for _, seq, _ in towers[1].heard] == list(range(1, 1 + READ_BYTES // RECORD_BYTES))
    assert ring(towers[0], message(seq=rung)) == []
    while len(towers[1].heard) < rung:
        towers[1].bell.hear()
    assert [seq for _, seq, _ in towers[1].heard] == list(range(1, rung + 1))


def test_who_has_ended_is_not_rung_and_its_successor_only_once_it_has_read_something(towers, tmp_path):
    ringer = towers[0].bell.ringer
    ringer.answered(1)
    towers[1].bell.close()
    assert ring(towers[0], message()) == [message()]
    towers[1] = Tower(tmp_path, 1)
    assert ring(towers[0], message()) == [message()], "the pipe of the process before"
    ringer.forget(1)
    assert ring(towers[0], message()) == [message()]
    ringer.answered(1)
    assert ring(towers[0], message()) == []


def test_processes_of_other_machines_are_not_rung(tmp_path):
    tower = Tower(tmp_path, 0, machines=(0, 1))
    tower.bell.ringer.answered(1)
    tower.bell.ringer.forget(1)
    tower.bell.ringer.answered(1)
    assert ring(tower, message()) == [message()]
    tower.bell.close()


@given(st.lists(st.binary(max_size=3 * RECORD_BYTES), max_size=5))
def test_junk_is_counted_and_the_next_record_is_heard(tmp_path_factory, junk):
    tower = Tower(tmp_path_factory.mktemp("junk"), 1)

    def take(head, body):
        try:
            Tower.take(tower, head, body)
        except wire.WireError as error:
            tower.refused[error.reason] += 1

    tower.bell._take = take
    pipe = os.open(bell_path(tower.place, 1), os.O_WRONLY | os.O_NONBLOCK)
    for content in junk:
        os.write(pipe, content)
        tower.bell.hear()
        os.write(pipe, b"".join(message(seq=9)[1:]))
        tower.bell.hear()
    os.close(pipe)
    tower.bell.close()
    assert tower.heard == [(Kind.NOTICE, 9, wire.pack_reference(72))] * len(junk)
    assert bool(tower.refused) == any(junk)


def mailbox_of(tower):
    """A mailbox that waits at the bell, and is delivered to by what is rung."""
    transport = Transport()
    transport.attend = tower.bell.attend
    box = Mailbox(1, transport, alone=True)
    tower.bell._take = lambda head, body: box.deliver(0, (0, 0, 0), None)
    return box


def test_who_waits_hears_the_bell_itself(towers):
    towers[0].bell.ringer.answered(1)
    handle = mailbox_of(towers[1]).open((0, 0, 0), 1, [], [0], 10.0)
    assert not handle.wait(0.05)
    threading.Timer(0.1, lambda: ring(towers[0], message())).start()
    began = time.monotonic()
    assert handle.wait(10.0)
    assert time.monotonic() - began < 5


def test_who_waits_is_woken_by_what_comes_another_way(towers):
    box = mailbox_of(towers[1])
    handle = box.open((0, 0, 0), 1, [], [0], 10.0)
    threading.Timer(0.1, lambda: box.deliver(0, (0, 0, 0), None)).start()
    began = time.monotonic()
    assert handle.wait(10.0)
    assert time.monotonic() - began < 5


def test_who_is_woken_wakes_although_another_thread_empties_the_pipe(towers):
    """The thread of the sockets does so before every message; a round then lasted until the node asked."""
    towers[0].bell.ringer.answered(1)
    began = time.monotonic()

    def hear_and_hear_again(handle):
        time.sleep(0.001)
        ring(towers[0], message())
        while not handle.done:
            towers[1].bell.hear()
        towers[1].bell.hear()

    for _ in range(100):
        handle = mailbox_of(towers[1]).open((0, 0, 0), 1, [], [0], 10.0)
        hearing = threading.Thread(target=hear_and_hear_again, args=(handle,))
        hearing.start()
        assert handle.wait(2.0)
        hearing.join()
    assert time.monotonic() - began < 10


def test_of_two_that_wait_both_are_woken(towers):
    towers[0].bell.ringer.answered(1)
    box = mailbox_of(towers[1])
    handle = box.open((0, 0, 0), 1, [], [0], 10.0)
    ends = []
    waiting = [threading.Thread(target=lambda: ends.append(handle.wait(10.0))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    time.sleep(0.1)
    ring(towers[0], message())
    for thread in waiting:
        thread.join(5.0)
    assert ends == [True, True, True]


def test_where_no_pipe_can_be_made_one_line_says_so(tmp_path):
    with pytest.raises(
        StartError, match=r"^no named pipe can be made: .* \(communication.local=ipc needs none\)$"
    ):
        Tower(tmp_path / "nowhere", 0)
