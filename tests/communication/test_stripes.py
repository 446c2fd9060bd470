"""Large payloads over several connections of a link: the same bytes, also when one of them breaks."""

import asyncio
import hashlib
import os
import random
import socket
import time
from contextlib import suppress
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decentnode.communication import wire
from decentnode.communication.base import BufferSpec, Inbox, kept_links
from decentnode.communication.zeromq.stripes import (
    INDEX,
    LEAST_CHUNK,
    MOST_CHUNK,
    MOST_CONNECTIONS,
    STRIPED_BYTES,
    StripedBody,
    Striping,
    UnfinishedBody,
)
from decentnode.core.payload import Payload, dense_layout
from tests.support.processes import RunningNode, TransportCase, run_nodes

ELEMENTS = 250_001
"""A megabyte and an odd rest: sixteen chunks."""
VECTOR, MEMORY = dense_layout(ELEMENTS), BufferSpec(ELEMENTS)
NODES, ROUNDS = 3, 8


def chunks_of(body):
    striped = StripedBody(b"", body)
    while (chunk := striped.next_chunk()) is not None:
        yield chunk
        striped.note_sent()


@given(st.integers(STRIPED_BYTES, 40 * LEAST_CHUNK), st.integers(0, 1 << 32))
def test_a_body_is_whole_after_its_last_chunk_in_any_order_and_with_repetitions(length, seed):
    draw = random.Random(seed)
    body = memoryview(draw.randbytes(length))
    chunks = [*chunks_of(body)]
    assert all(LEAST_CHUNK <= len(chunk) <= MOST_CHUNK for _, chunk in chunks[:-1])
    arriving = [*chunks, *draw.choices(chunks, k=3)]
    draw.shuffle(arriving)
    unfinished, seen = UnfinishedBody(length), set()
    for index, chunk in arriving:
        seen.add(index)
        assert unfinished.add(index, chunk) is (len(seen) == len(chunks))
    assert unfinished.body == body


@given(st.integers(STRIPED_BYTES, 3 * LEAST_CHUNK), st.integers(0, 1 << 32 - 1), st.integers(0, 1 << 17))
def test_only_a_chunk_of_the_right_size_and_place_is_taken(length, index, size):
    right = [len(chunk) for _, chunk in chunks_of(memoryview(bytes(length)))]
    if index < len(right) and right[index] == size:
        assert UnfinishedBody(length).add(INDEX.pack(index), memoryview(bytes(size))) is False
        return
    with pytest.raises(wire.WireError, match="chunk"):
        UnfinishedBody(length).add(INDEX.pack(index), memoryview(bytes(size)))


@pytest.mark.parametrize(
    ("connections", "round_trip", "opened", "expected"),
    [
        ("auto", 0.0, 0, 1),  # unknown
        ("auto", 0.0001, 0, 1),
        ("auto", 0.005, 0, 1),
        ("auto", 0.02, 0, 4),
        ("auto", 0.1, 0, MOST_CONNECTIONS),
        ("auto", 0.1, 10**6, 1),
        (3, 0.0, 10**6, 3),
        (1, 0.1, 0, 1),
    ],
)
def test_auto_follows_the_round_trip_and_has_a_bound_over_all_links(
    connections, round_trip, opened, expected
):
    assert kept_links() // 2 >= MOST_CONNECTIONS - 1
    for most_bytes, count in ((STRIPED_BYTES, expected), (STRIPED_BYTES - 1, 1)):
        striping = Striping(connections, most_bytes, post=lambda command: None)
        assert 1 + striping.further(round_trip, opened) == count


def connections_of(node: RunningNode) -> dict[int, list[int]]:
    """By process the descriptors of the connections of its link, the first one first."""
    dealers = node.communication.sockets.links._dealers
    return {
        process: [dealers._connected[process].get(dealer, -1) for dealer in reversed(held)]
        for process, held in dealers._striped.items()
    } or {process: [*known.values()] for process, known in dealers._connected.items()}


async def until_connected(node: RunningNode, count: int) -> None:
    limit = time.monotonic() + 10.0
    while [len(fds) for fds in connections_of(node).values()] != [count] * (NODES - 1) or any(
        fd < 0 for fds in connections_of(node).values() for fd in fds
    ):
        assert time.monotonic() < limit, connections_of(node)
        await asyncio.sleep(0.01)


async def mixing(node: RunningNode, count: int, cut: tuple[int, ...] = ()):
    """The hash of a model after rounds in which all exchange and mix, and the longest exchange.

    After the first round rank 0 cuts, in each round, one of the connections to the process of rank 1 while
    payloads travel: those with the indices in `cut`, in turn.
    """
    others = [rank for rank in range(NODES) if rank != node.rank]
    torch.manual_seed(node.rank)
    model, longest = torch.randn(ELEMENTS), 0.0
    for round in range(ROUNDS):
        slot = node.endpoint.slots[round % 2].copy_(model)
        outgoing, began = dict.fromkeys(others, Payload.dense(slot)), time.monotonic()
        handle = node.endpoint.exchange(outgoing, others, (round, 0, 0), 20.0, VECTOR)
        if cut and round and node.rank == 0:
            # One that was cut before may not be connected again, or libzmq has closed its descriptor by now.
            with suppress(OSError, IndexError):
                connection = socket.socket(fileno=os.dup(connections_of(node)[1][cut[round % len(cut)]]))
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()
        inbox = Inbox(await handle, VECTOR, node.endpoint)
        longest = max(longest, time.monotonic() - began)
        assert not inbox.missing
        model = (
            sum({**inbox, node.rank: Payload.dense(slot)}[rank]["vector"] for rank in range(NODES)) / NODES
        )
        inbox.release()
        await until_connected(node, count)
    return hashlib.sha256(model.numpy()).hexdigest(), longest


def case(connections, guarded=False) -> TransportCase:
    return TransportCase(
        f"{connections} connections", "ipc", machines=NODES, guarded=guarded, connections=connections
    )


def test_the_model_is_the_same_for_every_number_of_connections_with_keys_and_when_some_break():
    runs = {
        "one": (case(1), partial(mixing, count=1)),
        "auto, on a local network": (case("auto"), partial(mixing, count=1)),
        "three": (case(3), partial(mixing, count=3)),
        "three, with keys": (case(3, guarded=True), partial(mixing, count=3)),
        "one that breaks": (case(1), partial(mixing, count=1, cut=(0,))),
        "three of which any breaks": (case(3), partial(mixing, count=3, cut=(1, 2, 0))),
    }
    hashes, longest = {}, {}
    for name, (transport, work) in runs.items():
        outcomes = run_nodes(transport, NODES, work, MEMORY)
        hashes[name] = {digest for digest, _ in outcomes.results.values()}
        longest[name] = max(seconds for _, seconds in outcomes.results.values())
        assert outcomes.left_behind == [], name
    assert set.union(*hashes.values()) == hashes["one"] and len(hashes["one"]) == 1, hashes
    assert max(longest.values()) < 10.0, longest
