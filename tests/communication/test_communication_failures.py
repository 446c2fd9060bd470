"""What nodes see of each other when one dies, stands still, or says what nobody understands."""

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import msgspec
import pytest
import torch
import zmq

from decentnode.communication import wire
from decentnode.communication.base import BufferSpec, HostProcess, Inbox, ProcessDirectory
from decentnode.communication.peers.edges import MOST_REQUESTS
from decentnode.communication.torch_distributed.process_group import Group
from decentnode.communication.zeromq.plugin import ZeroMQ
from decentnode.communication.zeromq.stripes import INDEX, LEAST_CHUNK, STRIPED_BYTES
from decentnode.core.payload import Payload, dense_layout
from decentnode.errors import BadInput, StartError
from decentnode.graph.families import Chain, FullyConnected, Ring
from tests.support.processes import (
    GLOO,
    GLOO_MACHINES,
    GROUPED,
    IPC,
    MACHINES,
    RUN_ID,
    SHARED,
    SHARED_SIBLINGS,
    TCP,
    RunningNode,
    free_ports,
    run_nodes,
)

LAYOUT = dense_layout(1000)
MEMORY = BufferSpec(1000, payload_bytes=4096)
SHORT, LONG = 0.8, 2.4
"""Deadlines in seconds; the second is thrice the first."""
PATIENT = dict.fromkeys(range(5), 20.0)
APART = (SHARED, IPC, TCP, MACHINES, *GROUPED)


def in_rounds(graph, rounds, timeouts, before_round=lambda rank, round: None):
    """Work that makes plain exchanges and returns (reason by missing peer, slowest round in seconds).

    `timeouts` is by rank; those that are not named have the short one.
    """

    async def work(node: RunningNode):
        missing, slowest = {}, 0.0
        for round in range(rounds):
            before_round(node.rank, round)
            began = time.monotonic()
            slot = node.endpoint.slots[round % 2].fill_(node.rank + round)
            outgoing = dict.fromkeys(graph.targets(node.rank, round), Payload.dense(slot))
            sources = graph.sources(node.rank, round)
            timeout = timeouts.get(node.rank, SHORT)
            inbox = await node.exchange(outgoing, sources, (round, 0, 0), LAYOUT, timeout)
            for j, payload in inbox.items():
                assert payload["vector"].unique().tolist() == [j + round]
            for j, error in inbox.missing.items():
                missing.setdefault(j, (round, f"{type(error).__name__}: {error.reason}"))
            slowest = max(slowest, time.monotonic() - began)
        return missing, slowest

    return work


def signal_oneself(victim, at_round, signum):
    def act(rank, round):
        if rank == victim and round == at_round:
            time.sleep(0.2)  # what was posted in the round before is on its way
            os.kill(os.getpid(), signum)

    return act


@pytest.mark.parametrize("case", APART, ids=lambda case: case.name)
def test_a_killed_node_is_lost_long_before_its_deadline_and_the_others_finish(case):
    work = in_rounds(Ring(4), 6, PATIENT, signal_oneself(3, 2, signal.SIGKILL))
    outcomes = run_nodes(case, 4, work, MEMORY, absent=[3])
    assert {r: missing for r, (missing, _) in outcomes.results.items()} == {
        0: {3: (2, "PeerLost: connection lost")},
        1: {},
        2: {3: (2, "PeerLost: connection lost")},
    }
    assert max(slowest for _, slowest in outcomes.results.values()) < PATIENT[0] / 2
    assert max(outcomes.close_seconds) < PATIENT[0] / 2


def test_a_group_is_one_communicator_and_one_buffer_per_source_however_many_edges():
    async def work(node: RunningNode):
        await in_rounds(FullyConnected(4), 5, PATIENT)(node)
        node.release()
        groups = [thing for thing in gc.get_objects() if isinstance(thing, Group)]
        return len(groups), sum(buffer.nbytes for buffer in node.endpoint.routes[0].transfer_queue.pool._free)

    assert set(run_nodes(GLOO, 4, work, MEMORY).results.values()) == {(1, 3 * 4000)}


@pytest.mark.parametrize("case", [GLOO, GLOO_MACHINES], ids=lambda case: case.name)
def test_survivors_of_a_group_continue_over_zeromq(case):
    """What carries an exchange is noted before the loss of rank 0, who led, and at the end."""
    rounds = in_rounds(Ring(4), 40, PATIENT, signal_oneself(0, 2, signal.SIGKILL))

    async def work(node: RunningNode):
        before = node.endpoint.routes[0].group_membership.group
        missing, _ = await rounds(node)
        in_flight = [list(by_target) for by_target in node.endpoint.routes[0]._unconfirmed.values()]
        return (
            before.members,
            sorted(missing),
            node.endpoint.routes[0].group_membership.group,
            in_flight[-1],
            before.is_broken,
        )

    results = run_nodes(case, 4, work, MEMORY, absent=[0]).results
    everybody = (0, 1, 2, 3)
    assert results == {
        1: (everybody, [0], None, [], True),
        2: (everybody, [], None, [], True),
        3: (everybody, [0], None, [], True),
    }


def one_way(rounds, before_round):
    """Work in which rank 0 sends to rank 1 and hears nothing; returns what rank 1 gets in each round."""

    async def work(node: RunningNode):
        vectors = []
        for round in range(rounds):
            node.release()
            slot, sources = node.endpoint.slots[round % 2].fill_(round), [0] * node.rank
            outgoing = {} if node.rank else {1: Payload.dense(slot)}
            handle = node.endpoint.exchange(outgoing, sources, (round, 0, 0), 5.0, LAYOUT)
            before_round(node, round)
            inbox = node.inbox = Inbox(await handle, LAYOUT, node.endpoint)
            vectors += [inbox[j]["vector"].unique().tolist() for j in inbox]
        return vectors

    return work


@pytest.mark.parametrize("rounds", [1, 4], ids=["the last one", "one of several"])
def test_what_a_group_has_taken_but_not_brought_when_it_fails_is_resent(rounds):
    """It lies in the reader's memory, and the sender, who is not answered, has nothing left to send."""

    def break_up(node, round):
        formation = node.endpoint.routes[0].group_membership
        if node.rank == 1 and round == 0:
            time.sleep(0.5)
            formation.break_up(formation.group, "a wire fell out")

    results = run_nodes(GLOO, 2, one_way(rounds, break_up), MEMORY).results
    assert results == {0: [], 1: [[float(round)] for round in range(rounds)]}


def test_a_reader_whose_acknowledgement_was_lost_resends_it():
    async def work(node: RunningNode):
        endpoint, sockets = node.endpoint, node.communication.sockets
        outgoing = {} if node.rank else {1: Payload.dense(endpoint.slots[0])}
        if node.rank == 1:
            sockets.dispatch = lambda messages: None
        await node.exchange(outgoing, [0] * node.rank, (0, 0, 0), LAYOUT)
        sockets.__dict__.pop("dispatch", None)
        await node.exchange({}, [], (1, 0, 0), LAYOUT, LONG)
        await asyncio.sleep(node.rank * 1.5 * LONG)  # whoever leaves is not waited for
        return set(endpoint.peers.lost())

    assert run_nodes(GLOO, 2, work, MEMORY, tick=0.05).results == {0: set(), 1: set()}


@pytest.mark.parametrize(
    ("case", "nodes"),
    [(SHARED, 4), (TCP, 4), (SHARED_SIBLINGS, 5), (GLOO, 4)],
    ids=["shared", "tcp", "siblings", "gloo"],
)
def test_a_node_that_stands_still_is_accused_by_its_neighbor_alone(case, nodes):
    """The last of a chain stops; the others wait thrice as long as their deadline, and accuse nobody."""
    last = nodes - 1
    work = in_rounds(Chain(nodes), nodes + 2, {last - 1: LONG}, signal_oneself(last, 2, signal.SIGSTOP))
    outcomes = run_nodes(case, nodes, work, MEMORY, tick=0.05, absent=[last])
    missing = {rank: missing for rank, (missing, _) in outcomes.results.items()}
    accusation = {last: (2, "PeerTimeout: silent for 2 s in exchange 2/0/0")}
    assert missing == {rank: accusation if rank == last - 1 else {} for rank in range(last)}
    # A group ends in the meantime, where there was one.
    assert LONG < outcomes.results[last - 1][1] < (12.0 if case.grouped else 2 * LONG)


def test_a_node_that_was_stopped_learns_that_it_was_dropped():
    """It is woken after the verdict: its neighbors have withdrawn, and it goes on alone without an error."""

    def act(rank, round):
        if rank == 2 and round == 2:
            waker = f"sleep 3.4; kill -CONT {os.getpid()}"
            os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", waker)
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGSTOP)

    results = run_nodes(
        IPC, 3, in_rounds(Ring(3), 4, dict.fromkeys(range(3), 1.2), act), MEMORY, tick=0.05
    ).results
    for rank in (0, 1):
        assert results[rank][0] == {2: (2, "PeerTimeout: silent for 1 s in exchange 2/0/0")}
    for rank in (0, 1):
        told = results[2][0][rank][1]
        # On a busy machine it may hear only after its neighbors have agreed to take it back.
        assert re.match("PeerLost: (timed out on this node in round 3|is back from round)", told)


def message(body=b"", **changes):
    """A control message as a peer would write it, with some fields changed."""
    header = wire.Header(wire.Kind.WAITING, RUN_ID, 1, 0, length=len(body), body_digest=wire.digest(body))
    return [header._replace(**changes).pack(), body]


def hello_of(rank, fd):
    hello = wire.Hello([1], [wire.SharedSegment(rank, 1, fd, 64)])
    return message(msgspec.msgpack.encode(hello), kind=wire.Kind.HELLO)


def chunk(content, index=0, length=STRIPED_BYTES, **changes):
    """A chunk of a payload of two."""
    head, _ = message(kind=wire.Kind.PAYLOAD, length=length, **changes)
    return [head, INDEX.pack(index), content]


GOOD = message()
NESTED = b"\x81\xa1x" + b"\x91" * 50_000 + b"\x00"
JUNK = [
    ("frame count", [b"x"]),
    ("frame count", [GOOD[0], b"", b"", b"", b""]),
    ("frame count", [GOOD[0], b"", b"third", b"fourth"]),
    ("chunk", [GOOD[0], bytes(4), b"of a control message"]),
    ("chunk", [*chunk(b"")]),
    ("chunk", [*chunk(bytes(LEAST_CHUNK - 1))]),
    ("chunk", [*chunk(bytes(LEAST_CHUNK), index=2)]),
    ("chunk", [*chunk(bytes(LEAST_CHUNK), length=STRIPED_BYTES - 1)]),
    ("chunk", [*chunk(bytes(LEAST_CHUNK), length=1 << 40)]),
    ("chunk", [chunk(b"")[0], b"5 byt", bytes(LEAST_CHUNK)]),
    ("rank", [*chunk(bytes(LEAST_CHUNK), sender=7)]),
    ("header length", [b"", b""]),
    ("header length", [GOOD[0] + b"\0", b""]),
    ("magic", [b"GET / HTTP/1.1\r\n".ljust(64), b""]),
    ("version", [GOOD[0][:4] + b"\x09\x00" + GOOD[0][6:], b""]),
    ("kind", message(kind=99)),
    ("incarnation", message(knows=1)),
    ("incarnation", message(incarnation=1)),
    ("run id", message(run_id=RUN_ID + 1)),
    ("rank", message(sender=7)),
    ("rank", message(sender=0)),
    ("rank", message(receiver=1)),
    ("body length", [GOOD[0], b"another body"]),
    ("checksum", [message(b"this is it")[0], b"another bd"]),
    ("checksum", [GOOD[0][:-1] + bytes([GOOD[0][-1] ^ 1]), b""]),
    ("body length", message(b"12345", kind=wire.Kind.PAYLOAD, length=4)),
    ("hello", message(b"\xc1", kind=wire.Kind.HELLO)),
    ("hello", message(NESTED, kind=wire.Kind.HELLO)),
    ("hello", hello_of(0, fd=1)),
    ("control length", message(bytes(wire.MOST_CONTROL_BYTES + 1), kind=wire.Kind.HELLO)),
    ("shared memory cannot be attached", hello_of(1, fd=9999)),
    ("body length", message(b"1234567", kind=wire.Kind.NOTICE)),
    ("body length", message(b"123456789", kind=wire.Kind.NOTICE)),
    ("notice without shared memory", message(b"12345678", kind=wire.Kind.NOTICE)),
]


async def attacked(node: RunningNode):
    """Rank 0 is sent junk by a stranger who stands beside rank 1, between two honest exchanges."""
    exchanges = in_rounds(Ring(2), 3, PATIENT)
    sockets = node.communication.sockets
    first = await exchanges(node)
    if node.rank == 1:
        await asyncio.to_thread(send_junk, sockets.links._endpoint_of(0))
    else:
        limit = time.monotonic() + 5.0
        while node.refused.total() < len(JUNK) and time.monotonic() < limit:
            await asyncio.sleep(0.01)
    other = 1 - node.rank
    outgoing = {other: Payload.dense(torch.full((1000,), 5.0))}
    last = await node.exchange(outgoing, [other], (9, 0, 0), LAYOUT)
    return first[0], last[other]["vector"].unique().tolist(), node.refused


def send_junk(endpoint):
    context = zmq.Context()
    for _, frames in JUNK:
        stranger = context.socket(zmq.DEALER)
        stranger.connect(endpoint)
        stranger.send_multipart(frames)
        stranger.close(2000)
    oversized = context.socket(zmq.DEALER)
    oversized.connect(endpoint)
    oversized.send_multipart([GOOD[0], bytes(1 << 21)])
    oversized.close(200)
    context.term()


@pytest.mark.parametrize("case", [IPC, TCP], ids=lambda case: case.name)
def test_junk_is_counted_by_its_reason_and_disturbs_nothing(case):
    results = run_nodes(case, 2, attacked, MEMORY).results
    assert results[0] == ({}, [5.0], Counter(reason for reason, _ in JUNK))
    assert results[1] == ({}, [5.0], Counter())


FLOOD = """
import sys, time, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.set(zmq.LINGER, 0)
socket.connect(sys.argv[1])
limit = time.monotonic() + 6.0
while time.monotonic() < limit:
    socket.send(b"", zmq.SNDMORE)
    socket.send(b"")
"""


async def flooded(node: RunningNode):
    """Somebody sends rank 0 messages without a pause while rank 1 owes it a payload."""
    sockets = node.communication.sockets
    await in_rounds(Ring(2), 2, PATIENT)(node)
    if node.rank == 1:
        flood = subprocess.Popen([sys.executable, "-c", FLOOD, sockets.links._endpoint_of(0)])
        limit = time.monotonic() + 7.0
        while not sockets.peers_by_rank[1].lost() and time.monotonic() < limit:
            await asyncio.sleep(0.05)
        flood.kill()
        return flood.wait()
    while node.refused["header length"] < 1000:
        await asyncio.sleep(0.01)
    began = time.monotonic()
    inbox = await node.exchange({}, [1], (9, 0, 0), LAYOUT, 1.0)
    return list(inbox.missing), time.monotonic() - began


def test_who_sends_without_a_pause_does_not_put_off_the_deadlines():
    missing, seconds = run_nodes(TCP, 2, flooded, MEMORY).results[0]
    assert missing == [1]
    assert seconds < 5.5


async def uninvited(node: RunningNode):
    """Rank 2, which is no neighbor of rank 0, sends it payloads of rounds that are far away."""
    sockets = node.communication.sockets
    if node.rank == 0:
        sockets.senders[0] = frozenset({1})
    missing, _ = await in_rounds(Chain(3), 2, PATIENT)(node)
    body, limit = bytes(4000), time.monotonic() + 5.0
    for round in range(4) if node.rank == 2 else ():
        header = sockets.header(wire.Kind.PAYLOAD, 2, 0, (1_000_000 + round, 0, 0), 1, len(body))
        sockets.dispatch([(0, header._replace(body_digest=wire.digest(body)).pack(), body)])
    while node.rank == 0 and node.refused.total() < 4 and time.monotonic() < limit:
        await asyncio.sleep(0.01)
    return missing, node.refused, len(node.endpoint.mailbox._early._messages)


@pytest.mark.parametrize("case", [IPC, TCP], ids=lambda case: case.name)
def test_what_a_node_sends_that_is_no_neighbor_is_not_kept(case):
    results = run_nodes(case, 3, uninvited, MEMORY).results
    assert results[0] == ({}, Counter({"unexpected source": 4}), 0)
    assert results[1] == results[2] == ({}, Counter(), 0)


async def pushy(node: RunningNode):
    """Rank 0 asks rank 1 for its model, which sends an empty one first; and so does rank 2, unasked."""
    sockets = node.communication.sockets
    await in_rounds(Chain(3), 1, PATIENT)(node)
    if node.rank == 0:
        assert node.communication.fetch(0, 1, 0.01) is None
        # What comes too late for the first time is taken for the second.
        model, limit = await asyncio.to_thread(node.communication.fetch, 0, 1, 10.0), time.monotonic() + 10.0
        while node.refused.total() < 3 and time.monotonic() < limit:
            await asyncio.sleep(0.01)
        return model.view(torch.float32).tolist(), node.refused
    await asyncio.sleep(0.2 * node.rank)
    for body in (b"", torch.full((3,), float(node.rank)).numpy().tobytes()):
        header = sockets.header(wire.Kind.MODEL, node.rank, 0, length=len(body))
        sockets.dispatch([(0, header._replace(body_digest=wire.digest(body)).pack(), body)])
    return None


async def insatiable(node: RunningNode):
    """Rank 1 asks rank 0 for its model again and again."""
    sockets, peers = node.communication.sockets, []
    mailbox = node.endpoint.mailbox
    mailbox.transport.give_model = lambda: peers.extend(mailbox.peers.take_wanting())
    await in_rounds(Ring(2), 1, PATIENT)(node)
    for _ in range(2 * MOST_REQUESTS if node.rank == 1 else 0):
        sockets.dispatch([(0, sockets.header(wire.Kind.MODEL_REQUEST, 1, 0).pack(), b"")])
    other = 1 - node.rank
    await node.exchange({other: Payload.dense(torch.zeros(1000))}, [other], (9, 0, 0), LAYOUT)
    limit = time.monotonic() + 5.0
    while node.rank == 0 and node.refused.total() < MOST_REQUESTS and time.monotonic() < limit:
        await asyncio.sleep(0.01)
    return len(peers), node.refused


def test_a_model_is_given_to_one_peer_so_often_and_no_more():
    count, refused = run_nodes(IPC, 2, insatiable, MEMORY).results[0]
    assert count <= MOST_REQUESTS
    assert refused == {"fetch": MOST_REQUESTS}


def test_a_model_is_taken_of_the_peer_that_was_asked_alone():
    model, refused = run_nodes(IPC, 3, pushy, MEMORY).results[0]
    assert model == [1.0] * 3
    assert refused == {"body length": 1, "unexpected model": 2}


async def corrupted(node: RunningNode):
    """What rank 1 sends to rank 0 in round 0 has one wrong bit; in round 1 it has none."""
    other, vectors = 1 - node.rank, []
    if node.rank == 1:
        links = node.communication.sockets.links
        links.send = flip_first_payload(links.send)
    for round in range(2):
        outgoing = {other: Payload.dense(torch.ones(1000))}
        inbox = await node.exchange(outgoing, [other], (round, 0, 0), LAYOUT)
        vectors.append(inbox[other]["vector"].unique().tolist())
    return vectors, node.endpoint.refused


def flip_first_payload(send):
    pending = [wire.Kind.PAYLOAD]

    def flip(messages, opens=True):
        flipped = []
        for process, header, body in messages:
            if wire.Header.unpack(header).kind in pending:
                pending.clear()
                body = bytearray(body)
                body[17] ^= 4
            flipped.append((process, header, bytes(body)))
        return send(flipped, opens)

    return flip


@pytest.mark.parametrize("case", [IPC, TCP], ids=lambda case: case.name)
def test_a_corrupted_payload_is_refused_and_resent(case):
    results = run_nodes(case, 2, corrupted, MEMORY).results
    assert results[0] == ([[1.0], [1.0]], Counter(checksum=1))
    assert results[1] == ([[1.0], [1.0]], Counter())


async def overwritten(node: RunningNode):
    """Rank 1 changes its model while it is sent, as one may who has all throw that exchange away."""
    other, slot = 1 - node.rank, node.endpoint.slots[0].fill_(1.0)
    if node.rank == 1:
        links = node.communication.sockets.links
        links.send = flip_first_payload(links.send)
    handle = node.endpoint.exchange({other: Payload.dense(slot)}, [other], (0, 0, 0), LONG, LAYOUT)
    if node.rank == 1:
        slot.fill_(2.0)
    inbox = node.inbox = Inbox(await handle, LAYOUT, node.endpoint)
    return {source: inbox[source]["vector"].unique().tolist() for source in inbox}, node.endpoint.refused


@pytest.mark.parametrize("case", [IPC, TCP], ids=lambda case: case.name)
def test_a_payload_that_was_changed_on_its_way_arrives_as_it_is_by_now(case):
    results = run_nodes(case, 2, overwritten, MEMORY, tick=0.05).results
    assert results == {0: ({1: [2.0]}, Counter(checksum=1)), 1: ({0: [1.0]}, Counter())}


def place_of(directory, processes=1):
    return ProcessDirectory(
        tuple(HostProcess(0, i, (i,), "127.0.0.1") for i in range(processes)), 0, str(directory)
    )


def test_who_does_not_come_is_named_after_the_deadline(tmp_path):
    transport = ZeroMQ("ipc")
    transport.prepare(place_of(tmp_path, processes=3), 1 << 20)
    transport.endpoint(0, MEMORY)
    with pytest.raises(StartError, match=r"^rank 0: no hello from ranks \[1, 2\] within 0 s$"):
        transport.open([1, 2], RUN_ID, 0.2)
    began = time.monotonic()
    transport.close(0.5)
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("local", ["shared_memory", "ipc", "tcp"])
def test_who_died_before_the_first_hello_is_lost_and_not_waited_for(tmp_path, monkeypatch, local):
    transport = ZeroMQ(local, free_ports(2))
    transport.prepare(place_of(tmp_path, processes=2), 1 << 20)
    peers = transport.endpoint(0, MEMORY).peers
    lose = peers.lose
    monkeypatch.setattr(peers, "lose", lambda *lost: (time.sleep(0.2), lose(*lost)))  # not overtaken
    began = time.monotonic()
    transport.open([1], RUN_ID, 10.0)
    assert time.monotonic() - began < 5.0
    assert str(peers[1].error) == "rank 1: connection lost"
    transport.close(0.5)


def test_a_port_in_use_is_named_with_the_key_to_change(tmp_path):
    port = free_ports(1)
    first, second = ZeroMQ("tcp", port), ZeroMQ("tcp", port)
    first.prepare(place_of(tmp_path), 1 << 20)
    message = rf"^tcp://127.0.0.1:{port} is in use by another program \(key communication.base_port\)$"
    with pytest.raises(BadInput, match=message):
        second.prepare(place_of(tmp_path), 1 << 20)
    for transport in (first, second):
        transport.close(0.1)


def test_closing_what_was_never_opened_is_quick(tmp_path):
    transport = ZeroMQ("shared_memory")
    transport.close(1.0)
    transport.prepare(place_of(tmp_path), 1 << 20)
    transport.endpoint(0, MEMORY)
    began = time.monotonic()
    transport.close(60.0)
    assert time.monotonic() - began < 20
    assert not [t for t in threading.enumerate() if t.name == "decentnode-sockets"]
