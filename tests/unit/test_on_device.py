"""The wrapper for nodes on an accelerator, with the CPU in the place of one (the copies are the same)."""

import asyncio

import pytest
import torch

from decentnode.communication.base import Inbox, Memory
from decentnode.communication.inproc import InProcess
from decentnode.communication.on_device import OnDevice, check_device, device_for
from decentnode.errors import BadInput
from decentnode.payload import Payload, dense_layout


def test_payloads_travel_through_host_memory():
    communication, memory = InProcess(), Memory(4)
    ends = [OnDevice(communication.endpoint(r, memory), memory, torch.device("cpu")) for r in range(2)]
    assert all(end.slots[0].device == end.device and len(end.slots[0]) == 4 for end in ends)

    async def node(rank: int) -> torch.Tensor:
        ends[rank].slots[0].fill_(float(rank + 1))
        payload = Payload.dense(ends[rank].slots[0])
        handle = await ends[rank].exchange({1 - rank: payload}, [1 - rank], (0, 0, 0), 5.0)
        return Inbox(handle, dense_layout(4), ends[rank])[1 - rank]["vector"].clone()

    async def both() -> list[torch.Tensor]:
        return await asyncio.gather(node(0), node(1))

    first, second = asyncio.run(both())
    assert first.tolist() == [2.0] * 4 and second.tolist() == [1.0] * 4
    assert ends[0].counters.sent == ends[1].counters.received == 16 + 64


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
