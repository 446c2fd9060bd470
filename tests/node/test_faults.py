"""Injected faults, without a run: what they do to a node, to messages, and what a configuration may say."""

import os
import resource
import signal
import time
from pathlib import Path

import pytest
import zmq

from decentnode.communication import wire
from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatBoard
from decentnode.communication.launcher_link.reports import FaultInjected, Reporter, ReportReader
from decentnode.config import loader as config
from decentnode.node.faults import Crash, Drop, MessageDelay, NetworkPartition, Slow, Stop
from decentnode.node.faults.injector import FaultInjector
from eval.reliability.more_faults import Corrupt, Duplicate, FullDisk, Hang, Raise, Reorder
from tests.support.processes import in_a_child

RUN_ID = 7
TINY = Path(__file__).parents[2] / "eval" / "reliability" / "tiny.yaml"


class Interception:
    """A node of rank 0 among four, with faults, and what they reported."""

    def __init__(self, *faults, seed: int = 1) -> None:
        read, write = os.pipe()
        self.inflow, reporter = ReportReader(read), Reporter(write)
        self.heartbeats = HeartbeatBoard([0])
        self.injector = FaultInjector(faults, [0, 0, 1, 1], seed)
        self.heartbeat = self.injector.heartbeat(0, self.heartbeats.of(0), reporter)
        self.interceptor = self.injector.interceptor([0], self.heartbeats, reporter)

    def reported(self) -> list[FaultInjected]:
        return self.inflow.read()

    def pass_on(self, message, now: float = 0.0):
        return [summary(passed) for passed in self.interceptor.filter_messages((message, False), now)]


def message(
    sender: int = 1,
    round: int = 0,
    kind=wire.Kind.PAYLOAD,
    body: bytes = b"12345678",
    seq: int = 1,
    ack: int = 0,
):
    header = wire.Header(
        kind, RUN_ID, sender, 0, round, seq=seq, ack=ack, length=len(body), body_digest=wire.digest(body)
    )
    return [zmq.Frame(header.pack()), zmq.Frame(body)]


def writable(frames):
    """The same frames as a socket gives them: those that are made here share their bytes with Python."""
    context = zmq.Context()
    first, second = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    first.bind("inproc://here")
    second.connect("inproc://here")
    first.send_multipart([bytes(frame.buffer) for frame in frames])
    received = second.recv_multipart(copy=False)
    context.destroy(0)
    return received


def summary(passed) -> tuple[int, int]:
    """Sender and round."""
    header = wire.Header.unpack(bytes(passed[0][0].buffer))
    return header.sender, header.round


# Messages -----------------------------------------------------------------------------------------------


def test_a_dropped_message_does_not_come_and_is_reported_once_in_a_round():
    interception = Interception(Drop(rounds=(2, 3)))
    assert [interception.pass_on(message(round=r)) for r in range(5)] == [
        [(1, 0)],
        [(1, 1)],
        [],
        [],
        [(1, 4)],
    ]
    interception.pass_on(message(sender=3, round=3))
    faults = [(r.round, r.fault, r.what) for r in interception.reported()]
    assert faults == [(2, "drop", "payload from rank 1"), (3, "drop", "payload from rank 1")]


def test_a_fault_is_reported_once_in_each_of_two_rounds_that_take_turns():
    """Peers are ahead of the node that hears them, and what they say of themselves belongs to its round."""
    interception = Interception(Drop())
    interception.heartbeat.mark(4, Activity.RECEIVE)
    waiting = message(kind=wire.Kind.WAITING, round=4, body=b"")
    for struck in (message(round=5), waiting, message(sender=2, round=5), waiting):
        assert interception.pass_on(struck) == []
    reports = [(r.round, r.what) for r in interception.reported()]
    assert reports == [(5, "payload from rank 1"), (4, "waiting from rank 1")]


def test_a_fault_strikes_only_what_the_named_peers_send():
    interception = Interception(Drop(peers=(2, 3)))
    assert [interception.pass_on(message(sender=s)) for s in (1, 2, 3)] == [[(1, 0)], [], []]


def test_a_control_message_belongs_to_the_round_of_its_receiver():
    interception = Interception(Drop(rounds=5))
    ack = message(kind=wire.Kind.ACKNOWLEDGE, round=0, body=b"")
    assert interception.pass_on(ack) == [(1, 0)]
    interception.heartbeat.mark(5, Activity.TRAIN)
    assert interception.pass_on(ack) == []


def test_a_fault_may_wait_for_an_activity_of_the_receiver():
    interception = Interception(Drop(activity="mix"))
    interception.heartbeat.mark(0, Activity.RECEIVE)
    assert interception.pass_on(message()) == [(1, 0)]
    interception.heartbeat.mark(0, Activity.MIX)
    assert interception.pass_on(message()) == []


def test_nothing_is_struck_before_the_first_round():
    interception = Interception(Drop())
    assert len(interception.pass_on(message(kind=wire.Kind.HELLO))) == 1


def test_a_message_is_duplicated():
    assert Interception(Duplicate()).pass_on(message()) == [(1, 0), (1, 0)]


def test_a_message_comes_after_the_next_of_its_sender():
    interception = Interception(Reorder(rounds=0))
    assert interception.pass_on(message(round=0)) == []
    assert interception.pass_on(message(sender=2, round=1)) == [(2, 1)]
    assert interception.pass_on(message(round=1)) == [(1, 1), (1, 0)]
    assert interception.interceptor.next_release == float("inf")


def test_a_message_is_held_back_no_longer_than_configured():
    for fault in (Reorder(seconds=2.0), MessageDelay(seconds=2.0)):
        interception = Interception(fault)
        assert interception.pass_on(message(), now=10.0) == []
        assert interception.interceptor.next_release == 12.0
        assert interception.interceptor.released(11.9) == []
        assert [summary(released) for released in interception.interceptor.released(12.0)] == [(1, 0)]


def test_what_follows_a_delayed_message_waits_behind_it():
    interception = Interception(MessageDelay(seconds=2.0, rounds=0))
    assert interception.pass_on(message(round=0), now=10.0) == []
    assert interception.pass_on(message(round=1), now=10.5) == []
    assert interception.pass_on(message(sender=2, round=1), now=10.5) == [(2, 1)]
    assert [summary(released) for released in interception.interceptor.released(12.0)] == [(1, 0), (1, 1)]
    assert interception.pass_on(message(round=2), now=13.0) == [(1, 2)]


@pytest.mark.parametrize("bits", [1, 3])
def test_bits_are_flipped_where_the_seed_says(bits):
    held = []
    for _ in range(2):
        frames = writable(message())
        before = [bytes(frame.buffer) for frame in frames]
        ((after, _),) = Interception(Corrupt(bits=bits)).interceptor.filter_messages((frames, False), 0.0)
        flips = sum(
            (a ^ b).bit_count()
            for old, frame in zip(before, after, strict=True)
            for a, b in zip(old, bytes(frame.buffer), strict=True)
        )
        assert flips == bits
        held.append([bytes(frame.buffer) for frame in after])
    assert held[0] == held[1]


def test_an_empty_body_is_no_hindrance():
    frames = writable(message(kind=wire.Kind.ACKNOWLEDGE, body=b""))
    assert len(Interception(Corrupt(rounds=0), seed=3).pass_on(frames)) == 1


def test_every_part_of_a_message_may_be_corrupted():
    interception, struck = Interception(Corrupt()), set()
    for seq in range(60):
        frames = writable(message(seq=seq))
        before = [bytes(frame.buffer) for frame in frames]
        interception.interceptor.filter_messages((frames, False), 0.0)
        struck |= {i for i, frame in enumerate(frames) if bytes(frame.buffer) != before[i]}
    assert struck == {0, 1}


def test_a_partition_separates_groups_and_heals():
    interception = Interception(NetworkPartition(groups=((0, 1), (2,)), rounds=(1, 2)))
    assert interception.pass_on(message(sender=1, round=1)) == [(1, 1)]
    assert interception.pass_on(message(sender=2, round=1)) == []
    assert interception.pass_on(message(sender=3, round=1)) == [(3, 1)]  # in no group
    assert interception.pass_on(message(sender=2, round=3)) == [(2, 3)]


def test_a_partition_may_last_for_seconds():
    interception = Interception(NetworkPartition(groups=((0,), (1,)), rounds=(1, 1), seconds=5.0))
    assert interception.pass_on(message(round=0), now=0.0) == [(1, 0)]
    assert interception.pass_on(message(round=1), now=1.0) == []
    assert interception.pass_on(message(round=2), now=5.9) == []
    assert interception.pass_on(message(round=2), now=6.0) == [(1, 2)]


def passing(seed: int) -> list[bool]:
    interception = Interception(Drop(probability=0.5), seed=seed)
    return [bool(interception.pass_on(message(round=round, seq=round))) for round in range(40)]


def test_the_seed_decides_who_is_struck():
    assert passing(1) == passing(1) != passing(2)
    assert 8 < sum(passing(1)) < 32


def test_a_message_that_is_resent_has_another_chance():
    interception, came = Interception(Drop(probability=0.5)), set()
    for ack in range(30):
        came.add(len(interception.pass_on(message(ack=ack))))
        interception.pass_on(message(kind=wire.Kind.WAITING, body=b""))
        interception.pass_on(message(round=1, seq=2))
    assert came == {0, 1}


def test_a_interceptor_is_made_only_where_messages_are_struck():
    assert Interception(Crash()).interceptor is None
    assert Interception(Drop(ranks=1)).interceptor is None
    assert Interception(Drop(machine=1)).interceptor is None
    assert Interception(Drop(machine=0)).interceptor is not None


# Nodes --------------------------------------------------------------------------------------------------


def test_a_node_without_faults_keeps_its_heartbeat():
    interception = Interception(Crash(ranks=2), Drop())
    assert type(interception.heartbeat) is type(HeartbeatBoard([0]).of(0))


def test_a_node_dies_once_in_its_round_and_not_again_when_it_rejoins():
    interception = Interception(Crash(ranks=0, rounds=3, activity="mix"))

    def play() -> None:
        for round in range(5):
            for activity in (Activity.TRAIN, Activity.MIX):
                interception.heartbeat.mark(round, activity)

    assert in_a_child(play) == -signal.SIGKILL
    assert interception.heartbeats.of(0).read()[:2] == (3, Activity.MIX)
    assert [(r.rank, r.round, r.fault, r.what) for r in interception.reported()] == [(0, 3, "crash", "mix")]
    assert in_a_child(play) == 0


def test_a_process_stands_still_and_continues_without_leaving_a_child():
    def play() -> None:
        began = time.monotonic()
        Stop(seconds=0.3).inject()
        assert time.monotonic() - began >= 0.3
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, 0)

    child = os.fork()
    if child == 0:
        play()
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    _, status = os.waitpid(child, 0)
    assert status == 0


def test_what_continues_a_process_ends_with_it():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        Stop(seconds=600.0).inject()
        os._exit(0)
    os.close(write)
    os.waitpid(child, os.WUNTRACED)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b""  # the last process that could write there has ended


def test_a_slow_node_takes_its_factor_and_shows_that_it_lives():
    interception = Interception(Slow(ranks=0, factor=4.0))
    interception.heartbeat.mark(0, Activity.TRAIN)
    time.sleep(0.05)
    began, marks = time.monotonic(), interception.heartbeat.read().marks
    interception.heartbeat.mark(0, Activity.SEND)
    assert time.monotonic() - began >= 0.15
    assert interception.heartbeat.read().marks > marks + 1
    began = time.monotonic()
    interception.heartbeat.mark(0, Activity.MIX)  # nobody has asked for that to be slow
    assert len(interception.reported()) == 1


def test_a_node_hangs_as_long_as_configured():
    began = time.monotonic()
    Hang(seconds=0.1).inject()
    assert time.monotonic() - began >= 0.1


def test_a_node_raises():
    interception = Interception(Raise(ranks=0, rounds=1, activity="send"))
    interception.heartbeat.mark(0, Activity.SEND)
    with pytest.raises(RuntimeError, match="an injected fault"):
        interception.heartbeat.mark(1, Activity.SEND)


def test_no_file_grows_while_the_disk_is_full(tmp_path):
    interception = Interception(FullDisk(ranks=0, rounds=0))

    def play() -> None:
        with (tmp_path / "file").open("wb", buffering=0) as file:
            file.write(b"before")
            interception.heartbeat.mark(0, Activity.EVALUATE)
            with pytest.raises(OSError, match="File too large"):
                file.write(b"meanwhile")
            interception.heartbeat.mark(1, Activity.BEGIN)
            file.write(b" after")

    assert in_a_child(play) == 0
    assert (tmp_path / "file").read_bytes() == b"before after"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_the_seed_decides_in_which_rounds_a_node_is_struck():
    def struck(seed: int) -> list[int]:
        interception = Interception(Slow(probability=0.3, factor=1.5), seed=seed)
        for round in range(30):
            interception.heartbeat.mark(round, Activity.TRAIN)
        return [report.round for report in interception.reported()]

    assert struck(1) == struck(1) != struck(2)
    assert 2 < len(struck(1)) < 20


# Configuration ------------------------------------------------------------------------------------------


def test_faults_are_saved_with_the_run(tmp_path):
    faults = "[{name: partition, groups: [[0, 1], [2, 3]], rounds: [4, 9]}, crash, {name: stop, ranks: 3}]"
    settings = config.load(TINY, [f"faults={faults}"])
    (tmp_path / "x.yaml").write_text(config.dump(settings))
    again = config.load(tmp_path / "x.yaml")
    assert again.faults == settings.faults
    assert [type(fault.make()) for fault in again.faults] == [NetworkPartition, Crash, Stop]
