"""Every transport keeps the same promises: what was sent arrives, whole, once, and unchanged."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from decentnode.communication.base import BufferSpec, Inbox
from decentnode.communication.shared_memory.pipes import RUNG
from decentnode.communication.wire import Header, Kind
from decentnode.communication.zeromq.sockets import Sockets
from decentnode.core.byte_counters import HEADER_BYTES
from decentnode.core.payload import Field, Form, Layout, Payload, Role, dense_layout
from decentnode.graph.base import Graph
from decentnode.graph.families import Exponential, Ring
from tests.support.processes import (
    DOCUMENTED,
    INPROC,
    MACHINES,
    SHARED,
    SHARED_SIBLINGS,
    TCP,
    TRANSPORT_CASES,
    RunningNode,
    TransportCase,
    run_nodes,
)

NODES = 4
CASES = (*TRANSPORT_CASES, DOCUMENTED)
ELEMENTS = 20_001
"""80 kB: enough that ZeroMQ really sends without a copy; odd, so that slots are not aligned by themselves."""
MEMORY = BufferSpec(ELEMENTS, payload_bytes=4096)
VECTOR = dense_layout(ELEMENTS)
SMALL = dense_layout(100)
LIST_FIELDS = (Field("indices", torch.int32, 50, True, Role.INDEX), Field("values", torch.float32, 50, True))
LISTS = Layout(LIST_FIELDS, Form.SPARSE)
NOTHING = dense_layout(0)


@dataclass(frozen=True)
class Shifting(Graph):
    """Directed, one target, another one each round."""

    directed = True
    period = None

    @property
    def num_nodes(self):
        return NODES

    def targets(self, rank, round):
        return ((rank + 1 + round % (NODES - 1)) % NODES,)


ACTS = {"undirected": (Ring(NODES), 0), "directed": (Exponential(NODES), 10), "changing": (Shifting(), 20)}
ROUNDS, PHASES = 6, 2


def mark(sender, round, phase=0, receiver=NODES):
    """A number that says where it belongs; exact in float32."""
    return float(((sender * 8 + receiver) * 64 + round) * 4 + phase)


class Exchanges:
    """The work of the nodes; each returns what one node saw, by exchange."""

    def __init__(self, node: RunningNode):
        self.running = node
        self.turn = 0

    async def vectors(self, graph, first_round):
        """Slots take turns and are written again at once; some readers look only after a while."""
        seen, rank = {}, self.running.rank
        for round in range(first_round, first_round + ROUNDS):
            for phase in range(PHASES):
                slot = self.running.endpoint.slots[self.turn]
                self.turn = 1 - self.turn
                slot.fill_(mark(rank, round, phase))
                inbox = await self._swap(Payload.dense(slot), graph, (round, phase, 0), VECTOR)
                if (rank + round) % 3 == 0:
                    await asyncio.sleep(0.01)
                seen[round, phase] = {source: inbox[source]["vector"].unique().tolist() for source in inbox}
        return seen

    async def one_each(self, round):
        """Another payload for each neighbor."""
        rank, targets = self.running.rank, Ring(NODES).targets(self.running.rank, 0)
        outgoing = {j: Payload.dense(torch.full((100,), mark(rank, round, 0, j))) for j in targets}
        inbox = await self.running.exchange(outgoing, Ring(NODES).sources(rank, 0), (round, 0, 0), SMALL)
        return {source: inbox[source]["vector"].unique().tolist() for source in inbox}

    async def lists(self, round):
        """Payloads of another length from everybody, one of them of none."""
        rank = self.running.rank
        payload = Payload.empty(LISTS, indices=rank * 7, values=rank * 3)
        payload["indices"].copy_(torch.arange(rank * 7))
        payload["values"].fill_(rank + 0.5)
        inbox = await self._swap(payload, Ring(NODES), (round, 0, 0), LISTS)
        return {
            source: (inbox[source]["indices"].tolist(), inbox[source]["values"].tolist()) for source in inbox
        }

    async def nothing(self, round):
        """Payloads of no bytes."""
        payload = Payload.empty(NOTHING)
        inbox = await self._swap(payload, Ring(NODES), (round, 0, 0), NOTHING)
        return {source: inbox[source].nbytes for source in inbox}

    async def _swap(self, payload, graph, key, layout):
        rank, round = self.running.rank, key[0]
        outgoing = dict.fromkeys(graph.targets(rank, round), payload)
        return await self.running.exchange(outgoing, graph.sources(rank, round), key, layout)


async def everything(node: RunningNode):
    exchanges = Exchanges(node)
    seen = {name: await exchanges.vectors(*act) for name, act in ACTS.items()}
    seen["one each"] = await exchanges.one_each(30)
    seen["lists"] = await exchanges.lists(31)
    seen["nothing"] = await exchanges.nothing(32)
    seen["alignment"] = [slot.data_ptr() % 64 for slot in node.endpoint.slots]
    return seen, node.endpoint.counters


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def outcomes(request):
    return run_nodes(request.param, NODES, everything, MEMORY)


def seen(outcomes, what):
    assert sorted(outcomes.results) == list(range(NODES))
    return {rank: result[0][what] for rank, result in outcomes.results.items()}


@pytest.mark.parametrize("act", ACTS)
def test_every_exchange_brings_the_vectors_of_its_sources_unchanged(outcomes, act):
    graph, first_round = ACTS[act]
    for rank, exchanges in seen(outcomes, act).items():
        assert exchanges == {
            (round, phase): {j: [mark(j, round, phase)] for j in graph.sources(rank, round)}
            for round in range(first_round, first_round + ROUNDS)
            for phase in range(PHASES)
        }


def test_every_neighbor_can_get_its_own_payload(outcomes):
    for rank, inbox in seen(outcomes, "one each").items():
        assert inbox == {j: [mark(j, 30, 0, rank)] for j in Ring(NODES).sources(rank, 0)}


def test_payloads_of_any_length_arrive(outcomes):
    for rank, inbox in seen(outcomes, "lists").items():
        assert inbox == {j: (list(range(j * 7)), [j + 0.5] * (j * 3)) for j in Ring(NODES).sources(rank, 0)}


def test_a_payload_of_no_bytes_arrives(outcomes):
    for rank, inbox in seen(outcomes, "nothing").items():
        assert inbox == dict.fromkeys(Ring(NODES).sources(rank, 0), 0)


def test_slots_are_aligned_alike(outcomes):
    """Products of matrices in a vector would otherwise differ in their last bits from slot to slot."""
    assert all(offsets == [0, 0] for offsets in seen(outcomes, "alignment").values())


def list_bytes(ranks):
    """Index bytes, and all others, of the payloads with lists that these ranks send."""
    index = sum(j * 7 * 4 for j in ranks)
    whole = sum(16 + (-(-j * 28 // 8) * 8 if j else 0) + j * 12 for j in ranks)
    return index, whole - index


def booked(rank, peers_of):
    """What a node should have booked, as (payload, index, header), by formula."""
    vectors = PHASES * sum(
        len(peers_of(graph, rank, round))
        for graph, first in ACTS.values()
        for round in range(first, first + ROUNDS)
    )
    degree = len(Ring(NODES).targets(rank, 0))
    return vectors * 4 * ELEMENTS + degree * 400, (vectors + 3 * degree) * HEADER_BYTES


def test_bytes_are_counted_by_the_formula_on_every_transport(outcomes):
    for rank, (_, counters) in outcomes.results.items():
        neighbors = Ring(NODES).targets(rank, 0)
        index, index_bytes = list_bytes([rank] * len(neighbors))
        payload, header = booked(rank, lambda graph, i, round: graph.targets(i, round))
        sent = (counters.sent_payload, counters.sent_index, counters.sent_header)
        assert sent == (payload + index_bytes, index, header)
        index, index_bytes = list_bytes(neighbors)
        payload, header = booked(rank, lambda graph, i, round: graph.sources(i, round))
        received = (counters.received_payload, counters.received_index, counters.received_header)
        assert received == (payload + index_bytes, index, header)


def test_closing_is_quick_and_leaves_nothing_behind(outcomes):
    assert max(outcomes.close_seconds) < 2.0
    assert outcomes.left_behind == []


async def read_twice(node: RunningNode):
    """Rank 0 breaks the rules: it writes to a slot that is being read, and says so in a second exchange."""
    other, slot = 1 - node.rank, node.endpoint.slots[0]
    slot.fill_(1.0)
    first = await node.exchange({other: Payload.dense(slot)}, [other], (0, 0, 0), VECTOR)
    if node.rank == 0:
        node.release()
        slot.fill_(2.0)
        await node.exchange({other: Payload.dense(torch.ones(100))}, [other], (1, 0, 0), SMALL)
        return None
    small = Payload.dense(torch.ones(100))
    await node.endpoint.exchange({other: small}, [other], (1, 0, 0), 20.0, SMALL)
    return first[other]["vector"].unique().tolist()


@pytest.mark.parametrize("case", [INPROC, SHARED], ids=lambda case: case.name)
def test_a_vector_in_a_slot_is_read_where_it_lies(case):
    assert run_nodes(case, 2, read_twice, MEMORY).results[1] == [2.0]


async def kinds_over_links(node: RunningNode):
    """The kinds of messages that wake socket threads in ten rounds after the first two."""
    links, sent_kinds = node.communication.sockets.links, Counter()
    send = links.send

    def counting(messages, opens=True):
        kinds = [Kind(Header.unpack(header).kind) for _, header, _ in messages]
        sent_kinds.update(kind.name for kind in kinds if kind not in RUNG)
        assert not links._dealers.processes, "no socket is opened"
        return send(messages, opens)

    others = [rank for rank in range(3) if rank != node.rank]
    for round in range(12):
        if round == 2:
            links.send = counting
        slot = node.endpoint.slots[round % 2].fill_(node.rank + round)
        inbox = await node.exchange(dict.fromkeys(others, Payload.dense(slot)), others, (round, 0, 0), VECTOR)
        assert [inbox[j]["vector"][0] for j in others] == [j + round for j in others]
    links.send = send
    return sent_kinds


@pytest.mark.parametrize("case", [SHARED, SHARED_SIBLINGS], ids=lambda case: case.name)
def test_where_memory_is_shared_links_carry_nothing_but_the_beginning(case):
    questions = {
        Kind.RESEND.name,
        Kind.POSITION.name,
        Kind.WAITING.name,
    }  # of a busy machine, and their answers
    for sent_kinds in run_nodes(case, 3, kinds_over_links, MEMORY).results.values():
        assert sent_kinds.keys() <= questions


RING, MANY = Ring(12), TransportCase("4 nodes per process", "shared_memory", 4)


async def a_long_wait(node: RunningNode):
    """The pairs of nodes that a node sent control messages to while it, and all others, waited for node 0."""
    send_control, controls = Sockets.send_control, set()

    def listening(sockets, kind, sender, peer, key, seq=0):
        controls.add((kind.name, sender, peer))
        return send_control(sockets, kind, sender, peer, key, seq)

    node.communication.io_thread.failure_detector._send_control = partial(
        listening, node.communication.sockets
    )
    Sockets.send_control = listening
    neighbors = RING.targets(node.rank, 0)
    node.endpoint.foresee(neighbors)
    for round in range(4):
        if round == 1 and not node.rank:
            await asyncio.sleep(1.0)
        sent = dict.fromkeys(neighbors, Payload.dense(node.endpoint.slots[round % 2]))
        inbox = await node.exchange(sent, neighbors, (round, 0, 0), VECTOR, timeout=2.0)
        assert not inbox.missing
    node.release()
    node.endpoint.leave()
    return controls


def test_processes_with_many_nodes_do_not_send_a_message_for_each_pair_of_nodes():
    sent = set().union(*run_nodes(MANY, RING.num_nodes, a_long_wait, MEMORY).results.values())
    assert {kind for kind, _, _ in sent} >= {"WAITING", "RESEND"}
    assert [control for control in sorted(sent) if control[2] not in RING.targets(control[1], 0)] == []


async def other_layout(node: RunningNode):
    other = 1 - node.rank
    elements = 100 if node.rank else 101
    outgoing = {other: Payload.dense(torch.ones(elements))}
    inbox = await node.exchange(outgoing, [other], (0, 0, 0), dense_layout(elements))
    return dict(inbox), {j: f"{type(e).__name__}: {e}" for j, e in inbox.missing.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_payload_of_another_layout_is_a_protocol_error(case):
    results = run_nodes(case, 2, other_layout, MEMORY).results
    for rank in range(2):
        other = 1 - rank
        assert results[rank] == ({}, {other: f"ProtocolError: rank {other}: sent another payload layout"})


async def leave_early(node: RunningNode):
    """Rank 3 leaves after two rounds; everybody else does five."""
    graph, missing = Ring(NODES), {}
    for round in range(2 if node.rank == 3 else 5):
        began = time.monotonic()
        outgoing = dict.fromkeys(graph.targets(node.rank, round), Payload.dense(torch.ones(100)))
        inbox = await node.exchange(outgoing, graph.sources(node.rank, round), (round, 0, 0), SMALL)
        missing[round] = {j: str(e) for j, e in inbox.missing.items()}
        assert time.monotonic() - began < 2.0
    return missing


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_node_that_leaves_is_missed_at_once_and_only_from_then_on(case):
    results = run_nodes(case, NODES, leave_early, MEMORY).results
    gone = {3: "rank 3: left after round 2"}
    for rank in (0, 2):
        assert results[rank] == {0: {}, 1: {}, 2: gone, 3: gone, 4: gone}
    assert results[1] == {round: {} for round in range(5)}


def test_two_machines_talk_by_tcp_and_each_by_shared_memory():
    places = MACHINES.processes(NODES)
    assert [(p.machine, p.index, p.ranks) for p in places] == [
        (0, 0, (0,)), (0, 1, (1,)), (1, 0, (2,)), (1, 1, (3,))
    ]  # fmt: skip


PARTS, PART_ROUNDS = 3, 6
IN_PARTS = BufferSpec(300, payload_bytes=400, parts=PARTS)


async def exchange_in_parts(node: RunningNode):
    """Every round's parts are in flight together: two lie in a slot, and the last one is staged."""
    vectors = []
    sources = Ring(NODES).sources(node.rank, 0)
    flying = {work: launch(node, 0, work, sources) for work in range(PARTS)}
    for round in range(PART_ROUNDS):
        for work in range(PARTS):
            inbox = Inbox(await flying[work], SMALL, node.endpoint)
            vectors.append([(j, inbox[j]["vector"].unique().tolist()) for j in sources])
            inbox.release()
            if round + 1 < PART_ROUNDS:
                flying[work] = launch(node, round + 1, work, sources)
    return vectors, dict(node.endpoint.refused)


def launch(node: RunningNode, round: int, work: int, sources):
    content = node.endpoint.slots[round % 2][100 * work :][:100]
    content = torch.empty(100) if work == PARTS - 1 else content
    payload = Payload.dense(content.fill_(100 * round + 10 * work + node.rank))
    return node.endpoint.exchange(dict.fromkeys(sources, payload), sources, (round, 0, work), 20.0, SMALL)


@pytest.mark.parametrize("case", [INPROC, SHARED, TCP], ids=lambda case: case.name)
def test_parts_of_a_vector_are_in_flight_together(case):
    outcomes = run_nodes(case, NODES, exchange_in_parts, IN_PARTS)
    assert outcomes.errors == {}
    for rank, (vectors, refused) in outcomes.results.items():
        assert refused == {}
        assert vectors == [
            [(j, [100.0 * round + 10 * work + j]) for j in Ring(NODES).sources(rank, 0)]
            for round in range(PART_ROUNDS)
            for work in range(PARTS)
        ]
