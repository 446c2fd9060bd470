"""The wrapper for nodes on an accelerator, with the CPU in the place of one (the copies are the same)."""

import asyncio

import pytest
import torch

from decentnode.communication.base import BufferSpec, Inbox
from decentnode.communication.device.copies import HostCopies
from decentnode.communication.device.staging import DeviceStaging, check_device, device_for
from decentnode.communication.inproc import InProcess
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.core.payload import Payload, dense_layout
from decentnode.errors import BadInput

CPU = torch.device("cpu")


class ListedCopies(HostCopies):
    """Keeps a list of what was asked for."""

    def __init__(self):
        self.asked = []

    def begin(self, target, source):
        self.asked.append((target.data_ptr(), source.data_ptr()))
        super().begin(target, source)

    def join(self):
        self.asked.append("join")

    def finish(self):
        self.asked.append("finish")

    def lock(self, memory, read_only=False):
        self.asked.append(("lock", memory.data_ptr()))


@pytest.fixture
def pair():
    """Two nodes in one process whose vectors lie elsewhere than what the transport reads."""
    communication, memory = InProcess(), BufferSpec(4)
    inner = [communication.endpoint(r, memory) for r in range(2)]
    return [DeviceStaging(end, memory, ListedCopies()) for end in inner], inner


def swapped(ends, payloads, layout, round=0):
    """The inboxes of both after an exchange."""

    async def node(rank):
        outgoing = {1 - rank: payloads[rank]}
        handle = await ends[rank].exchange(outgoing, [1 - rank], (round, 0, 0), 5.0, layout)
        return Inbox(handle, layout, ends[rank])

    async def both():
        return await asyncio.gather(node(0), node(1))

    return asyncio.run(both())


def test_a_vector_is_copied_into_the_slot_that_peers_read_and_from_there_into_kept_memory(pair):
    ends, inner = pair
    assert all(end.slots[0].device == CPU and len(end.slots[0]) == 4 for end in ends)
    landings = set()
    for round in range(4):
        slots = [end.slots[round % 2] for end in ends]
        for rank, slot in enumerate(slots):
            slot.fill_(10.0 * round + rank + 1)
        for end in ends:
            end._copies.asked.clear()
        inboxes = swapped(ends, [Payload.dense(slot) for slot in slots], dense_layout(4), round)
        for rank, inbox in enumerate(inboxes):
            came = inbox[1 - rank]["vector"]
            assert came.tolist() == [10.0 * round + 2 - rank] * 4
            landings.add(came.data_ptr())
            out = inner[rank].slots[round % 2].data_ptr(), slots[rank].data_ptr()
            into = came.data_ptr(), inner[1 - rank].slots[round % 2].data_ptr()
            assert ends[rank]._copies.asked == [out, "finish", into, "join"]
            inbox.release()
            assert ends[rank]._copies.asked[4:] == ["finish"]
    assert len(landings) == 2
    assert ends[0].counters.sent == ends[1].counters.received == 4 * (16 + 64)


def test_other_payloads_take_turns_in_two_places(pair):
    ends, layout = pair[0], dense_layout(3)
    places = []
    for round in range(4):
        payloads = [Payload.dense(torch.full((3,), round + 0.5)) for _ in ends]
        ends[0]._copies.asked.clear()
        inboxes = swapped(ends, payloads, layout, round)
        assert inboxes[1][0]["vector"].tolist() == [round + 0.5] * 3
        places.append(ends[0]._copies.asked[0][0])
        for inbox in inboxes:
            inbox.release()
    assert places[0] == places[2] != places[1] == places[3]


def test_what_is_no_longer_sound_is_judged_when_nothing_reads_it_any_more(pair):
    ends, _ = pair
    inbox = swapped(ends, [Payload.dense(end.slots[0]) for end in ends], dense_layout(4))[0]
    ends[0]._copies.asked.clear()
    assert inbox.release() and ends[0]._copies.asked == ["finish"]


def test_host_memory_that_the_device_cannot_know_is_sent_as_it_is(pair):
    ends, _ = pair
    elsewhere = Payload(dense_layout(1), torch.zeros(4, dtype=torch.uint8))
    ends[0].device = torch.device("meta")
    assert ends[0]._taken_out(elsewhere, (0, 0, 0)) is elsewhere


def test_memory_that_peers_write_is_locked_once_for_all(pair):
    ends, inner = pair
    assert ends[0]._copies.asked == [("lock", slot.data_ptr()) for slot in inner[0].slots]


def test_memory_of_a_source_is_given_back_when_it_was_restarted(pair):
    first, second = torch.zeros(2), torch.zeros(2)
    copies = pair[0][0]._copies
    copies.asked.clear()
    copies.unlock = lambda memory: copies.asked.append(("unlock", memory.data_ptr()))
    for content in (first, first, second):
        pair[0][0]._lock(1, content)
    assert copies.asked == [
        ("lock", first.data_ptr()), ("unlock", first.data_ptr()), ("lock", second.data_ptr()),
    ]  # fmt: skip


def test_the_launcher_sees_for_whom_a_node_with_a_device_waits(pair):
    (staged, _), (inner, _) = pair
    staged.heartbeat = slot = HeartbeatBoard([0]).of(0)
    inner.waits_for({1})
    assert slot.read().awaited == (1,) and staged.heartbeat is slot


def test_payload_to_another_device_keeps_layout_and_counts():
    payload = Payload.dense(torch.arange(3.0))
    assert payload.to(torch.device("cpu")) is payload
    moved = payload.to(torch.device("meta"))
    assert moved.layout == payload.layout and moved.buffer.device.type == "meta"


def test_devices_without_a_gpu():
    if torch.cuda.device_count():
        pytest.skip("this machine has a GPU")
    assert device_for("cpu", 3) == device_for("auto", 3) == torch.device("cpu")
    check_device("auto")
    with pytest.raises(BadInput, match=r"^device: cuda is asked for, but torch finds no GPU here"):
        check_device("cuda")
