"""The sockets between launchers: who is heard, and what belongs to which start."""

import time

import msgspec
import pytest
import zmq

from decentnode.launcher.cluster.channel import LauncherChannel
from decentnode.launcher.state.messages import Arrived, EvaluationRows, Presence, RelayedReports
from tests.launcher.test_membership import receive, welcome
from tests.support.launchers import LauncherThreads
from tests.support.processes import credentials, free_ports


class Channels:
    """The sockets of three machines; `open` opens those of one."""

    def __init__(self, keys=(None,) * 3, start=b"start"):
        self.port, self.keys, self.opened, self.start = free_ports(1), keys, [], start

    def endpoint(self, machine):
        return f"tcp://127.0.0.{machine + 1}:{self.port}"

    def open(self, machine, says_it_is=None):
        said = machine if says_it_is is None else says_it_is
        channel = LauncherChannel(self.endpoint, self.endpoint(machine), said, self.keys[machine])
        channel.begin(self.start)
        self.opened.append(channel)
        return channel

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for channel in self.opened:
            channel.close()


def take(channel, count=1, seconds=5.0):
    """Returns the next messages as the machine and the content of each."""
    arrivals, limit = [], time.monotonic() + seconds
    while len(arrivals) < count and time.monotonic() < limit:
        channel.wait(0.1)
        while (arrival := channel.receive()) is not None:
            arrivals.append(arrival)
    return [(arrival.machine, arrival.content) for arrival in arrivals]


@pytest.mark.parametrize("guarded", [False, True], ids=["plain", "with keys"])
def test_all_machines_hear_each_other_and_know_who_speaks(guarded):
    with Channels(credentials(3)) if guarded else Channels() as channels:
        all_of_them = [channels.open(machine) for machine in range(3)]
        for machine, channel in enumerate(all_of_them):
            for other in {0, 1, 2} - {machine}:
                channel.send(f"{machine} to {other}".encode(), other)
        limit, heard = time.monotonic() + 10.0, [[], [], []]
        # In turn: a connection with keys needs both its ends.
        while any(len(messages) < 2 for messages in heard) and time.monotonic() < limit:
            for machine, channel in enumerate(all_of_them):
                heard[machine] += take(channel, seconds=0.05)
        for machine, messages in enumerate(heard):
            others = sorted({0, 1, 2} - {machine})
            assert sorted(messages) == [(other, f"{other} to {machine}".encode()) for other in others]


def test_a_key_decides_who_speaks():
    with Channels(credentials(3)) as channels:
        zero, liar = channels.open(0), channels.open(1, says_it_is=2)
        liar.send(b"as machine 2", 0)
        assert take(zero, seconds=1.0) == []
        assert zero.refused == {"identity": 1}


def test_what_was_not_sent_to_a_launcher_is_not_for_the_one_after_it():
    with Channels() as channels:
        zero = channels.open(0)
        zero.send(b"for the old one", 1)
        zero.renew(1)
        zero.send(b"for the new one", 1)
        assert take(channels.open(1)) == [(0, b"for the new one")]


def test_a_dropped_connection_that_comes_up_last_does_not_silence_its_successor():
    with Channels() as channels:
        zero, one = channels.open(0), channels.open(1)
        zero.send(b"on the first connection", 1)
        assert take(one) == [(0, b"on the first connection")]
        route = zero._outboxes[1].get(zmq.ROUTING_ID)
        zero.renew(1)
        zero.send(b"on the second connection", 1)
        assert take(one) == [(0, b"on the second connection")]
        # As libzmq may do until it has closed the first one.
        with zmq.Context() as context, context.socket(zmq.DEALER) as late:
            late.set(zmq.ROUTING_ID, route)
            late.connect(channels.endpoint(1))
            late.send_multipart([b"start", b"late"])
            assert take(one) == [(0, b"late")]
        for _ in range(2):
            zero.send(b"still heard", 1)
            assert take(one) == [(0, b"still heard")]


def test_an_answer_returns_to_who_asked_wherever_that_receives():
    with Channels(start=b"") as channels:
        zero, guest = channels.open(0), channels.open(2, says_it_is=1)
        guest.send(b"question", 0)
        assert zero.wait(5.0)
        question = zero.receive()
        zero.answer(b"answer", question.launcher)
        assert take(guest) == [(0, b"answer")]


def test_a_message_of_another_start_is_refused():
    with LauncherThreads(2) as launchers:
        host, guest = launchers.meet()
        guest._channel.start = b"an earlier one"
        guest.send(RelayedReports(1, []), 0)
        assert receive(host, 1, seconds=0.5) == []
        assert host.refused == {"another start": 1}


def test_messages_that_come_before_the_own_start_are_kept(monkeypatch):
    """A machine that comes late is told of the run while the answer to its Join is on the way."""
    with LauncherThreads(3, "at_least 4") as launchers:
        first, second = launchers.start(0), launchers.start(1)
        first.result(10.0), second.result(10.0)
        late, early = launchers.start(2), [Arrived(1, Presence(1, 1)), EvaluationRows(1, [])]
        host, of_second = launchers.rendezvous_of[0], launchers.rendezvous_of[1]
        for message in early:
            of_second.send(message, 2)
        stranger = launchers.channel(1)
        stranger.start = b"an earlier one"
        stranger.send(msgspec.msgpack.encode(RelayedReports(1, [])), 2)
        time.sleep(0.3)
        assert host._start is not None and not late.done()
        welcome(launchers)
        late.result(10.0)
        assert receive(launchers.rendezvous_of[2], 2) == early
        assert launchers.rendezvous_of[2].refused == {"another start": 1}
        stranger.close()
